"""The file system that an image's layers add up to, as plain values to compare."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable
from pathlib import Path

from imagebuilder.oci.image import Image

Node = tuple[object, ...]


def tree_of(image: Image) -> dict[str, Node]:
    """path → (kind, mode, uid, gid, sha256 or link). Times are left out."""
    return tree_of_layers(layer.path for layer in image.layers if layer.path)


def tree_of_layers(layers: Iterable[Path]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for layer in layers:
        with tarfile.open(layer) as archive:
            for member in archive:
                _add(found, archive, member)
    return found


def _add(found: dict[str, Node], archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = member.name.removeprefix("./").strip("/")
    parent, _, name = path.rpartition("/")
    if name == ".wh..wh..opq":
        _remove_below(found, parent)
        return
    if name.startswith(".wh."):
        gone = f"{parent}/{name.removeprefix('.wh.')}".strip("/")
        _remove_below(found, gone)
        found.pop(gone, None)
        return
    owner = (member.mode & 0o7777, member.uid, member.gid)
    if member.isdir():
        if found.get(path, ("dir",))[0] != "dir":
            _remove_below(found, path)
        found[path] = ("dir", *owner)
    elif member.issym():
        found[path] = ("link", *owner, member.linkname)
    elif member.islnk():
        found[path] = found[member.linkname.removeprefix("./").strip("/")]
    elif member.isreg():
        content = archive.extractfile(member)
        assert content is not None
        found[path] = ("file", *owner, hashlib.file_digest(content, "sha256").hexdigest())
    else:
        found[path] = ("special", *owner, member.type)


def _remove_below(found: dict[str, Node], path: str) -> None:
    for other in [p for p in found if p.startswith(f"{path}/")]:
        del found[other]


def differences(first: dict[str, Node], second: dict[str, Node]) -> list[str]:
    """One line for each path that differs."""
    return [
        f"{path}: {first.get(path)} / {second.get(path)}"
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    ]
