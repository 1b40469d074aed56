"""Why a newer version of a named package was not taken. Pure: true statements, the nearest cause first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from imagebuilder.index.simple import IndexFile
from imagebuilder.lock.choose import best_wheel, uploaded_by, why_unfit
from imagebuilder.lock.metadata import Metadata
from imagebuilder.lock.model import PassedOver
from imagebuilder.lock.target import TargetFacts


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was resolved. asked: the stack's requirements and overrides, with whose words they are.

    metadata: of every locked wheel. kept: names whose version the previous lock decided.
    """

    versions: Mapping[NormalizedName, Version]
    asked: Sequence[tuple[str, Requirement]]
    overridden: frozenset[NormalizedName]
    metadata: Mapping[NormalizedName, Metadata]
    kept: frozenset[NormalizedName]
    target: TargetFacts
    as_of: datetime | None


def find_passed_over(
    name: NormalizedName,
    files: Iterable[IndexFile],
    chosen: Chosen,
    read: Callable[[IndexFile], Metadata | None],
) -> tuple[PassedOver | None, str | None]:
    """(the newest version by `as_of` that was not taken, the newest version of all where that is later).

    files: all that the index has of this package. read: METADATA of a wheel that is not locked.
    """
    mine = chosen.versions[name]
    everything = list(files)
    pre = mine.is_prerelease
    newest = max(_versions(everything, pre), default=mine)
    present = uploaded_by(everything, chosen.as_of)
    best = max(_versions(present, pre), default=mine)
    later = str(newest) if newest > max(best, mine) else None
    if best <= mine:
        return None, later
    why = _why_not(name, best, [f for f in present if f.version == best], chosen, read)
    return PassedOver(name=name, version=str(best), chosen=str(mine), why=why), later


def _why_not(
    name: NormalizedName,
    version: Version,
    files: list[IndexFile],
    chosen: Chosen,
    read: Callable[[IndexFile], Metadata | None],
) -> str:
    for origin, requirement in chosen.asked:
        if canonicalize_name(requirement.name) == name and not requirement.specifier.contains(
            version, prereleases=True
        ):
            return f"{origin} {requirement.name}{requirement.specifier}"
    if unfit := why_unfit(files, chosen.target):
        return unfit
    if name not in chosen.overridden and (pin := _pinned_by(name, version, chosen)):
        return pin
    file = best_wheel(files, version, chosen.target)
    metadata = read(file) if file else None
    if metadata and (conflict := _conflict(metadata, chosen)):
        return conflict
    if name in chosen.kept:
        return f"the previous lock has {chosen.versions[name]}; --upgrade={name} looks for newer ones"
    return "it does not go together with the rest of the stack"


def _pinned_by(name: NormalizedName, version: Version, chosen: Chosen) -> str | None:
    """Which locked package refuses this version."""
    for holder, metadata in sorted(chosen.metadata.items()):
        for requirement in metadata.requires:
            if (
                canonicalize_name(requirement.name) == name
                and chosen.target.needs(requirement)
                and not requirement.specifier.contains(version, prereleases=True)
            ):
                return (
                    f"{holder} {chosen.versions[holder]} requires {requirement.name}{requirement.specifier}"
                )
    return None


def _conflict(metadata: Metadata, chosen: Chosen) -> str | None:
    """What this version itself requires and the locked set has not."""
    for requirement in metadata.requires:
        other = canonicalize_name(requirement.name)
        locked = chosen.versions.get(other)
        if (
            locked is not None
            and other not in chosen.overridden
            and chosen.target.needs(requirement)
            and not requirement.specifier.contains(locked, prereleases=True)
        ):
            return f"it requires {requirement.name}{requirement.specifier}, locked is {locked}"
    return None


def _versions(files: Iterable[IndexFile], prereleases: bool) -> set[Version]:
    return {f.version for f in files if prereleases or not f.version.is_prerelease}
