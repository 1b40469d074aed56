"""`imagebuilder build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb

if TYPE_CHECKING:
    from imagebuilder.builders.direct.build import Built


@verb(offline=True)
@stack_argument
@click.option(
    "--output", metavar="DIR|FILE.tar", type=click.Path(path_type=Path), help="Default: images/STACK."
)
@click.option("--locked", is_flag=True, help="Never lock here: fail where there is no lock.")
@json_option
def command(context: Context, *, stack: str, output: Path | None, locked: bool, as_json: bool) -> None:
    """Make the image, and print the digest of its manifest.

    A stack without a lock is locked first. Layers whose content did not change are taken from the cache.
    The image lies in an OCI layout that `docker load` reads too (images/STACK), or in a tar file.
    """
    from imagebuilder.builders.output import image_names, record_of, write, write_record
    from imagebuilder.cli.direct import build_direct
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.values import Digest

    prepared = prepare(context, stack, lock_if_missing=not locked)
    built = build_direct(context, prepared)
    target = context.cwd / (output or Path("images") / prepared.stack.name)
    names = image_names(prepared.stack.name, prepared.stack.image.repository)
    write(built, target, names)
    lock_digest = Digest.of(prepared.lock_file.read_bytes())
    record = record_of(built, lock=lock_digest, names=names)
    write_record(target, record)
    context.reporter.note(_summary(built, target))
    if as_json:
        say_json("build", {**record, "path": str(target), "unchanged": built.unchanged})
    else:
        say(str(built.image.digest))


def _summary(built: Built, target: Path) -> str:
    from imagebuilder.cli.report import human

    made = sum(not layer.cached for layer in built.layers)
    size = human(sum(layer.descriptor.size for layer in built.image.layers))
    what = "nothing to do" if built.unchanged else f"{made} of {len(built.layers)} layers made"
    return f"{built.plan.stack_name}: {what}; {len(built.image.layers)} layers, {size}, in {target}"
