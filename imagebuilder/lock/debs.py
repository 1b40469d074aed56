"""Debian packages in a lock file: one table a package. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from imagebuilder.lock.fields import Bad, Fields
from imagebuilder.lock.model import DebPackage
from imagebuilder.values import Digest


def write_debs(debs: Iterable[DebPackage]) -> list[dict[str, Any]]:
    """As TOML tables, in the same order."""
    return [
        {
            "name": deb.name,
            "version": deb.version,
            "architecture": deb.architecture,
            "path": deb.path,
            "size": deb.size,
            "sha256": deb.sha256.hex,
            "pocket": deb.pocket,
        }
        for deb in debs
    ]


def read_debs(tables: Iterable[Fields]) -> tuple[DebPackage, ...]:
    """From TOML tables. Raises Bad for a field that is wrong or a path that leads out of the archive."""
    return tuple(_deb(table) for table in tables)


def _deb(table: Fields) -> DebPackage:
    path = table.text("path")
    if path.startswith("/") or ".." in path.split("/") or "://" in path or "\0" in path:
        raise Bad(f"tool.imagebuilder.debian: {path!r} is not a path below an archive")
    return DebPackage(
        name=table.text("name"),
        version=table.text("version"),
        architecture=table.text("architecture"),
        path=path,
        size=table.number("size"),
        sha256=table.value("sha256", Digest.from_hex),
        pocket=table.text("pocket"),
    )
