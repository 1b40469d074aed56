"""What goes into each kind of layer."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from imagebuilder.builders.direct import debian
from imagebuilder.builders.direct.debian.lower import EMPTY, Lower
from imagebuilder.builders.direct.install import mtime_of, write_tree, write_wheels_layer
from imagebuilder.builders.direct.venv import VenvLayout, venv_skeleton
from imagebuilder.facts.wheel import Wheel
from imagebuilder.oci import encode
from imagebuilder.oci.image import Image
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.plan import VENV, LayerKind, Plan, PlannedLayer, PlannedWheel
from imagebuilder.stack import Stack
from imagebuilder.values import Digest

_FORMAT = 1
"""Raised whenever this builder writes other bytes for the same plan: it makes all cached layers stale."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What layers are made from. files: artefacts' files by sha256. stop: set when the build is given up."""

    stack: Stack
    plan: Plan
    base: Image | None = None
    workers: int = 1
    remark: Callable[[str], None] = lambda text: None
    files: Mapping[Digest, Path] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def patch(self, digest: Digest) -> bytes:
        """The bytes of a patch of the stack."""
        return next(p.content for layer in self.stack.layers for p in layer.patches if p.digest == digest)


def identity(layer: PlannedLayer) -> str:
    """What decides a layer's bytes besides its plan."""
    own = f"direct-{_FORMAT} {encode.IDENTITY}"
    return f"{own} {debian.IDENTITY}" if layer.debs else own


def write(writer: LayerWriter, layer: PlannedLayer, inputs: Inputs, scratch: Path) -> None:
    """Write the layer; `scratch` is a folder for derived wheels. Raises ArtefactUnusable."""
    layout = VenvLayout(python=inputs.plan.python, prefix=VENV, base_interpreter=inputs.plan.interpreter)
    if layer.kind is LayerKind.WHEELS:
        _write_wheels(writer, layer, inputs, layout, scratch)
    elif layer.kind is LayerKind.VENV:
        write_tree(writer, venv_skeleton(layout))
    elif layer.kind is LayerKind.FILES:
        _write_files(writer, layer)
    else:
        debs = [(deb, inputs.files[deb.sha256]) for deb in layer.debs]
        debian.write_debian_layer(
            writer,
            debs,
            lower=_below(inputs.base),
            spool=scratch,
            workers=inputs.workers,
            remark=inputs.remark,
        )


def _below(base: Image | None) -> Lower:
    """What Debian packages are unpacked onto: the files of the base image, or nothing."""
    if base is None:
        return EMPTY
    from imagebuilder.facts.image_tree import ImageTree

    return ImageTree.read([layer.path for layer in base.layers if layer.path])


def _write_wheels(
    writer: LayerWriter, layer: PlannedLayer, inputs: Inputs, layout: VenvLayout, scratch: Path
) -> None:
    with ExitStack() as opened:
        wheels = []
        for planned in layer.wheels:
            path, digest = _wheel_file(planned, inputs, scratch)
            wheels.append((opened.enter_context(Wheel.open(path)), digest))
        write_wheels_layer(writer, wheels, layout)


def _wheel_file(planned: PlannedWheel, inputs: Inputs, scratch: Path) -> tuple[Path, Digest]:
    """The locked wheel under its own name, or the one derived from it by patches."""
    named = scratch / planned.wheel.filename
    named.symlink_to(inputs.files[planned.wheel.sha256])
    if not planned.patches:
        return named, planned.wheel.sha256
    from imagebuilder.builders.direct.derive import derive_patched

    patches = [(posixpath.basename(p.path), inputs.patch(p.sha256)) for p in planned.patches]
    derived = scratch / "derived"
    derived.mkdir(exist_ok=True)
    filename, digest = derive_patched(named, patches, derived)
    return derived / filename, digest


def _write_files(writer: LayerWriter, layer: PlannedLayer) -> None:
    """The stack's own files, with the folders that lead to them below those that every system has."""
    mtime = mtime_of(layer.key)
    folders: set[str] = set()
    for file in layer.files:
        path = file.path.strip("/")
        for folder in reversed([str(p) for p in Path(path).parents][:-1]):
            if folder not in folders and folder not in _STANDARD_FOLDERS:
                folders.add(folder)
                writer.directory(folder, mtime=mtime)
        writer.file_bytes(path, file.content, file.mode, mtime=mtime)


# Folders that a base has, perhaps with other modes or as links (usr-merge): never written by us.
_STANDARD_FOLDERS = frozenset(
    """
    bin boot dev etc home lib lib64 media mnt opt proc root run sbin srv sys tmp usr var
    usr/bin usr/include usr/lib usr/local usr/local/bin usr/local/lib usr/sbin usr/share
    var/cache var/lib var/log var/tmp
    """.split()  # noqa: SIM905 - a table of names reads best as one
)
