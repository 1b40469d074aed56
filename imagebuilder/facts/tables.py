"""The tables of the field that are not in artefacts (data/*.toml, each with source and date), as values."""

from __future__ import annotations

import re
from array import array
from functools import cache
from importlib.resources import files
from typing import Any

import tomli
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagebuilder.facts.environment import Runtime
from imagebuilder.facts.exports import Exports
from imagebuilder.facts.filesystem import Assumed
from imagebuilder.facts.layouts import Built, Layout, Markers


def table(name: str) -> dict[str, Any]:
    """One table of imagebuilder/data."""
    return tomli.loads((files("imagebuilder") / "data" / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def runtimes() -> tuple[Runtime, ...]:
    """Packages whose import loads libraries."""
    return tuple(
        Runtime(
            package=row["package"],
            module=row["module"],
            function=row["function"],
            everywhere=tuple(row["everywhere"]),
            modules=tuple(row["modules"]),
            folders=tuple(row["folders"]),
            major_of=row["major-of"],
        )
        for row in table("runtimes")["runtime"]
    )


@cache
def driver() -> tuple[Assumed, ...]:
    """Libraries that the host's GPU driver brings."""
    return tuple(
        Assumed(soname=row["soname"], provider="driver", symbols=row["symbols"])
        for row in table("driver")["library"]
    )


@cache
def layouts() -> tuple[Layout, ...]:
    """Types that changed their layout."""
    folder, rows = files("imagebuilder") / "data" / "layouts", table("layouts")
    built = [
        (
            row["on"],
            Built(
                package=row["package"],
                versions=SpecifierSet(row["versions"]),
                against=Version(row["against"]),
            ),
        )
        for row in rows["built"]
    ]
    return tuple(
        Layout(
            type=row["type"],
            package=row["package"],
            changed_in=Version(row["changed-in"]),
            users=re.compile(row["users"]),
            markers=Markers.parse((folder / row["markers"]).read_bytes()),
            built=tuple(said for package, said in built if package == row["package"]),
        )
        for row in rows["layout"]
    )


@cache
def system_names() -> Exports:
    """Names that C and C++ libraries of a Linux system define (made by scripts/write-system-names)."""
    data = (files("imagebuilder") / "data" / "system-names.bin").read_bytes()
    return Exports(plain=array("Q", data), versioned=array("Q"), has_versions=False)


@cache
def alternate_words() -> tuple[str, ...]:
    """Names of backends by which alternatives in a wheel differ."""
    return tuple(table("alternates")["words"])
