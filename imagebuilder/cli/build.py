"""`imagebuilder build`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb
from imagebuilder.cli.docker import builder_option, chosen_builder, docker_options, only_docker
from imagebuilder.errors import UsageProblem

if TYPE_CHECKING:
    from imagebuilder.builders.direct.build import Built
    from imagebuilder.builders.docker.build import Options
    from imagebuilder.builders.docker.engine import Engine
    from imagebuilder.checks.model import Finding
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.values import ImageRef


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the command line asks for. engine: where images are loaded and built, where one is needed."""

    builder: str
    options: Options
    engine: Engine | None
    output: Path | None
    tags: tuple[ImageRef, ...]
    push: bool
    locked: bool
    check: bool


@verb(offline=True)
@click.argument("stacks", metavar="STACK...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All stacks in ./stacks, or all shipped ones.")
@click.option(
    "--output", metavar="DIR|FILE.tar", type=click.Path(path_type=Path), help="Default: images/STACK."
)
@click.option("--locked", is_flag=True, help="Never lock here: fail where there is no lock.")
@click.option("--no-check", is_flag=True, help="Build whatever `imagebuilder check` says.")
@builder_option
@docker_options
@click.option("--no-cache", is_flag=True, help="Let the engine carry out every step again (docker only).")
@click.option("--load", is_flag=True, help="Load the image into the engine (docker does so in any case).")
@click.option("--tag", "tags", metavar="REF", multiple=True, help="Name the image so; may be repeated.")
@click.option("--push", is_flag=True, help="Push every --tag from the engine.")
@json_option
def command(context: Context, *, stacks: tuple[str, ...], every: bool, as_json: bool, **wishes: Any) -> None:
    """Make the image, and print the digest of its manifest.

    Checks it first, and stops at errors that the stack does not waive (exit code 5).
    A stack without a lock is locked first. Layers whose content did not change are taken from the cache.
    The image lies in an OCI layout that `docker load` reads too (images/STACK), or in a tar file.
    """
    arguments = stack_arguments(context, stacks, every)
    wish = _wish(context, **wishes)
    if wish.tags and len(arguments) > 1:
        raise UsageProblem(
            "--tag names one image, and several stacks are built", hint="build them one by one"
        )
    try:
        results = [_build_one(context, argument, wish, alone=len(arguments) == 1) for argument in arguments]
    finally:
        if wish.engine:
            wish.engine.close()
    if as_json:
        say_json("build", results[0] if len(results) == 1 else {"images": results})
    else:
        for result in results:
            say(result["manifest"] if len(results) == 1 else f"{result['stack']} {result['manifest']}")


def stack_arguments(context: Context, stacks: tuple[str, ...], every: bool) -> list[str]:
    """The stacks that the command line names, or all."""
    from imagebuilder.stack import shipped_stacks
    from imagebuilder.stack.find import FOLDER

    if stacks and every:
        raise UsageProblem("--all and names of stacks do not go together")
    if not stacks and not every:
        raise UsageProblem("which stack?", hint="imagebuilder build STACK, or --all")
    if stacks:
        return list(stacks)
    own = sorted(p for p in (context.cwd / FOLDER).glob("*.toml") if not p.name.startswith("pylock."))
    return [path.stem for path in own or shipped_stacks()]


def _wish(
    context: Context, *, builder: str, builder_name: str | None, vendored: bool, template: Path | None,
    no_cache: bool, no_check: bool, load: bool, tags: tuple[str, ...], push: bool, locked: bool,
    output: Path | None,
) -> Wish:  # fmt: skip
    from imagebuilder.builders.docker.build import Options
    from imagebuilder.cli.docker import connect
    from imagebuilder.values import ImageRef

    chosen = chosen_builder(context, builder, builder_name)
    only_docker(chosen, builder_name=builder_name, template=template, vendored=vendored, no_cache=no_cache)
    if push and not tags:
        raise UsageProblem(
            "--push needs a --tag that says where to", hint="--tag registry.example/name:tag --push"
        )
    try:
        references = tuple(ImageRef.parse(tag) for tag in tags)
    except ValueError as error:
        raise UsageProblem(f"--tag: {error}") from None
    options = Options(builder=builder_name, vendored=vendored, no_cache=no_cache, template=template)
    engine = connect(to_build=chosen == "docker") if chosen == "docker" or load or push else None
    return Wish(
        builder=chosen,
        options=options,
        engine=engine,
        output=output,
        tags=references,
        push=push,
        locked=locked,
        check=not no_check,
    )


