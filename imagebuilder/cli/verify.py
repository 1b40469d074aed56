"""`imagebuilder verify`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb
from imagebuilder.cli.docker import docker_options, only_docker

if TYPE_CHECKING:
    from imagebuilder.builders.docker.build import Options
    from imagebuilder.cache import Cache
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.oci.image import Image

_LONGEST_INSTRUCTION = 60


@verb(offline=True)
@stack_argument
@click.option("--against", metavar="DIR|FILE.tar", type=click.Path(path_type=Path, exists=True),
              help="Compare with this image instead of images/STACK or a build from the cache.")  # fmt: skip
@click.option("--cold", is_flag=True, help="Download everything again too.")
@click.option("--most", type=click.IntRange(min=1), default=20, show_default=True,
              help="How many differences to print.")  # fmt: skip
@click.option("--builder", type=click.Choice(["auto", "docker", "direct"]), default="auto",
              help="auto: the one that built images/STACK, else as `build` does.")  # fmt: skip
@docker_options
@json_option
def command(
    context: Context, *, stack: str, against: Path | None, cold: bool, most: int, as_json: bool,
    builder: str, builder_name: str | None, template: Path | None, vendored: bool,
) -> None:  # fmt: skip
    """Build again with an empty layer cache and compare the manifests' digests.

    With Docker, the engine carries out every step again. On a difference it names layer, instruction, file
    and usual cause, and exits with 14.
    """
    from dataclasses import asdict

    from imagebuilder.builders.docker.build import Options
    from imagebuilder.builders.verify import compare
    from imagebuilder.cache import Cache
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.errors import NotReproducible

    prepared = prepare(context, stack)
    builder = _builder(context, prepared, builder, builder_name)
    only_docker(builder, builder_name=builder_name, template=template, vendored=vendored)
    options = Options(builder=builder_name, vendored=vendored, no_cache=True, template=template)
    first = (
        _first(context, prepared, against) or _built(context, prepared, builder, options, context.cache)[0]
    )
    with context.cache.temporary() as empty:
        # Layers go into an empty cache of their own; downloads come from this user's, unless --cold.
        fresh = Cache(empty)
        source = context.with_cache(fresh) if cold else context
        second, names = _built(source, prepared, builder, options, fresh)
        verdict = compare(first, second, names)
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


def _layer_names(prepared: Prepared, image: Image, instructions: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What people call the image's layers, bottom first; a base image has any number of them.

    instructions: of the Dockerfile that made those on the base.
    """
    own = [layer.name for layer in prepared.plan.layers if layer.image is None]
    if instructions:
        short = [textwrap.shorten(text, _LONGEST_INSTRUCTION, placeholder=" …") for text in instructions]
        same = len(own) == len(short)  # a template of the user's may make other layers
        own = [f"{name} ({text})" for name, text in zip(own, short, strict=True)] if same else short
    below = len(image.layers) - len(own)
    return (*(f"base layer {number}" for number in range(1, below + 1)), *own)


def _builder(context: Context, prepared: Prepared, builder: str, builder_name: str | None) -> str:
    """The builder to compare with itself: what one builder makes, the other need not."""
    import json

    from imagebuilder.cli.docker import chosen_builder

    record = context.cwd / "images" / f"{prepared.stack.name}.build.json"
    if builder == "auto" and not builder_name and record.is_file():
        try:
            return str(json.loads(record.read_bytes())["builder"]["name"])
        except (ValueError, KeyError, TypeError):
            context.reporter.warn(f"{record} is no build record")
    return chosen_builder(context, builder, builder_name)


def _built(
    context: Context, prepared: Prepared, builder: str, options: Options, layer_cache: Cache
) -> tuple[Image, tuple[str, ...]]:
    """A build whose layers are made in, or taken from, this cache, and what its layers are called.

    With Docker every step is repeated.
    """
    from imagebuilder.cli.direct import build_direct

    if builder == "direct":
        image = build_direct(context, prepared, layer_cache=layer_cache).image
        return image, _layer_names(prepared, image)
    from imagebuilder.cli.docker import build_docker, connect

    with connect(to_build=True) as engine:
        made = build_docker(context, prepared, engine, options, layer_cache=layer_cache)
    return made.built.image, _layer_names(prepared, made.built.image, made.instructions)


def _first(context: Context, prepared: Prepared, against: Path | None) -> Image | None:
    """The image to compare with: the one named, or the one in images/; None where there is none."""
    from imagebuilder.errors import ArtefactUnusable
    from imagebuilder.oci.archive import read_archive
    from imagebuilder.oci.layout import read_layout

    default = context.cwd / "images" / prepared.stack.name
    place = against or (default if default.is_dir() else None)
    if place is None:
        return None
    stored = read_archive(place, context.cache) if place.is_file() else read_layout(place)
    if len(stored) != 1:
        raise ArtefactUnusable(f"{place} does not hold one image", seen=f"{len(stored)} images", wanted="1")
    return stored[0].image
