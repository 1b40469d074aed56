"""Which indexes may have what is installed: the default one, those of the version's CUDA build, the user's.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from imagebuilder.lock.model import DEFAULT_INDEX
from imagebuilder.snapshot.model import Installed
from imagebuilder.stack.model import Index

_PATCHED = re.compile(r"^(?P<version>.+?)[+.]patched\.[0-9a-f]{8}$")


@dataclass(frozen=True, kw_only=True)
class VendorIndex:
    """A row of data/indexes.toml."""

    name: str
    url: str
    variant: re.Pattern[str]
    packages: frozenset[str]
    nightly: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> VendorIndex:
        """From the table's row."""
        return cls(
            name=row["name"],
            url=row["url"],
            variant=re.compile(row["variant"]),
            packages=frozenset(row.get("packages", ())),
            nightly=row.get("nightly", False),
        )


def indexed_version(installed: str) -> str:
    """As an index knows it: a wheel that imagebuilder patched says so in its version."""
    match = _PATCHED.match(installed)
    return match["version"] if match else installed


def guess_indexes(
    installed: Installed, vendors: Iterable[VendorIndex], own: Sequence[Index]
) -> tuple[Index, ...]:
    """The indexes to look on, in order: those that the version's local part means first.

    own: the user's, asked before the default one. The default index is `Index(name="default", url="")`.
    """
    try:
        version = Version(indexed_version(installed.version))
    except InvalidVersion:
        return ()
    default = Index(name=DEFAULT_INDEX, url="")
    local = version.local or ""
    found: dict[str, Index] = {}
    for vendor in vendors:
        match = vendor.variant.match(local)
        if not match or (vendor.packages and installed.name not in vendor.packages):
            continue
        if vendor.nightly != version.is_devrelease and not vendor.packages:
            continue
        name = vendor.name.format(variant=match[0].replace(".", "-"))
        found[name] = Index(name=name, url=vendor.url.format(variant=match[0]), explicit=True)
    vendors_first = sorted(found.values(), key=lambda index: index.name.startswith("pytorch"))
    return (*own, *vendors_first, default)
