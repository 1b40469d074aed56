"""Crashes that no symbol shows: a type changed its layout, and two sides were built against different ones.

Which generation a build belongs to is decided by symbols that exist in one generation only, first those of
the library itself, then by what its METADATA pins, then by symbols of the whole wheel, at last by what its
makers say elsewhere. Where nothing tells, the answer is "unknown". Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.facts.elf import ElfFacts
from imagebuilder.facts.record import WheelFacts

Generation = Literal["before", "after", "unknown"]
WIDTH = 5  # bytes of a marker: over the few thousand names of an extension, one false hit in 10^5


@dataclass(frozen=True, kw_only=True)
class Markers:
    """Sorted marker hashes of names that exist in one generation only."""

    before: bytes
    after: bytes

    @classmethod
    def parse(cls, data: bytes) -> Markers:
        """From a file: the number of `before` markers (4 bytes), those, then the `after` ones."""
        end = 4 + WIDTH * int.from_bytes(data[:4], "little")
        if len(data) < end or (len(data) - 4) % WIDTH:
            raise ValueError("not a file of layout markers")
        return cls(before=data[4:end], after=data[end:])

    @classmethod
    def make(cls, before: Iterable[bytes], after: Iterable[bytes]) -> bytes:
        """The file for these names."""
        first, second = sorted({marker(n) for n in before}), sorted({marker(n) for n in after})
        return len(first).to_bytes(4, "little") + b"".join(first) + b"".join(second)

    def generation(self, names: Iterable[str]) -> Generation:
        """To which generation a build belongs that wants these names."""
        before = after = False
        for name in names:
            hashed = marker(name.encode())
            before = before or _contains(self.before, hashed)
            after = after or _contains(self.after, hashed)
        return "unknown" if before == after else "before" if before else "after"


@dataclass(frozen=True, kw_only=True)
class Built:
    """For which release of another package these versions of one were built, as their makers say."""

    package: str
    versions: SpecifierSet
    against: Version


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One change of a type's layout (data/layouts.toml). built: of wheels that do not tell it themselves."""

    type: str
    package: str
    changed_in: Version
    users: re.Pattern[str]
    markers: Markers
    built: tuple[Built, ...] = ()

    def generation_of(self, version: Version) -> Generation:
        """The generation that a release of the package belongs to."""
        return "before" if Version(version.base_version) < self.changed_in else "after"


def marker(name: bytes) -> bytes:
    """The hash by which a name is kept."""
    return blake2b(name, digest_size=WIDTH).digest()


def generation_of_build(layout: Layout, wheel: WheelFacts, member: ElfFacts) -> Generation:
    """Against which generation this library of this wheel was built."""
    own = layout.markers.generation(w.name for w in member.wanted)
    if own != "unknown":
        return own
    pinned = _pinned(layout, wheel.metadata)
    if pinned != "unknown":
        return pinned
    whole = layout.markers.generation(w.name for elf in wheel.elf.values() for w in elf.wanted)
    return whole if whole != "unknown" else _said(layout, wheel.metadata)


def uses(layout: Layout, member: ElfFacts) -> bool:
    """Does this library pass the type to the package?"""
    return any(layout.users.search(w.name) for w in member.wanted if not w.weak)


@dataclass(frozen=True, kw_only=True)
class LayoutRisk:
    """A library that passes a type whose layout is another (`crash`), or may be another, where it runs."""

    layout: Layout
    built: Generation
    runs: Generation

    @property
    def crash(self) -> bool:
        """True where both generations are known."""
        return self.built != "unknown"


def risks(
    layouts: Iterable[Layout], wheel: WheelFacts, member: ElfFacts, version_of: dict[str, str]
) -> Iterator[LayoutRisk]:
    """Layouts that this library would meet in another generation; `version_of` has what is installed."""
    for layout in layouts:
        installed = version_of.get(layout.package)
        if installed is None or not uses(layout, member):
            continue
        runs = layout.generation_of(Version(installed))
        built = generation_of_build(layout, wheel, member)
        if built != runs:
            yield LayoutRisk(layout=layout, built=built, runs=runs)


def _pinned(layout: Layout, metadata: str) -> Generation:
    """The generation of the one release that METADATA allows, where it pins one."""
    for text in parse_email(metadata)[0].get("requires_dist", ()):
        try:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) != layout.package or requirement.marker:
                continue
            for specifier in requirement.specifier:
                if specifier.operator == "==":
                    return layout.generation_of(Version(specifier.version.removesuffix(".*")))
        except (InvalidRequirement, InvalidVersion):
            continue
    return "unknown"


def _said(layout: Layout, metadata: str) -> Generation:
    """The generation of the release that the makers name for this version."""
    fields = parse_email(metadata)[0]
    name, version = canonicalize_name(fields.get("name", "")), fields.get("version", "")
    for row in layout.built:
        with suppress(InvalidVersion):
            if row.package == name and row.versions.contains(Version(version), prereleases=True):
                return layout.generation_of(row.against)
    return "unknown"


def _contains(table: bytes, hashed: bytes) -> bool:
    at = bisect_left(range(len(table) // WIDTH), hashed, key=lambda i: table[i * WIDTH : (i + 1) * WIDTH])
    return table[at * WIDTH : (at + 1) * WIDTH] == hashed
