"""`imagebuilder snapshot`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb
from imagebuilder.errors import Unresolvable, UsageProblem

if TYPE_CHECKING:
    from imagebuilder.snapshot.make import Means
    from imagebuilder.snapshot.model import Environment
    from imagebuilder.snapshot.stackfile import Wishes


@verb(offline=True)
@click.option("--python", metavar="PATH", help="An interpreter, or the folder of a virtual environment.")
@click.option(
    "--image", metavar="REF", help="A layout, an archive (.tar), or an image of an engine or registry."
)
@click.option("--container", metavar="ID", help="A container of the engine, running or not.")
@click.option("--name", help="The stack's name. Default: after the environment.")
@click.option("--output", metavar="DIR", type=click.Path(path_type=Path), help="Default: stacks.")
@click.option(
    "--base", metavar="SUITE|REF", help="What to rebuild it on. Default: the Debian with its Python."
)
@click.option("--prefix", metavar="DIR", help="Which Python of an image. Default: what python3 means in it.")
@click.option("--platform", default="linux/amd64", show_default=True, help="Of an image in a registry.")
@click.option(
    "--gpu", "gpus", metavar="SM", multiple=True, help="A GPU it must run on, as sm_120. Repeatable."
)
@click.option("--driver", metavar="VERSION", help="The oldest host driver it must run on.")
@click.option("--glibc", metavar="VERSION", help="Of a --base that is an image. Default: the environment's.")
@click.option(
    "--index", "indexes", metavar="NAME=URL", multiple=True, help="One more index to look on. Repeatable."
)
@click.option("--env", "variables", metavar="GLOB", multiple=True,
              help="With --python: take over these variables of this shell, such as 'NCCL_*'.")  # fmt: skip
@click.option("--as-of", metavar="INSTANT", help="The stack's date. Default: now.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--dry-run", is_flag=True, help="Say what would be found, write nothing.")
@json_option
def command(
    context: Context, *, python: str | None, image: str | None, container: str | None, name: str | None,
    output: Path | None, prefix: str | None, platform: str, force: bool, dry_run: bool, as_json: bool,
    **more: Any,
) -> None:  # fmt: skip
    """A stack file, patches and lock that rebuild an existing environment: the way back before an upgrade.

    Every installed package is compared with the wheels of its index, file by file. What was changed by hand
    becomes a patch; what cannot be locked is named with what to do about it, and the exit code then is 12.
    """
    from imagebuilder.files import check_writable
    from imagebuilder.snapshot.make import Means, take_snapshot, with_name, write_snapshot
    from imagebuilder.snapshot.sources import stack_name

    if sum(map(bool, (python, image, container))) != 1:
        raise UsageProblem(
            "what is to be taken a snapshot of?", wanted="one of --python PATH, --image REF, --container ID"
        )
    wishes = _wishes(context, name, with_python=bool(python), **more)
    folder = context.cwd / (output or Path("stacks"))
    if not dry_run:
        check_writable(folder / "stack")
    means = Means.of(context.settings, context.cache, context.reporter)
    source = {"python": python, "image": image, "container": container}
    with _environment(context, means, **source, prefix=prefix, platform=platform) as environment:
        if not name:
            wishes = with_name(wishes, stack_name(environment.name))
        snapshot = take_snapshot(environment, wishes, means)
    if not dry_run:
        write_snapshot(snapshot, folder, force=force)
    report = snapshot.report
    paths = [str(folder / path) for path in snapshot.files]
    if as_json:
        say_json(
            "snapshot", {"stack": wishes.name, "written": not dry_run, "files": paths, **report.as_json()}
        )
    else:
        for line in report.lines():
            say(line)
    how = " (not written: --dry-run)" if dry_run else ""
    context.reporter.note(
        f"{folder / wishes.name}.toml, its lock, and {len(paths) - 2} files beside them{how}"
    )
    if not report.complete:
        raise Unresolvable(
            f"the stack {wishes.name} is not all of {report.label}",
            seen=report.missing(),
            hint="they are listed above, each with what to do",
        )


@contextmanager
def _environment(
    context: Context, means: Means, *, python: str | None, image: str | None, container: str | None,
    prefix: str | None, platform: str,
) -> Iterator[Environment]:  # fmt: skip
    """The environment that the options name; what it needs is there while the block runs."""
    from imagebuilder.settings import expanded
    from imagebuilder.snapshot import sources
    from imagebuilder.snapshot.folder import read_python

    if python:
        if prefix:
            raise UsageProblem("--prefix is for images", hint="--python PREFIX/bin/python")
        yield read_python(context.cwd / expanded(python), python)
    elif container:
        from imagebuilder.cli.docker import connect

        with connect() as connected:
            yield sources.container(connected, container, prefix, means)
    elif image and sources.on_disk(context.cwd / image):
        yield sources.image_here(context.cwd / image, image, prefix, means)
    elif image:
        ref = sources.reference(image)
        engine = None if context.offline else sources.engine_or_none(os.environ, context.reporter.note)
        with engine or nullcontext():
            if engine is not None and engine.id_of(ref):
                context.reporter.note(f"{ref} as the engine has it")
                with sources.image_in_engine(engine, ref, image, prefix, means) as environment:
                    yield environment
                return
        yield sources.image_in_registry(ref, _platform(platform), image, prefix, means)


def _wishes(
    context: Context, name: str | None, *, with_python: bool, base: str | None, gpus: tuple[str, ...],
    driver: str | None, glibc: str | None, indexes: tuple[str, ...], variables: tuple[str, ...],
    as_of: str | None,
) -> Wishes:  # fmt: skip
    from fnmatch import fnmatchcase

    from imagebuilder.snapshot.stackfile import Wishes
    from imagebuilder.values import GpuArch, Release

    if variables and not with_python:
        raise UsageProblem("--env is for --python: an image says its variables itself")
    env = sorted((n, v) for n, v in os.environ.items() if any(fnmatchcase(n, glob) for glob in variables))
    if name is not None:
        _check_name(name)
    try:
        return Wishes(
            name=name or "snapshot",
            as_of=_instant(as_of),
            base=base,
            gpus=tuple(GpuArch.parse(gpu) for gpu in gpus),
            driver=Release(driver) if driver else None,
            glibc=Release(glibc) if glibc else None,
            indexes=tuple(_index(text) for text in indexes),
            env=tuple(env),
        )
    except ValueError as error:
        raise UsageProblem(str(error)) from None


def _check_name(name: str) -> None:
    import re

    from imagebuilder.stack.vocabulary import NAME

    if not re.fullmatch(NAME.pattern or "", name):
        raise UsageProblem(f"--name {name!r} is no name of a stack", wanted=NAME.form)


def _instant(text: str | None) -> Any:
    from datetime import datetime, timezone

    if text is None:
        return datetime.now(timezone.utc).replace(microsecond=0)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageProblem(f"--as-of {text!r} is no instant", wanted="2026-02-25T00:00:00Z") from None
    if moment.tzinfo is None:
        raise UsageProblem(f"--as-of {text!r} does not say its time zone", wanted=f"{text}Z")
    return moment.astimezone(timezone.utc)


def _index(text: str) -> Any:
    from imagebuilder.stack.model import Index

    name, equals, url = text.partition("=")
    if not equals or not url:
        raise UsageProblem(f"--index {text!r} is no index", wanted="NAME=URL")
    _check_name(name)
    if name == "default":
        raise UsageProblem("--index default: that is the index that pip and uv are configured with")
    return Index(name=name, url=url, explicit=True)


def _platform(text: str) -> Any:
    from imagebuilder.values import Platform

    try:
        return Platform.parse(text)
    except ValueError as error:
        raise UsageProblem(f"--platform {error}") from None
