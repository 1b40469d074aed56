"""Which releases of one package another can load with. Pure.

A release may be known only in part: some small libraries read, the others by name. Those others are then
taken to define whatever is asked of them, except what provably is not there: a name that other releases
export from a library that was read, or whose function is exported with other parameters.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from imagebuilder.facts.alternates import groups, importable
from imagebuilder.facts.elf import Wanted
from imagebuilder.facts.environment import PYTHON, Environment, Runtime, SystemFacts
from imagebuilder.facts.exports import symbol_hash
from imagebuilder.facts.filesystem import Assumed
from imagebuilder.facts.layouts import Layout
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.verdict import Verdict, judge

Answer = Literal["loads", "fails", "unknown"]
_SHARED = re.compile(r"\.so(\.[\w.]+)?$")
_NESTED = re.compile(rb"_Z(?:T[VIS])?N[KVRO]*")
_IDENTIFIER = re.compile(rb"\d+")
_ORDER: dict[Answer, int] = {"fails": 0, "unknown": 1, "loads": 2}


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of the package that is asked about. complete: all its libraries were read."""

    version: str
    facts: WheelFacts
    complete: bool

    def exports(self, name: str) -> bool:
        """Does a library that was read export this name?"""
        hashed = symbol_hash(name.encode())
        return any(elf.exports.has_plain(hashed) for elf in self.facts.elf.values())

    def homes(self, name: str) -> Iterator[str]:
        """File names of the libraries that were read and export this name."""
        hashed = symbol_hash(name.encode())
        for path, elf in self.facts.elf.items():
            if elf.exports.has_plain(hashed):
                yield posixpath.basename(path)

    @cached_property
    def unread(self) -> set[str]:
        """File names of the libraries that were not read."""
        shared = {path for path in self.facts.files if _SHARED.search(path)}
        return {posixpath.basename(path) for path in shared - self.facts.elf.keys()}


