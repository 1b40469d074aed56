"""Findings of `check` that appear, vanish or change between two sides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from imagebuilder.checks.model import SEVERITIES, Finding
from imagebuilder.diff.libraries import stable_name
from imagebuilder.diff.model import FindingMove, PackageMove

_Key = tuple[str, str, str, str, str]
_MOVES = ("appeared", "changed", "vanished")


def compare_findings(
    old: Sequence[Finding], new: Sequence[Finding], packages: Iterable[PackageMove]
) -> tuple[FindingMove, ...]:
    """What appeared first, errors first; what is waived last.

    A finding of a renamed package, or of a library with a new version in its name, is the same finding.
    """
    renamed = {m.old.name: m.new.name for m in packages if m.old and m.new}
    found = filter(None, (_move(*pair) for pair in _pairs(old, new, renamed)))
    return tuple(
        sorted(
            found,
            key=lambda m: (
                _MOVES.index(m.move),
                m.waived is not None,
                SEVERITIES.index(m.severity),
                m.code,
                m.place,
            ),
        )
    )


def _pairs(
    old: Sequence[Finding], new: Sequence[Finding], renamed: Mapping[str, str]
) -> Iterator[tuple[Finding | None, Finding | None]]:
    """What is the same finding: by whole paths, and what is left by names of files."""
    left, right = list(old), list(new)
    for path_of in (str, stable_name):
        waiting: dict[_Key, list[Finding]] = {}
        for finding in right:
            waiting.setdefault(_key(finding, {}, path_of), []).append(finding)
        alone = []
        for finding in left:
            if others := waiting.get(_key(finding, renamed, path_of)):
                yield finding, others.pop(0)
            else:
                alone.append(finding)
        left, right = alone, [finding for others in waiting.values() for finding in others]
    yield from ((finding, None) for finding in left)
    yield from ((None, finding) for finding in right)


def _key(finding: Finding, renamed: Mapping[str, str], path_of: Callable[[str], str]) -> _Key:
    package, other = (renamed.get(name, name) for name in (finding.package, finding.other))
    return finding.code, package, path_of(finding.path), other, "" if package else finding.key


def _move(one: Finding | None, other: Finding | None) -> FindingMove | None:
    finding = other or one
    assert finding is not None, "a pair has at least one of the two"
    note = _note(one, other) if one and other else _waiver(finding)
    if one and other and not note:
        return None
    return FindingMove(
        move="changed" if one and other else "vanished" if one else "appeared",
        code=finding.code,
        severity=finding.severity,
        place=finding.place,
        old=one.what if one else None,
        new=other.what if other else None,
        waived=finding.waived,
        note=note,
    )


def _waiver(finding: Finding) -> str:
    return f"waived: {finding.waived}" if finding.waived is not None else ""


def _note(old: Finding, new: Finding) -> str:
    notes = []
    if old.severity != new.severity:
        notes.append(f"{old.severity} → {new.severity}")
    if (old.waived is None) != (new.waived is None):
        notes.append("not waived any more" if new.waived is None else _waiver(new))
    return ", ".join(notes)
