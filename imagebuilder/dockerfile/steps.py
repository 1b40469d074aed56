"""Plan → what the template renders, step by step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from imagebuilder.dockerfile.model import LAYERS, Fetch, WheelStep
from imagebuilder.lock.model import DEFAULT_INDEX, Wheel
from imagebuilder.plan import LayerKind, Plan, PlannedLayer, PlannedWheel
from imagebuilder.stack.model import Stack

REQUIREMENTS = "requirements.txt"


def wheel_steps(plan: Plan, stack: Stack, *, vendored: bool) -> tuple[WheelStep, ...]:
    """One step for each layer of wheels, in the plan's order."""
    urls = {index.name: index.url for index in stack.indexes}
    layers = [layer for layer in plan.layers if layer.kind is LayerKind.WHEELS]
    return tuple(
        WheelStep(
            folder=folder_of(number, layer),
            heading=layer.title,
            fetches=() if vendored else _fetches(layer, urls),
            here=vendored or any(w.patches for w in layer.wheels),
        )
        for number, layer in enumerate(layers, start=1)
    )


def secrets_of(plan: Plan, stack: Stack, *, vendored: bool) -> tuple[str, ...]:
    """The build secrets that the Dockerfile of this plan can take, sorted."""
    found = {name for step in wheel_steps(plan, stack, vendored=vendored) for name in step.secrets}
    if any(layer.kind is LayerKind.SYSTEM for layer in plan.layers):
        found |= {"apt.conf", "apt-sources", "ca-bundle"}
    return tuple(sorted(found))


def folder_of(number: int, layer: PlannedLayer) -> str:
    """Where a layer's files are in the context, `layers/03-torch`; numbers keep the reader's order."""
    name = "-".join(dict.fromkeys(layer.name.lower().split("/")))  # `torch`, not `torch-torch`
    plain = re.sub(r"[^a-z0-9._]+", "-", name).strip("-.")
    return f"{LAYERS}/{number:02}-{plain}"


def fetch_files(layer: PlannedLayer) -> dict[str, tuple[PlannedWheel, ...]]:
    """The wheels to be fetched by the file that asks for them; one file where all are of one source."""
    sources: dict[str, list[PlannedWheel]] = {}
    for planned in layer.wheels:
        if not planned.patches:
            sources.setdefault(_source(planned.wheel), []).append(planned)
    if len(sources) == 1 and "" not in sources and not any(w.patches for w in layer.wheels):
        return {REQUIREMENTS: tuple(layer.wheels)}
    return {f"fetch-{name or 'addresses'}.txt": tuple(wheels) for name, wheels in sorted(sources.items())}


def _fetches(layer: PlannedLayer, urls: dict[str, str]) -> tuple[Fetch, ...]:
    return tuple(_fetch(file, wheels, urls) for file, wheels in fetch_files(layer).items())


def _fetch(file: str, wheels: Sequence[PlannedWheel], urls: dict[str, str]) -> Fetch:
    index = _source(wheels[0].wheel)
    if index in ("", DEFAULT_INDEX):
        return Fetch(file=file)
    return Fetch(file=file, index=index, url=urls[index])


def _source(wheel: Wheel) -> str:
    """The name of the index a wheel comes from; nothing where it has an address of its own."""
    return "" if wheel.url else wheel.index or DEFAULT_INDEX