class _Names:
    """What the libraries of a release that were read export: large, so only one release's at a time."""

    def __init__(self, release: Release) -> None:
        self._sorted = sorted({name for elf in release.facts.elf.values() for name in elf.names()})

    def begin(self, prefix: bytes) -> list[bytes]:
        """Those that begin so, some of them."""
        at = bisect_left(self._sorted, prefix)
        return [name for name in self._sorted[at : at + 8] if name.startswith(prefix)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The answer for one release. missing: libraries and symbols, the loader's first one first.

    unchecked: symbols that were taken for granted because their library was not read. instead: what the
    release exports under the name of a missing symbol. because: in words, where symbols do not say it.
    """

    version: str
    verdict: Answer
    missing: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    instead: tuple[tuple[str, str], ...] = ()
    because: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `matrix --json`."""
        return {
            "version": self.version,
            "verdict": self.verdict,
            "missing": list(self.missing),
            "unchecked": list(self.unchecked),
            "instead": dict(self.instead),
            "because": self.because,
        }


@dataclass(frozen=True, kw_only=True)
class Question:
    """Can `package` load beside releases of `against`, under this Python?"""

    package: str
    facts: WheelFacts
    against: str
    python: tuple[int, ...]
    layouts: Sequence[Layout] = ()
    words: Sequence[str] = ()
    runtimes: Sequence[Runtime] = ()
    driver: Sequence[Assumed] = ()

    @cached_property
    def members(self) -> list[str]:
        """The libraries of the package that this Python can load."""
        return [p for p in self.facts.elf if importable(p, self.python)]

    @cached_property
    def wanted(self) -> list[Wanted]:
        """What they want of others: strong, referred to, and not of a named library, each name once."""
        own = [elf.exports for elf in self.facts.elf.values()]
        found = {
            w.name: w
            for path in self.members
            for w in self.facts.elf[path].wanted
            if not w.weak and w.referenced and not w.file
            if not any(a.defines(w) for a in (PYTHON, *self.driver))
        }
        return [w for w in found.values() if not any(e.has_plain(symbol_hash(w.name.encode())) for e in own)]


def matrix(question: Question, releases: Sequence[Release]) -> list[Row]:
    """One row for each release, in their order."""
    at_home = {w.name: {h for r in releases for h in r.homes(w.name)} for w in question.wanted}
    return [_row(question, release, at_home) for release in releases]


def _row(question: Question, release: Release, at_home: Mapping[str, set[str]]) -> Row:
    names = _Names(release)
    gone = {w.name for w in question.wanted if _is_gone(w.name, release, names, at_home)}
    environment = _environment(question, release, gone)
    process = environment.start()
    answers = []
    for group in groups(question.members, question.words):
        verdicts = [
            judge(
                environment,
                process,
                question.package,
                member,
                layouts=question.layouts,
                version_of={question.against: release.version},
            )
            for member in group
        ]
        answers.append(max(verdicts, key=lambda v: _ORDER[_answer(v)]))
    worst: Answer = min((_answer(v) for v in answers), key=_ORDER.__getitem__, default="loads")
    bad = [v for v in answers if _answer(v) == worst != "loads"]
    missing = tuple(dict.fromkeys(name for v in bad for name in _missing(v)))
    return Row(
        version=release.version,
        verdict=worst,
        missing=missing,
        unchecked=()
        if release.complete
        else tuple(
            sorted(w.name for w in question.wanted if w.name not in gone and not release.exports(w.name))
        ),
        instead=tuple((name, near) for name in missing if (near := _instead(name, names)) and near != name),
        because=next((text for v in bad if (text := _because(v))), ""),
    )


def _environment(question: Question, release: Release, gone: set[str]) -> Environment:
    """The two wheels; what was not read of them, and everything else, is assumed, without what is gone."""
    ours = {posixpath.basename(p) for p in question.facts.files if _SHARED.search(p)}
    theirs = {posixpath.basename(p) for p in release.facts.files if _SHARED.search(p)}
    read = {posixpath.basename(p) for p in (*release.facts.elf, *question.facts.elf)}
    brought = {n for elf in release.facts.elf.values() for n in elf.needed} - theirs
    stems = {_stem(name) for name in brought}
    needed = {n for elf in question.facts.elf.values() for n in elf.needed} - ours - theirs
    elsewhere = {n for n in needed if n in brought or _stem(n) not in stems}
    assumed = {
        name: Assumed(soname=name, provider="assumed", without=frozenset(gone))
        for name in ((ours | theirs) - read) | brought | elsewhere
    }
    return Environment(
        {question.package: question.facts, question.against: release.facts},
        SystemFacts(assumed=assumed),
        question.driver,
        question.runtimes if release.complete else (),
    )


def _is_gone(name: str, release: Release, names: _Names, at_home: Mapping[str, set[str]]) -> bool:
    """Is it proven that this release does not have the name? at_home: libraries that define it in others."""
    if release.exports(name):
        return False
    scope, function = _scope(name.encode())
    same_scope = bool(scope) and bool(names.begin(scope))
    if homes := at_home[name]:
        return release.complete or (same_scope and not homes & release.unread)
    return bool(function and names.begin(function)) or (release.complete and same_scope)


def _scope(name: bytes) -> tuple[bytes, bytes]:
    """(prefix of its namespace or class, prefix of all that share its function's name); empty: none."""
    match = _NESTED.match(name)
    if not match:
        word = name.partition(b"_")[0]
        return (word + b"_" if b"_" in name[1:] and len(word) > 2 and not name.startswith(b"_") else b""), b""
    at = before = match.end()
    while digits := _IDENTIFIER.match(name, at):
        before, at = at, digits.end() + int(digits.group())
    return (name[:before] if before > match.end() else b""), (name[:at] if before > match.end() else b"")


def _answer(verdict: Verdict) -> Answer:
    return {"loads": "loads", "unknown": "unknown"}.get(verdict.kind, "fails")  # type: ignore[return-value]


def _missing(verdict: Verdict) -> Iterator[str]:
    outcome = verdict.outcome
    yield from (m.name for m in outcome.libraries)
    yield from (m.version for m in outcome.versions)
    yield from (m.symbol.name for m in outcome.symbols)


def _instead(name: str, names: _Names) -> str:
    function = _scope(name.encode())[1]
    found = names.begin(function) if function else []
    return found[0].decode("utf-8", "replace") if found else ""


def _because(verdict: Verdict) -> str:
    for risk in verdict.risks:
        layout = risk.layout
        built = {"before": f"before {layout.changed_in}", "after": f"from {layout.changed_in} on"}
        return (
            f"{layout.type} changed its layout in {layout.package} {layout.changed_in}; "
            f"{posixpath.basename(verdict.path)} was built for {layout.package} "
            f"{built.get(risk.built, 'of an unknown release')}"
        )
    return ""


def _stem(name: str) -> str:
    return name.partition(".so")[0]
