"""Versions: couplings that no METADATA states, nightlies, downgrades, hashes, indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.lock.model import HASH_COMPUTED, Wheel
from imagebuilder.settings import DEFAULT

_STALE_DAYS = 45
_DATE = re.compile(r"(20\d\d)(\d\d)(\d\d)")
_CUDA = re.compile(r"cu(\d+)")

COUPLED = Code(
    code="version.not-coupled",
    severity="error",
    meaning="packages that only work in the same release, though no METADATA says so, are locked in others",
    consequence="the package refuses to start, or calls kernels that are not there",
    remedy="lock the same release of all of them, with overrides where pins are in the way",
    tables=("couplings",),
)
NIGHTLY = Code(
    code="version.nightly",
    severity="warning",
    meaning="a locked wheel is a nightly build",
    consequence="the index removes it after some weeks; a stale one lacks what was released since",
    remedy="a release, or a mirror of one's own that keeps the file",
)
DOWNGRADE = Code(
    code="version.downgrade",
    severity="warning",
    meaning="a package is older than in the lock that is compared with",
    consequence="fixes and features that were there are gone",
    remedy="pin the wanted release in the stack",
)
DISAGREES = Code(
    code="version.name-disagrees",
    severity="warning",
    meaning="a wheel's file name states another version than the METADATA inside it",
    consequence="installers record the inner one: requirements on the local version then look unmet",
    remedy="tell whoever published it; until then trust the file name and waive this",
)
UNHASHED = Code(
    code="index.no-hash",
    severity="note",
    meaning="the index publishes no hash for a wheel; the lock has that of the file as it was then",
    consequence="nobody can tell whether the file was already replaced before locking",
    remedy="nothing: from now on the lock's hash protects it",
)
ELSEWHERE = Code(
    code="index.wrong-index",
    severity="error",
    meaning="a package was locked from another index than the stack lets it come from",
    consequence="another file of the same name may be installed, or another build of it",
    remedy="imagebuilder lock",
)
GONE = Code(
    code="index.file-gone",
    severity="error",
    meaning="the index does not list a locked file any more",
    consequence="the next build on an empty cache cannot have it",
    remedy="keep the file (`imagebuilder fetch`), or `imagebuilder lock --upgrade=NAME`",
)
YANKED = Code(
    code="index.yanked",
    severity="warning",
    meaning="the index has withdrawn (yanked) a locked file",
    consequence="its publisher says not to use it; it can still be installed by its exact version",
    remedy="read the reason, then `imagebuilder lock --upgrade=NAME`, or waive it",
)


def run(subject: Subject) -> Iterator[Finding]:
    """Every locked wheel."""
    for row in subject.tables.couplings:
        yield from _coupling(subject, row)
    for wheel in subject.lock.wheels:
        yield from _nightly(subject, wheel)
        yield from _origin(subject, wheel)
        if wheel.metadata_version:
            yield _finding(
                DISAGREES, wheel, f"{wheel.filename} says version {wheel.metadata_version} inside",
                (f"file name: {wheel.version}", f"METADATA: {wheel.metadata_version}"),
            )  # fmt: skip
    yield from _downgrades(subject)


def _coupling(subject: Subject, row: Mapping[str, Any]) -> Iterator[Finding]:
    first, second = row["packages"]
    if first not in subject.version_of or second not in subject.version_of:
        return
    one, two = Version(subject.version_of[first]), Version(subject.version_of[second])
    if "until" in row and one >= Version(row["until"]):
        return
    pairs = {
        "release": (one.public, two.public),
        "minor-offset": (one.minor + row.get("offset", 0), two.minor),
    }
    wrong = pairs[row["same"]][0] != pairs[row["same"]][1]
    wheel = subject.lock.by_name[second]
    if wrong:
        yield _finding(
            COUPLED, wheel, f"{second} {two} does not go with {first} {one}",
            (f"{first} {one}", f"{second} {two}", row["source"]),
        )  # fmt: skip
    other = row.get("cuda-of", "")
    local, its = (
        _CUDA.search(two.local or ""),
        _CUDA.search(Version(subject.version_of.get(other, "0")).local or ""),
    )
    if local and its and local[1] != its[1]:
        yield _finding(
            COUPLED, wheel, f"{second} {two} is for another CUDA than {other} {subject.version_of[other]}",
            (f"{second} {two}", f"{other} {subject.version_of[other]}"),
        )  # fmt: skip


def _nightly(subject: Subject, wheel: Wheel) -> Iterator[Finding]:
    version = Version(wheel.version)
    if not version.is_devrelease:
        return
    made = wheel.upload_time
    if match := _DATE.search(f"{version.dev}"):
        made = datetime(int(match[1]), int(match[2]), int(match[3]), tzinfo=timezone.utc)
    as_of = subject.lock.as_of
    age = (as_of - made).days if made and as_of else None
    stale = f", {age} days old" if age is not None and age > _STALE_DAYS else ""
    yield _finding(
        NIGHTLY, wheel, f"{wheel.name} {wheel.version} is a nightly build{stale}",
        (f"index {wheel.index}", f"made {made.date()}" if made else "no date"),
    )  # fmt: skip


def _origin(subject: Subject, wheel: Wheel) -> Iterator[Finding]:
    if wheel.hash_origin == HASH_COMPUTED:
        yield _finding(UNHASHED, wheel, f"index {wheel.index} has no hash for {wheel.filename}", ())
    layer = subject.stack.layer_of(wheel.name)
    if layer and layer.index and wheel.url is None and wheel.index != layer.index:
        yield _finding(
            ELSEWHERE, wheel, f"{wheel.name} is bound to index {layer.index}, but is from {wheel.index}",
            (wheel.filename,),
        )  # fmt: skip
    elif wheel.url is None and wheel.index not in _open_to(subject, layer.index if layer else None):
        yield _finding(
            ELSEWHERE, wheel, f"{wheel.name} is from index {wheel.index}, which it is not bound to",
            (wheel.filename,),
        )  # fmt: skip
    if wheel.name in subject.gone:
        what = f"{wheel.filename} is not on the index {wheel.index} any more"
        yield _finding(GONE, wheel, what, (subject.gone[wheel.name],))
    if wheel.name in subject.yanked:
        what = f"{wheel.filename} was yanked from the index {wheel.index}"
        yield _finding(YANKED, wheel, what, (f"its reason: {subject.yanked[wheel.name]}",))


def _open_to(subject: Subject, bound: str | None) -> set[str | None]:
    """The indexes that a package may come from: the one it is bound to, else those that are not explicit."""
    return {bound} if bound else {DEFAULT, *(i.name for i in subject.stack.indexes if not i.explicit)}


def _downgrades(subject: Subject) -> Iterator[Finding]:
    for old in subject.previous.wheels if subject.previous else ():
        new = subject.lock.by_name.get(canonicalize_name(old.name))
        if new and Version(new.version) < Version(old.version):
            yield _finding(
                DOWNGRADE, new, f"{new.name} goes back from {old.version} to {new.version}",
                (f"in the lock of {subject.previous.stack_name}: {old.version}",) if subject.previous else (),
            )  # fmt: skip


def _finding(code: Code, wheel: Wheel, what: str, evidence: tuple[str, ...]) -> Finding:
    return Finding(
        code=code.code,
        severity=code.severity,
        what=what,
        evidence=evidence,
        fix=code.remedy.replace("NAME", wheel.name),
        package=wheel.name,
    )


CHECK = Check(run=run, codes=(COUPLED, NIGHTLY, DOWNGRADE, DISAGREES, UNHASHED, ELSEWHERE, GONE, YANKED))
