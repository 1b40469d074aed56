"""Which locked package needs which: a walk over METADATA with markers and extras. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from imagebuilder.lock.metadata import Metadata
from imagebuilder.lock.target import TargetFacts


@dataclass(frozen=True, kw_only=True)
class Edges:
    """requires, extras: by package. missing: (package, requirement) that the resolver left out."""

    requires: Mapping[NormalizedName, tuple[NormalizedName, ...]]
    extras: Mapping[NormalizedName, tuple[str, ...]]
    missing: tuple[tuple[NormalizedName, str], ...]


def find_edges(
    roots: Iterable[Requirement],
    metadata: Mapping[NormalizedName, Metadata],
    overrides: Iterable[Requirement],
    target: TargetFacts,
) -> Edges:
    """The edges of every locked package, with the extras that some requirement asks for.

    roots: the stack's requirements. overrides replace every requirement on their package, so a package
    that an override's marker removes here is no missing one.
    """
    replaced = {canonicalize_name(o.name): o for o in overrides}
    extras: dict[NormalizedName, frozenset[str]] = {name: frozenset() for name in metadata}
    requires: dict[NormalizedName, set[NormalizedName]] = {name: set() for name in metadata}
    missing: dict[tuple[NormalizedName, str], None] = {}
    pending: list[NormalizedName] = list(metadata)

    def ask(requirement: Requirement) -> NormalizedName:
        name = canonicalize_name(requirement.name)
        asked = requirement.extras | (replaced[name].extras if name in replaced else set())
        wanted = extras.get(name, frozenset()) | {canonicalize_name(extra) for extra in asked}
        if name in extras and wanted != extras[name]:
            extras[name] = wanted
            pending.append(name)
        return name

    for root in roots:
        if target.needs(root):
            ask(root)
    while pending:
        package = pending.pop()
        for requirement in metadata[package].requires:
            if not target.needs(requirement, extras[package]):
                continue
            name = ask(requirement)
            if name == package:
                continue
            if name in metadata:
                requires[package].add(name)
            elif name not in replaced or target.needs(replaced[name]):
                missing[package, str(requirement)] = None
    return Edges(
        requires={name: tuple(sorted(found)) for name, found in requires.items()},
        extras={name: tuple(sorted(found)) for name, found in extras.items()},
        missing=tuple(missing),
    )
