"""`imagebuilder verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb

if TYPE_CHECKING:
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.oci.image import Image


@verb(offline=True)
@stack_argument
@click.option("--against", metavar="DIR|FILE.tar", type=click.Path(path_type=Path, exists=True),
              help="Compare with this image instead of images/STACK or a build from the cache.")  # fmt: skip
@click.option("--cold", is_flag=True, help="Download everything again too.")
@click.option("--most", default=20, show_default=True, help="How many differences to print.")
@json_option
def command(
    context: Context, *, stack: str, against: Path | None, cold: bool, most: int, as_json: bool
) -> None:
    """Build again with an empty layer cache and compare the manifests' digests.

    On a difference it names layer, file and usual cause, and exits with 14.
    """
    from dataclasses import asdict

    from imagebuilder.builders.verify import compare
    from imagebuilder.cache import Cache
    from imagebuilder.cli.direct import build_direct
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.errors import NotReproducible

    prepared = prepare(context, stack)
    first = _first(context, prepared, against)
    with context.cache.temporary() as empty:
        # Layers go into an empty cache of their own; downloads come from this user's, unless --cold.
        fresh = Cache(empty)
        source = context.with_cache(fresh) if cold else context
        second = build_direct(source, prepared, layer_cache=fresh).image
        verdict = compare(first, second, tuple(layer.name for layer in prepared.plan.layers))
    if as_json:
        say_json("verify", {
            "stack": prepared.stack.name,
            "reproducible": verdict.reproducible,
            "first": first.digest.text,
            "second": second.digest.text,
            "differences": [asdict(d) for d in verdict.differences],
        })  # fmt: skip
    elif verdict.reproducible:
        say(str(second.digest))
    else:
        for difference in verdict.differences[:most]:
            say(str(difference))
        if len(verdict.differences) > most:
            say(f"… and {len(verdict.differences) - most} more differences")
    if not verdict.reproducible:
        raise NotReproducible(
            f"two builds of {prepared.stack.name} differ in {len(verdict.differences)} places",
            seen=second.digest.text,
            wanted=first.digest.text,
        )


def _first(context: Context, prepared: Prepared, against: Path | None) -> Image:
    """The image to compare with: the one named, the one in images/, or one built from the cache."""
    from imagebuilder.cli.direct import build_direct
    from imagebuilder.errors import ArtefactUnusable
    from imagebuilder.oci.archive import read_archive
    from imagebuilder.oci.layout import read_layout

    default = context.cwd / "images" / prepared.stack.name
    place = against or (default if default.is_dir() else None)
    if place is None:
        return build_direct(context, prepared).image
    stored = read_archive(place, context.cache) if place.is_file() else read_layout(place)
    if len(stored) != 1:
        raise ArtefactUnusable(f"{place} does not hold one image", seen=f"{len(stored)} images", wanted="1")
    return stored[0].image
