"""The plan of an image: layers in order, and how the image is started."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from imagebuilder.lock.model import DebPackage, LockedBase, LockedPatch, Wheel
from imagebuilder.plan.config import RunConfig
from imagebuilder.stack.model import File
from imagebuilder.values import Digest, Platform, Release

VENV = "/opt/venv"
"""Where the image's Python environment lies."""


class LayerKind(str, Enum):
    """What a layer is made of."""

    BASE = "base"  # Debian packages, or somebody's image
    SYSTEM = "system"  # packages that apt installs while a Docker build runs
    VENV = "venv"  # interpreter links and pyvenv.cfg
    WHEELS = "wheels"
    FILES = "files"


@dataclass(frozen=True, kw_only=True)
class PlannedWheel:
    """A locked wheel and the patches that are applied to it before it is installed."""

    wheel: Wheel
    patches: tuple[LockedPatch, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """One layer. `key` is the hash of everything that decides its bytes, whichever builder makes it.

    group: the `[[layer]]` of the stack it belongs to, else the kind's name. size: packed bytes that go in.
    wheels: in the order in which pip installs them, so the last owner of a shared path wins.
    """

    kind: LayerKind
    name: str
    group: str
    key: Digest
    size: int = 0
    image: LockedBase | None = None
    debs: tuple[DebPackage, ...] = ()
    packages: tuple[str, ...] = ()
    wheels: tuple[PlannedWheel, ...] = ()
    files: tuple[File, ...] = ()

    @property
    def title(self) -> str:
        """For people and for the image's history: `wheels torch: torch 2.9.1`."""
        if len(self.wheels) == 1:
            wheel = self.wheels[0]
            patched = f" with {_count(wheel.patches, 'patch', 'patches')}" if wheel.patches else ""
            return f"{self.name}: {wheel.wheel.name} {wheel.wheel.version}{patched}"
        what = {
            LayerKind.BASE: f"{len(self.debs)} Debian packages"
            if self.debs
            else str(self.image and self.image.ref),
            LayerKind.SYSTEM: f"apt packages {', '.join(self.packages)}",
            LayerKind.VENV: VENV,
            LayerKind.WHEELS: _count(self.wheels, "wheel", "wheels"),
            LayerKind.FILES: _count(self.files, "file", "files"),
        }
        return f"{self.name}: {what[self.kind]}"


def _count(things: Sized, one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What both builders build. created: the image's SOURCE_DATE_EPOCH."""

    stack_name: str
    platform: Platform
    python: Release
    created: datetime
    layers: tuple[PlannedLayer, ...]
    run: RunConfig

    @property
    def wheels(self) -> Iterator[PlannedWheel]:
        """Every wheel, layer by layer."""
        return (wheel for layer in self.layers for wheel in layer.wheels)

    @property
    def interpreter(self) -> str:
        """The system's Python that the environment links to."""
        return f"/usr/bin/python{self.python}"
