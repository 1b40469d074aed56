"""`imagebuilder bake`."""

from __future__ import annotations

from pathlib import Path

import click

from imagebuilder.cli.build import stack_arguments
from imagebuilder.cli.context import Context, say, verb
from imagebuilder.cli.docker import template_option, vendored_option


@verb(offline=True)
@click.argument("stacks", metavar="STACK...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All stacks in ./stacks, or all shipped ones.")
@click.option(
    "--output", metavar="DIR", type=click.Path(path_type=Path), default="bake", show_default=True,
    help="Where to write docker-bake.json and a context for each stack.",
)  # fmt: skip
@click.option("--repository", metavar="REPO", help="Where the images go, instead of each stack's own.")
@click.option("--push", is_flag=True, help="Let the builders push; without it they load into their engine.")
@vendored_option
@template_option
def command(
    context: Context, *, stacks: tuple[str, ...], every: bool, output: Path, repository: str | None,
    push: bool, vendored: bool, template: Path | None,
) -> None:  # fmt: skip
    """Write a docker-bake.json and the contexts it names, for `docker buildx bake` on any number of machines.

    Shared layers are built once for all stacks, as far as their builders share a cache.
    """
    from imagebuilder.builders.docker.bake import BakeTarget, bake_file
    from imagebuilder.builders.docker.context import read_template, write_context
    from imagebuilder.builders.output import image_names
    from imagebuilder.cli.docker import means
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.dockerfile import render
    from imagebuilder.dockerfile.steps import secrets_of
    from imagebuilder.files import new_file
    from imagebuilder.values import Digest

    text, name = read_template(template)
    targets = []
    for argument in stack_arguments(context, stacks, every):
        prepared = prepare(context, argument)
        stack, plan = prepared.stack, prepared.plan
        dockerfile = render(plan, stack, text, vendored=vendored, template_name=name)
        folder = context.cwd / output / stack.name
        write_context(folder, plan, stack, means(context, prepared), dockerfile=dockerfile, vendored=vendored)
        lock = Digest.of(prepared.lock_file.read_bytes())
        names = image_names(stack.name, repository or stack.image.repository, prepared.lock, lock)
        targets.append(
            BakeTarget(
                plan=plan, context=stack.name, names=names, secrets=secrets_of(plan, stack, vendored=vendored)
            )
        )
    file = context.cwd / output / "docker-bake.json"
    with new_file(file) as out:
        out.write(bake_file(targets, push=push).encode())
    context.reporter.note(f"bake it with: cd {output} && docker buildx bake --builder NAME")
    say(str(file))
