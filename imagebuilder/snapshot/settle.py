"""Every installed distribution against the indexes: equal to a wheel, patched, or why it cannot be locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from packaging.utils import NormalizedName

from imagebuilder.index.parallel import in_parallel
from imagebuilder.progress import Reporter
from imagebuilder.snapshot.compare import Comparison, changes_of, compare, is_foreign, lone_changes
from imagebuilder.snapshot.guess import indexed_version
from imagebuilder.snapshot.installed import WHEEL_OF_IT
from imagebuilder.snapshot.model import LARGEST_FILE, Change, Files, Installed, Package, State
from imagebuilder.snapshot.udiff import MAX_PATCH
from imagebuilder.snapshot.wheels import Answers, Finder, contents
from imagebuilder.stack.model import Index

T = TypeVar("T")
R = TypeVar("R")
_MOST_CANDIDATES = 8
_MOST_BYTES = 256 << 20
"""Of all changed files together: they are held in memory."""


@dataclass(frozen=True, kw_only=True)
class Settling:
    """What settling works with. indexes_of: where to look for a distribution."""

    files: Files
    finder: Finder
    indexes_of: Callable[[Installed], Sequence[Index]]
    reporter: Reporter
    workers: int

    def settle(self, installed: Sequence[Installed]) -> list[Package]:
        """One answer for each, in their order. Raises ArtefactUnusable where the default index does not
        answer.
        """
        found = self._parallel("comparing with the wheels of indexes", self._find, installed)
        compared = {i.name: c for i, c in zip(installed, found, strict=True) if isinstance(c, Comparison)}
        shared = _shared(compared)
        wanted = {
            comparison.candidate.places[member]
            for comparison in compared.values()
            for member, what in comparison.different.items()
            if what in ("changed", "metadata")
        }
        there = self.files.read(self._bounded(sorted(wanted)), LARGEST_FILE)

        def finish(pair: tuple[Installed, Comparison | Package]) -> Package:
            item, answer = pair
            return answer if isinstance(answer, Package) else self._finished(item, answer, there, shared)

        return self._parallel("reading what differs", finish, list(zip(installed, found, strict=True)))

    def _parallel(self, label: str, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return in_parallel(self.reporter, label, work, items, workers=self.workers)

    def _bounded(self, paths: Sequence[str]) -> list[str]:
        left, kept = _MOST_BYTES, []
        for path in paths:
            size = self.files.size(path)
            if size <= left:
                left -= size
                kept.append(path)
        return kept

    def _find(self, item: Installed) -> Comparison | Package:
        """The nearest wheel, or that there is none."""
        if item.problem:
            return _unlockable(item, item.problem, item.fix)
        answers = Answers()
        best: Comparison | None = None
        for number, candidate in enumerate(self.finder.candidates(item, self.indexes_of(item), answers)):
            comparison = compare(item, candidate, self.files)
            if best is None or comparison.distance < best.distance:
                best = comparison
            if best.proven or number + 1 == _MOST_CANDIDATES:
                break
        if best is None:
            why = self.finder.why_none(item, answers) or "the index has no wheel of it for this target"
            return _unlockable(item, why, _fix_of(item, answers))
        if best.unreadable:
            path, why = sorted(best.unreadable.items())[0]
            many = f" and {len(best.unreadable) - 1} more" if len(best.unreadable) > 1 else ""
            return _unlockable(
                item, f"/{path}{many} cannot be read: {why}", "take the snapshot as a user who may read them"
            )
        if is_foreign(best):
            return _unlockable(item, _foreign(item, best), WHEEL_OF_IT)
        return best

    def _finished(
        self,
        item: Installed,
        comparison: Comparison,
        there: Mapping[str, bytes],
        shared: Mapping[str, tuple[str, ...]],
    ) -> Package:
        candidate = comparison.candidate
        members = [m for m, what in comparison.different.items() if what != "extra"]
        inside: Mapping[str, bytes] = {}
        if members:
            inside = contents(self.finder.reading, candidate.measured.file, members, LARGEST_FILE)
        executable = {p: self.files.executable(p) for m in members if (p := candidate.places[m])}
        changes, patch = changes_of(comparison, there, inside, executable, shared)
        if len(patch) > MAX_PATCH:
            changes, patch = _too_much(changes), b""
        changes = (*changes, *lone_changes(item, candidate, self.files))
        state: State = "patched" if any(c.how != "nothing" for c in changes) else "equal"
        return Package(
            installed=item,
            state=state,
            candidate=candidate,
            proven=comparison.proven,
            changes=changes,
            patch=patch,
            notes=tuple(_notes(item, comparison)),
        )


def _shared(compared: Mapping[NormalizedName, Comparison]) -> dict[str, tuple[str, ...]]:
    """Paths that several wheels bring, and by which: the last one that was installed has it."""
    owners: dict[str, list[str]] = {}
    for name, comparison in compared.items():
        for path in comparison.candidate.places.values():
            owners.setdefault(path, []).append(name)
    return {path: tuple(names) for path, names in owners.items() if len(names) > 1}


def _unlockable(item: Installed, problem: str, fix: str) -> Package:
    return Package(installed=item, state="unlockable", problem=problem, fix=fix)


def _fix_of(item: Installed, answers: Answers) -> str:
    if answers.silent:
        return (
            "see that the index answers, or give its mirror's address in the configuration, and take it again"
        )
    return WHEEL_OF_IT


def _foreign(item: Installed, comparison: Comparison) -> str:
    real = sum(what in ("changed", "deleted") for what in comparison.different.values())
    return (
        f"the index's {comparison.candidate.measured.file.filename} is another build of it: {real} of "
        f"{len(comparison.candidate.places)} files differ, and its RECORD is not the installed one"
    )


def _too_much(changes: Iterable[Change]) -> tuple[Change, ...]:
    why = f"the package's patch would have more than {MAX_PATCH} bytes"
    return tuple(replace(c, how="nothing", why=why) if c.how == "patch" else c for c in changes)


def _notes(item: Installed, comparison: Comparison) -> Iterable[str]:
    file = comparison.candidate.measured.file
    if file.yanked is not None:
        reason = f": {file.yanked[:200]}" if file.yanked else ""
        yield f"{file.filename} was yanked from the index{reason}; it is still there, keep a copy of it"
    if item.record is None:
        yield "it has no RECORD: its files were compared with the wheel's"
    elif indexed_version(item.version) != item.version:
        yield f"it is a patched wheel, {item.version}: compared with {file.filename}"
    elif not comparison.proven:
        yield f"its RECORD is not that of {file.filename}: somebody rebuilt it; its files were compared"
    if item.outside:
        first = f"{len(item.outside)} paths outside of the environment, such as {item.outside[0]}"
        yield f"its RECORD names {first}"
