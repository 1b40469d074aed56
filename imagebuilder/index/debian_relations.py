"""Debian's relations between packages (`libc6 (>= 2.36) | libc0`) and versions. Source: Debian Policy §7."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from imagebuilder.errors import ArtefactUnusable

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9+.-]*")  # apt is laxer than Policy §5.6.1 about capitals
_OPERATORS = {"<<", "<=", "=", ">=", ">>", "<", ">"}


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One alternative: a package, and a version bound where `operator` is not empty."""

    name: str
    operator: str = ""
    version: str = ""
    qualifier: str = ""  # `any`, `native` or an architecture

    def holds(self, version: str | None) -> bool:
        """Whether a package (or a Provides) of this version satisfies it; None is an unversioned Provides."""
        if not self.operator:
            return True
        if version is None:
            return False
        order = compare(version, self.version)
        return {
            "<<": order < 0,
            "<=": order <= 0,
            "<": order <= 0,  # obsolete spellings mean `or equal`
            "=": order == 0,
            ">": order >= 0,
            ">=": order >= 0,
            ">>": order > 0,
        }[self.operator]

    def __str__(self) -> str:
        return self.name + (f" ({self.operator} {self.version})" if self.operator else "")


Relations = tuple[tuple[Relation, ...], ...]


@lru_cache(maxsize=8192)
def _version(text: str) -> Any:
    from debian.debian_support import NativeVersion

    try:
        return NativeVersion(text)
    except ValueError as error:
        raise ArtefactUnusable(f"{text!r} is not a Debian version: {error}") from None


def compare(left: str, right: str) -> int:
    """Negative, zero or positive, as dpkg orders versions (Policy §5.6.12)."""
    a, b = _version(left), _version(right)
    return -1 if a < b else int(a > b)


@lru_cache(maxsize=4096)
def parse_relations(text: str) -> Relations:
    """All of the outer tuple must hold, one of each inner tuple is enough. Malformed: ArtefactUnusable."""
    from debian.deb822 import PkgRelation

    if not text.strip():
        return ()
    groups: list[tuple[Relation, ...]] = []
    for group in PkgRelation.parse_relations(text):
        alternatives: list[Relation] = []
        for found in group:
            operator, version = found["version"] or ("", "")
            name = str(found["name"])
            if not _NAME.fullmatch(name) or (operator and operator not in _OPERATORS):
                raise ArtefactUnusable(f"{text!r} is not a relation between Debian packages")
            alternatives.append(
                Relation(
                    name=name, operator=operator, version=str(version), qualifier=str(found["archqual"] or "")
                )
            )
        groups.append(tuple(alternatives))
    return tuple(groups)
