"""Which wheels of a package an index offers for a target, and what that means for a stack. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from packaging.version import Version

from imagebuilder.index.simple import IndexFile, OddFile
from imagebuilder.lock.choose import best_wheel, why_unfit
from imagebuilder.lock.target import TargetFacts

STALE = timedelta(days=45)
"""A nightly older than this is stale: indexes of nightlies are refreshed daily, and emptied after weeks."""

_DATED = re.compile(r"(20\d\d)([01]\d)([0-3]\d)")
_CUDA = re.compile(r"(?<![a-z])cu(\d{2,3})(?!\d)")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The wheel of one version that fits the target best.

    made: when it was uploaded, or the date in a `.devYYYYMMDD` version. cuda: as the version, the name or
    the index's address says it, such as `cu130`; empty: none of them does. size: bytes.
    """

    version: Version
    filename: str
    made: datetime | None
    cuda: str
    size: int | None
    hashed: bool

    def as_json(self) -> dict[str, Any]:
        """For `recon --json`."""
        return {
            "version": str(self.version),
            "filename": self.filename,
            "date": self.made.date().isoformat() if self.made else None,
            "cuda": self.cuda,
            "size": self.size,
            "hash": self.hashed,
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    """One package on one index.

    bound: the stack takes the package from here. fitting, versions: how many versions have a wheel for the
    target, and how many there are. stable, pre: the newest, a pre-release only where it is newer. used:
    the locked version, where it is from here. odd: files that are no wheels or sdists. problem: why there is
    no wheel to show; down: it is that the index does not answer.
    """

    package: str
    index: str
    bound: bool
    versions: int = 0
    fitting: int = 0
    stable: Offer | None = None
    pre: Offer | None = None
    used: str | None = None
    marks: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    problem: str = ""
    down: bool = False

    def as_json(self) -> dict[str, Any]:
        """For `recon --json`."""
        return {
            "package": self.package,
            "index": self.index,
            "bound": self.bound,
            "versions": self.versions,
            "fitting": self.fitting,
            "newest": self.stable.as_json() if self.stable else None,
            "newest-pre-release": self.pre.as_json() if self.pre else None,
            "used": self.used,
            "marks": list(self.marks),
            "odd": list(self.odd),
            "problem": self.problem,
            "down": self.down,
        }


@dataclass(frozen=True, kw_only=True)
class Place:
    """A package on an index, and what is known of it before asking.

    locked: the stack's locked version, from wherever; locked_here: it is from this index. production: the
    version of the lock that is compared with.
    """

    package: str
    index: str
    url: str
    bound: bool
    locked: str | None = None
    locked_here: bool = False
    production: str | None = None


def survey(
    place: Place, files: Sequence[IndexFile], odd: Iterable[OddFile], target: TargetFacts, now: datetime
) -> Row:
    """The row for one package on one index."""
    there = [f for f in files if f.yanked is None]
    versions = sorted({f.version for f in there}, reverse=True)
    offers = [_offer(file, place) for v in versions if (file := best_wheel(there, v, target))]
    stable = next((o for o in offers if not o.version.is_prerelease), None)
    pre = next((o for o in offers if o.version.is_prerelease), None)
    if stable and pre and pre.version < stable.version:
        pre = None
    problem = ""
    if not offers and versions:
        newest = [f for f in there if f.version == versions[0]]
        problem = f"no wheel for the target; {versions[0]}: {why_unfit(newest, target)}"
    return Row(
        package=place.package,
        index=place.index,
        bound=place.bound,
        versions=len(versions),
        fitting=len(offers),
        stable=stable,
        pre=pre,
        used=place.locked if place.locked_here else None,
        marks=tuple(_marks(place, stable, pre, now)),
        odd=tuple(f"{o.filename}: {o.why}" for o in odd),
        problem=problem,
    )


def _offer(file: IndexFile, place: Place) -> Offer:
    dated = _DATED.search(str(file.version.dev)) if file.version.dev is not None else None
    made = file.upload_time
    if made is None and dated:
        made = _date(*map(int, dated.groups()))
    said = (file.version.local or "", place.package, place.url)
    cuda = next((f"cu{match[1]}" for text in said if (match := _CUDA.search(text))), "")
    return Offer(
        version=file.version,
        filename=file.filename,
        made=made,
        cuda=cuda,
        size=file.size,
        hashed=file.sha256 is not None,
    )


def _date(year: int, month: int, day: int) -> datetime | None:
    try:
        return datetime(year, month, day, tzinfo=timezone.utc)
    except ValueError:
        return None


def _marks(place: Place, stable: Offer | None, pre: Offer | None, now: datetime) -> Iterator[str]:
    """What stands out: in use, newer, a nightly, stale, a downgrade. About what one would get from here."""
    best = stable or pre
    if place.locked_here and place.locked:
        yield f"in use: {place.locked}"
    if best is None:
        return
    if place.locked and place.bound and best.version > Version(place.locked):
        yield f"newer than the lock's {place.locked}"
    for known, what in ((place.locked, "the lock"), (place.production, "production")):
        if known and best.version < Version(known):
            yield f"a downgrade from {what}: {known}"
    for offer in (stable, pre):
        if offer and offer.version.is_devrelease:
            age = (now - offer.made).days if offer.made else None
            old = age is not None and age > STALE.days
            yield f"{'stale ' if old else ''}nightly" + (f", {age} days old" if age is not None else "")
