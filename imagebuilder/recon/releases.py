"""Releases of a package on an index: which there are for a target, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.checks.kept import code_of
from imagebuilder.errors import UsageProblem
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.store import MOST_READERS, FactStore
from imagebuilder.facts.tables import alternate_words, driver, layouts, runtimes
from imagebuilder.index.parallel import in_parallel
from imagebuilder.index.simple import Indexes, IndexFile
from imagebuilder.lock.choose import best_wheel
from imagebuilder.lock.target import TargetFacts
from imagebuilder.progress import Reporter
from imagebuilder.recon.matrix import Question, Release, Row, matrix

_KIND = "matrix-1"
_JUDGES = ("facts", "recon", "data", "data/layouts")  # folders whose files decide an answer


def wheels_of(
    indexes: Indexes, requirement: Requirement, index: str, target: TargetFacts, most: int
) -> list[IndexFile]:
    """The wheels of the newest releases that satisfy the requirement and fit the target, newest first.

    Pre-releases count only where the requirement names one; yanked files do not count. UsageProblem where
    nothing is left.
    """
    files = [f for f in indexes.project(requirement.name, index) if f.is_wheel and f.yanked is None]
    versions = sorted({f.version for f in files}, reverse=True)
    allowed = requirement.specifier.filter(versions, prereleases=requirement.specifier.prereleases or False)
    found = []
    for version in sorted(allowed, reverse=True):
        wheel = best_wheel(files, version, target)
        if wheel is not None:
            found.append(wheel)
        if len(found) == most:
            break
    if not found:
        raise UsageProblem(
            f"no release of {requirement} on the index {index!r} has a wheel for CPython {target.python} on "
            f"{target.platform.machine} with glibc {target.glibc}",
            seen=f"{len(versions)} releases with wheels"
            + (f", {versions[0]} the newest" if versions else ""),
            hint="another release, --python or --glibc; --stack STACK takes target and indexes from a stack",
        )
    return found


def ask(
    package: IndexFile,
    releases: Sequence[IndexFile],
    target: TargetFacts,
    store: FactStore,
    reporter: Reporter,
    *,
    full: bool,
    workers: int,
) -> list[Row]:
    """Read what must be read, and answer. full: every library whole, else fronts and small libraries.

    An answer is kept under the hashes of all that decides it, so asking again reads and judges nothing.
    """
    key = _key(package, releases, target, full)
    found = _kept(store, key)
    if found is None:
        found = _judged(package, releases, target, store, reporter, full=full, workers=workers)
        if all(file.sha256 for file in (package, *releases)):
            store.cache.write_record(_KIND, key, json.dumps([asdict(row) for row in found]).encode())
    return found


def _key(package: IndexFile, releases: Sequence[IndexFile], target: TargetFacts, full: bool) -> str:
    said = [f"{file.name} {file.filename} {file.sha256}" for file in (package, *releases)]
    return "\0".join([*said, repr(target), str(full), code_of(_JUDGES)])


def _kept(store: FactStore, key: str) -> list[Row] | None:
    record = store.cache.read_record(_KIND, key)
    if record is None:
        return None
    try:
        return [_row(fields) for fields in json.loads(record)]
    except (ValueError, TypeError, KeyError):
        return None  # a damaged record: answered again


def _row(fields: dict[str, Any]) -> Row:
    instead = tuple((name, near) for name, near in fields["instead"])
    listed = {name: tuple(fields[name]) for name in ("missing", "unchecked")}
    return Row(**{**fields, **listed, "instead": instead})


def _judged(
    package: IndexFile,
    releases: Sequence[IndexFile],
    target: TargetFacts,
    store: FactStore,
    reporter: Reporter,
    *,
    full: bool,
    workers: int,
) -> list[Row]:
    with reporter.task(f"reading {package.filename}", unit="wheel"):
        facts = (
            _whole(store, package)
            if full
            else store.front(package.sha256, package.filename, lambda: package.url)
        )
    needed = frozenset(n for elf in facts.elf.values() for n in elf.needed)

    def read(file: IndexFile) -> Release:
        if full:
            found = _whole(store, file)
        else:
            found = store.front(file.sha256, file.filename, lambda: file.url, needed)
        return Release(version=str(file.version), facts=found, complete=full)

    label = f"reading {releases[0].name}"
    workers = min(workers, MOST_READERS) if full else workers
    read_releases = in_parallel(reporter, label, read, releases, workers=workers, unit="release")
    question = Question(
        package=canonicalize_name(package.name),
        facts=facts,
        against=canonicalize_name(releases[0].name),
        python=target.python.parts,
        layouts=layouts(),
        words=alternate_words(),
        runtimes=runtimes(),
        driver=driver(),
    )
    return matrix(question, read_releases)


def _whole(store: FactStore, file: IndexFile) -> WheelFacts:
    facts = store.wheel(file.sha256, file.filename, lambda: file.url)
    if facts is None:
        raise UsageProblem(f"{file.filename} is not here", hint="run again without --offline")
    return facts
