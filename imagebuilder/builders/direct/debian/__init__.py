"""Debian packages → one layer, without root, without dpkg, without running a maintainer script."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from imagebuilder.builders.direct.debian.accounts import missing_accounts
from imagebuilder.builders.direct.debian.database import kept_paths, write_database
from imagebuilder.builders.direct.debian.effects import apply_effects
from imagebuilder.builders.direct.debian.lower import EMPTY, Lower
from imagebuilder.builders.direct.debian.tree import Tree
from imagebuilder.builders.direct.debian.unpack import Unpacked, unpack_all
from imagebuilder.index.debian_packages import installed
from imagebuilder.lock.model import DebPackage
from imagebuilder.oci.layer import LayerWriter

__all__ = ["IDENTITY", "write_debian_layer"]

IDENTITY = "debian-1"
"""Raised whenever this package makes other bytes from the same packages; part of every content key."""


def write_debian_layer(
    writer: LayerWriter,
    debs: Sequence[tuple[DebPackage, Path]],
    *,
    lower: Lower = EMPTY,
    spool: Path | None = None,
    workers: int = 1,
    advance: Callable[[int], None] = lambda size: None,
    remark: Callable[[str], None] = lambda text: None,
) -> None:
    """Unpacks the packages, in their order, into one tree and writes it, sorted by path.

    debs: with each package's file, its sha256 already verified. lower: what the layer will lie on.
    spool: a folder for the unpacked archives while this runs (about the size of the layer's tar).
    workers: threads that decompress. advance: told the bytes of each .deb when it is unpacked.
    remark: told what the layer will lack, because a script that would have made it is not run.
    Files keep the times of their packages; what is made here gets the newest of these, so that the bytes
    depend on the packages only. ArtefactUnusable: a bad package; BuildFailed: packages that collide.
    """
    with tempfile.TemporaryDirectory(dir=spool, prefix="debian-") as folder:
        packages = unpack_all(debs, Path(folder), workers, advance)
        tree = merge(packages, lower)
        apply_effects(tree, {package.name: package for package in packages})
        for text in missing_accounts(packages):
            remark(text)
        write_database(tree, packages)
        tree.write(writer)


def merge(packages: Sequence[Unpacked], lower: Lower = EMPTY) -> Tree:
    """The packages' paths as one tree, by dpkg's rules, without anything that is made here."""
    mtime = max((entry.mtime for package in packages for entry in package.entries), default=0)
    tree = Tree(mtime, lower)
    by_name = {package.name: package for package in packages}
    versions = {deb.name: deb.version for deb in installed(lower.data("var/lib/dpkg/status") or b"")}
    versions |= {package.name: package.deb.version for package in packages}

    def replaces(name: str, other: str) -> bool:
        package = by_name.get(name)
        return package is not None and package.replaces(other, versions[other])

    left_out: dict[str, set[str]] = {}
    for package in packages:
        for entry in package.entries:
            if entry.name and not tree.add(entry, replaces):
                left_out.setdefault(package.name, set()).add(entry.name)
    tree.merge_usr()
    lost: dict[str, set[str]] = {}
    for name, path in tree.lost:
        lost.setdefault(name, set()).add(path)
    for package in packages:
        package.kept = kept_paths(package, left_out.get(package.name, set()), lost)
    return tree
