"""`imagebuilder pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb
from imagebuilder.errors import UsageProblem

if TYPE_CHECKING:
    from imagebuilder.oci.image import Image
    from imagebuilder.values import ImageRef


@verb(offline=True)
@click.argument("reference", metavar="REF")
@click.option("--output", metavar="DIR|FILE.tar", type=click.Path(path_type=Path),
              help="Default: images/NAME, after the repository's last part.")  # fmt: skip
@click.option("--platform", default="linux/amd64", show_default=True, help="Which image of several.")
@click.option("--no-evidence", is_flag=True, help="Leave what is attached and signed in the registry.")
@json_option
def command(
    context: Context, *, reference: str, output: Path | None, platform: str, no_evidence: bool, as_json: bool
) -> None:
    """Bring an image of a registry here, as a layout or tar file, and print the digest of its manifest.

    Every blob is verified; those in the cache are not downloaded. What is attached to it comes along, as
    DIR.evidence. What was pulled can be pushed elsewhere: `imagebuilder push DIR --to REGISTRY/REPO`.
    """
    from dataclasses import replace

    from imagebuilder.oci.archive import check_place, write_image
    from imagebuilder.oci.base import fetch_layers, resolve_base
    from imagebuilder.values import ImageRef, Platform

    try:
        ref, wanted = ImageRef.parse(reference), Platform.parse(platform)
    except ValueError as error:
        raise UsageProblem(str(error)) from None
    target = context.cwd / (output or Path("images") / ref.repository.rpartition("/")[2])
    check_place(target)
    found = resolve_base(ref, wanted, settings=context.settings, cache=context.cache)
    found = fetch_layers(found, settings=context.settings, cache=context.cache, reporter=context.reporter)
    names = [replace(ref, digest=None)] if ref.tag else []
    write_image(target, found.image, names)
    brought = [] if no_evidence else _evidence(context, ref, found.image, target)
    size = sum(layer.descriptor.size for layer in found.image.layers)
    if as_json:
        say_json("pull", {
            "reference": str(ref),
            "manifest": found.image.digest.text,
            "config": found.image.config_digest.text,
            "size": size,
            "path": str(target),
            "evidence": brought,
        })  # fmt: skip
    else:
        say(found.image.digest.text)


def _evidence(context: Context, ref: ImageRef, image: Image, target: Path) -> list[str]:
    """Bring what is attached here; the kinds, and what signatures are called. An older one is replaced."""
    from imagebuilder.oci.registry import Registry
    from imagebuilder.publish.carried import beside, fetch, save

    if context.settings.offline:
        context.reporter.note("offline: what is attached to the image stays in the registry")
        return []
    registry = Registry(ref.registry, context.settings)
    found, left = fetch(registry, ref.repository, image.digest, context.cache)
    for what in left:
        context.reporter.warn(f"not brought along: {what}")
    folder = beside(target)
    if found or folder.exists():
        save(folder, found)
    return [item.evidence.kind if item.evidence else item.tag or "other" for item in found]
