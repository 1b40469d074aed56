"""Asks every index about every package at once; an index that is down is a line of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.http import NotFound
from imagebuilder.index.parallel import in_parallel
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.model import Lock
from imagebuilder.lock.target import TargetFacts
from imagebuilder.progress import Reporter
from imagebuilder.recon.survey import Offer, Place, Row, survey
from imagebuilder.settings import DEFAULT
from imagebuilder.stack.model import Stack


def places_of_stack(
    stack: Stack, indexes: Indexes, lock: Lock | None, production: Lock | None
) -> Iterator[Place]:
    """Every package that the stack names, on every index that it has."""
    open_to_all = {index.name for index in stack.indexes if not index.explicit} | {DEFAULT}
    names: dict[str, str | None] = {}
    for layer in stack.layers:
        names.update({canonicalize_name(r.name): layer.index for r in layer.requirements})
    for package, index in {**names, **{o.package: names.get(o.package) for o in stack.overrides}}.items():
        bound_to = {index} if index else open_to_all
        yield from _places(package, indexes, bound_to, lock, production)


def places_of(
    requirements: Iterable[Requirement], indexes: Indexes, lock: Lock | None, production: Lock | None
) -> Iterator[Place]:
    """These packages on every index."""
    for requirement in requirements:
        yield from _places(canonicalize_name(requirement.name), indexes, set(indexes.names), lock, production)


def ask(
    places: Sequence[Place],
    indexes: Indexes,
    target: TargetFacts,
    reporter: Reporter,
    *,
    now: datetime,
    workers: int,
) -> list[Row]:
    """The rows, in the order of the places."""

    def one(place: Place) -> Row:
        return _ask(place, indexes, target, now)

    return in_parallel(reporter, "asking indexes", one, places, workers=workers, unit="page")


def _places(
    package: str, indexes: Indexes, bound_to: set[str], lock: Lock | None, production: Lock | None
) -> Iterator[Place]:
    locked = lock.by_name.get(package) if lock else None
    there = production.by_name.get(package) if production else None
    for index in indexes.names:
        yield Place(
            package=package,
            index=index,
            url=indexes.url_of(index),
            bound=index in bound_to,
            locked=locked.version if locked else None,
            locked_here=locked is not None and locked.index == index,
            production=there.version if there else None,
        )


def _ask(place: Place, indexes: Indexes, target: TargetFacts, now: datetime) -> Row:
    nothing = Row(package=place.package, index=place.index, bound=place.bound)
    try:
        files = indexes.project(place.package, place.index)
        row = survey(place, files, indexes.odd_files(place.package, place.index), target, now)
        by_name = {f.filename: f for f in files}

        def sized(offer: Offer | None) -> Offer | None:
            if offer is None or offer.size is not None:
                return offer
            return replace(offer, size=indexes.size_of(by_name[offer.filename]))

        return replace(row, stable=sized(row.stable), pre=sized(row.pre))
    except NotFound:
        return replace(nothing, problem="not on this index")
    except ArtefactUnusable as error:  # unreachable, denied, no Simple API
        problem = f"{error.what}: {error.seen}" if error.seen else error.what
        return replace(nothing, problem=problem, down=True)
