"""`imagebuilder render`."""

from __future__ import annotations

from pathlib import Path

import click

from imagebuilder.cli.context import Context, say, stack_argument, verb
from imagebuilder.cli.docker import template_option, vendored_option


@verb(offline=True)
@stack_argument
@click.option(
    "--output", metavar="DIR", type=click.Path(path_type=Path), help="Write the whole context to this folder."
)
@vendored_option
@template_option
def command(
    context: Context, *, stack: str, output: Path | None, vendored: bool, template: Path | None
) -> None:
    """Print the Dockerfile; with --output write it and all that its build reads.

    Plain `docker build` builds the folder, with no imagebuilder around. Without --output nothing is fetched.
    """
    from imagebuilder.builders.docker.context import read_template, write_context
    from imagebuilder.cli.docker import means
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.dockerfile import render

    prepared = prepare(context, stack)
    plan = prepared.plan
    text, name = read_template(template)
    dockerfile = render(plan, prepared.stack, text, vendored=vendored, template_name=name)
    if output is None:
        say(dockerfile.rstrip("\n"))
        return
    target = context.cwd / output
    made_by = means(context, prepared)
    write_context(target, plan, prepared.stack, made_by, dockerfile=dockerfile, vendored=vendored)
    epoch = int(plan.created.timestamp())
    context.reporter.note(
        f"build it with: docker buildx build --build-arg SOURCE_DATE_EPOCH={epoch} "
        f"--tag {prepared.stack.name} {target}"
    )
    say(str(target))
