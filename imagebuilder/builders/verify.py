"""Building again from nothing, and saying what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagebuilder.builders.explain import Difference, LayerFile, differences
from imagebuilder.oci.image import Image


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Two builds of one plan. `differences` is empty exactly when the manifests are equal."""

    first: Image
    second: Image
    differences: tuple[Difference, ...]

    @property
    def reproducible(self) -> bool:
        """Whether both are the same bytes."""
        return self.first.digest == self.second.digest


def compare(first: Image, second: Image, names: tuple[str, ...]) -> Verdict:
    """Compare two images whose layers have files. names: of the layers, for people, bottom first."""
    found: list[Difference] = []
    if first.digest != second.digest:
        found += differences(list(_files(first, names)), list(_files(second, names)))
        if first.config_bytes != second.config_bytes:
            found += _config(first, second)
    return Verdict(first=first, second=second, differences=tuple(found))


def _files(image: Image, names: tuple[str, ...]) -> Iterator[LayerFile]:
    for number, layer in enumerate(image.layers):
        assert layer.path is not None, "only images that are here are compared"
        yield LayerFile(
            name=names[number] if number < len(names) else f"layer {number}",
            diff_id=layer.diff_id.hex,
            blob=layer.descriptor.digest.hex,
            path=layer.path,
        )


def _config(first: Image, second: Image) -> Iterator[Difference]:
    """Fields of the image config that differ, its list of layers apart."""
    for field in ("created", "env", "entrypoint", "command", "user", "workdir", "labels", "ports", "history"):
        one, two = getattr(first.config, field), getattr(second.config, field)
        if one != two:
            yield Difference(
                layer="config",
                path="",
                aspect=field,
                first=str(one)[:200],
                second=str(two)[:200],
                cause="the image's settings come from stack and lock only: one of these was changed",
            )
