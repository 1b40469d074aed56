"""The libraries of a base that was not read, as far as its name and the stack's packages tell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from imagebuilder.checks.tables import Tables
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.exports import NO_EXPORTS
from imagebuilder.facts.filesystem import Assumed
from imagebuilder.stack.model import DebianBase, ImageBase, Stack


def base_name(stack: Stack) -> str:
    """By which tables know a base: a Debian suite, or an image by repository and tag."""
    if isinstance(stack.base, DebianBase):
        return stack.base.suite
    if isinstance(stack.base, ImageBase):
        return f"{stack.base.ref.repository}:{stack.base.ref.tag or ''}"
    return ""


def assumed_system(stack: Stack, tables: Tables) -> SystemFacts:
    """What data/systems.toml knows of such a base, and of the packages that the stack adds to it."""
    name = base_name(stack)
    newest: tuple[tuple[str, tuple[int, ...]], ...] = ()
    packages: set[str] = set()
    for row in tables.systems["system"]:
        if re.search(row["pattern"], name):
            packages.update(row["packages"])
            newest = tuple(
                (family, tuple(int(part) for part in text.split(".")))
                for family, text in row["newest"].items()
            )
    packages |= _added(stack, tables)
    sonames = {soname for soname, package in tables.sonames.items() if package in packages}
    sonames.update(_toolkit(name, tables))
    triplet = stack.target.platform.triplet
    return SystemFacts(
        assumed=_assumed(sonames, newest, tables),
        default_dirs=(f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib"),
        lib=f"lib/{triplet}",
    )


def assumed_packages(stack: Stack, tables: Tables) -> dict[str, Assumed]:
    """What the packages that the stack adds to a base bring, by library name."""
    packages = _added(stack, tables)
    return _assumed({soname for soname, package in tables.sonames.items() if package in packages}, (), tables)


def _added(stack: Stack, tables: Tables) -> set[str]:
    return _with_implied({p.partition("=")[0] for p in stack.system.packages}, tables)


def _assumed(
    sonames: set[str], newest: tuple[tuple[str, tuple[int, ...]], ...], tables: Tables
) -> dict[str, Assumed]:
    return {
        s: Assumed(
            soname=s,
            provider="system",
            symbols=_own_names(s, tables),
            newest=newest,
            names=tables.system_names if tables.sonames.get(s) in tables.systems["named"] else NO_EXPORTS,
        )
        for s in sorted(sonames)
    }


def _own_names(soname: str, tables: Tables) -> str:
    """What such a library may define for a reference without a version: names that begin as it is called."""
    row: Mapping[str, Any] = next((r for r in tables.systems["package"] if soname in r["sonames"]), {})
    stem = re.split(r"[^A-Za-z]", soname.removeprefix("lib").partition(".so")[0])[0]
    return str(row.get("symbols") or (f"(?i){stem}" if len(stem) > 1 else "(?!)"))


def _with_implied(packages: set[str], tables: Tables) -> set[str]:
    found = set(packages)
    for row in tables.systems.get("implied", ()):
        if any(re.fullmatch(row["pattern"], package) for package in packages):
            found.update(row["packages"])
    return found


def _toolkit(name: str, tables: Tables) -> Iterator[str]:
    for row in tables.systems.get("toolkit", ()):
        match = re.search(row["pattern"], name)
        if match:
            yield from (soname.format(**match.groupdict()) for soname in row["sonames"])