def _build_one(context: Context, argument: str, wish: Wish, *, alone: bool) -> dict[str, Any]:
    """Build, write, load, push; what `--json` says of it."""
    from imagebuilder.builders.output import image_names, record_of, write_record
    from imagebuilder.builders.revision import source_revision
    from imagebuilder.checks.kept import account_of
    from imagebuilder.cli.direct import build_direct
    from imagebuilder.cli.docker import build_docker
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.oci.archive import check_place, write_image
    from imagebuilder.values import Digest

    prepared = prepare(context, argument, lock_if_missing=not wish.locked)
    given = wish.output or Path("images")
    target = context.cwd / (given if wish.output and alone else given / prepared.stack.name)
    check_place(target)
    findings = _checked(context, argument, prepared, wish) if wish.check else None
    tools: dict[str, str] = {"name": "direct"}
    if wish.builder == "docker":
        assert wish.engine is not None, "the Docker builder has an engine"
        made = build_docker(context, prepared, wish.engine, wish.options)
        built, tools = made.built, dict(made.tools)
    else:
        built = build_direct(context, prepared)
    stack = prepared.stack
    lock_digest = Digest.of(prepared.lock_file.read_bytes())
    names = wish.tags or image_names(stack.name, stack.image.repository, prepared.lock, lock_digest)
    write_image(target, built.image, names)
    record = record_of(
        built,
        lock=lock_digest,
        names=names,
        builder=tools,
        findings=[finding.as_json() for finding in findings or ()],
        checked=None if findings is None else account_of(stack, findings),
        source=source_revision(stack.path, prepared.lock_file) if stack.path else None,
    )
    write_record(target, record)
    context.reporter.note(_summary(built, target))
    if wish.engine:
        wish.engine.load(built.image, names, context.reporter)
        context.reporter.note(f"in the engine as {', '.join(str(n) for n in names)}")
    if wish.push:
        _push(context, wish, names)
    return {**record, "path": str(target), "unchanged": built.unchanged}


def _checked(context: Context, argument: str, prepared: Prepared, wish: Wish) -> list[Finding]:
    """The findings, for the build record; ChecksFailed where an error is not waived."""
    from imagebuilder.checks.report import summary
    from imagebuilder.cli.check import findings_of, refuse_errors

    findings = findings_of(context, prepared, download=wish.builder == "direct")
    refuse_errors(argument, findings)
    context.reporter.note(f"checked {prepared.stack.name}: {summary(findings)}")
    return findings


def _push(context: Context, wish: Wish, names: tuple[ImageRef, ...]) -> None:
    from imagebuilder.oci.credentials import DockerCredentials

    assert wish.engine is not None, "what is pushed from an engine is in one"
    logins = DockerCredentials.of(context.settings)
    for name in names:
        digest = wish.engine.push(name, logins.find(name.registry), context.reporter)
        context.reporter.note(f"pushed {name}@{digest}")


def _summary(built: Built, target: Path) -> str:
    from imagebuilder.cli.report import human

    made = sum(not layer.cached for layer in built.layers)
    size = human(sum(layer.descriptor.size for layer in built.image.layers))
    what = f"{made} of {len(built.layers)} layers made, {len(built.image.layers)} layers with {size} written"
    return f"{built.plan.stack_name}: {what} to {target}"
