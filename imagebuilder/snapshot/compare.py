"""What is installed against what is in a wheel: by hashes first, and by bytes where these differ."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from imagebuilder.snapshot.model import (
    LARGEST_FILE,
    Candidate,
    Change,
    Files,
    Installed,
    Unreadable,
    What,
)
from imagebuilder.snapshot.places import compiled, is_script
from imagebuilder.snapshot.udiff import NotText, file_patch

_SHEBANG = b"#!python"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """By hashes alone. different: member → what it is; `changed` may turn out to be equal when bytes are
    compared.

    proven: the installed RECORD has every file of the wheel with the wheel's hash: this very wheel was
    installed. unreadable: path → why. shared: members whose place another distribution has too.
    """

    candidate: Candidate
    proven: bool
    different: Mapping[str, What]
    unreadable: Mapping[str, str]

    @property
    def distance(self) -> tuple[bool, int]:
        """How far from the installed one; the nearest candidate is the one to take."""
        return not self.proven, sum(what not in ("metadata",) for what in self.different.values())


def compare(installed: Installed, candidate: Candidate, files: Files) -> Comparison:
    """Hashes of what lies there against those of the wheel's RECORD."""
    different: dict[str, What] = {}
    unreadable: dict[str, str] = {}
    record = installed.record
    proven = record is not None
    info = candidate.listing.dist_info
    for member, path in candidate.places.items():
        wanted = candidate.listing.members[member]
        own = member.startswith(f"{info}/")
        if record is not None and record.get(path) != wanted and not is_script(member):
            proven = proven and not wanted and path in record
        if files.kind(path) != "file":
            was_there = record is None or path in record
            different[member] = "metadata" if own else "deleted" if was_there else "extra"
            continue
        try:
            if files.digest(path) == wanted:
                continue
        except Unreadable as error:
            unreadable[path] = str(error)
            continue
        different[member] = "metadata" if own else "changed"
    return Comparison(candidate=candidate, proven=proven, different=different, unreadable=unreadable)


def lone_changes(installed: Installed, candidate: Candidate, files: Files) -> list[Change]:
    """Scripts made from entry points that are not as their RECORD says: somebody edited them."""
    found = []
    known = set(candidate.places.values())
    for path, digest in (installed.record or {}).items():
        folder, _, name = path.rpartition("/")
        if path in known or not digest or posixpath.basename(folder) != "bin" or files.kind(path) != "file":
            continue
        try:
            same = files.digest(path) == digest
        except Unreadable:
            continue
        if not same and name in candidate.listing.scripts:
            why = "it is a script that installers make from an entry point, and it was edited"
            found.append(Change(path=path, member=name, what="script", how="nothing", why=why))
    return found


def changes_of(
    comparison: Comparison,
    there: Mapping[str, bytes],
    inside: Mapping[str, bytes],
    executable: Mapping[str, bool],
    shared: Mapping[str, tuple[str, ...]],
) -> tuple[tuple[Change, ...], bytes]:
    """(every difference and what is done about it, one patch of those that a patch can say).

    there: bytes by path of the environment, inside: by member of the wheel; what is in neither was too large.
    shared: the distributions that have a path, where these are several: it is brought back as a file.
    """
    changes: list[Change] = []
    patches: list[bytes] = []
    for member, what in sorted(comparison.different.items()):
        path = comparison.candidate.places[member]
        if what in ("metadata", "extra"):
            if what == "extra" or not _same_metadata(there.get(path), inside.get(member)):
                changes.append(Change(path=path, member=member, what=what, how="nothing", why=_WHY[what]))
            continue
        before, after = inside.get(member), there.get(path) if what == "changed" else b""
        if before is not None and after is not None and what == "changed":
            after = _as_packed(member, before, after)
            if before == after:
                continue  # the wheel's RECORD does not tell the truth
        if what == "changed" and path in shared and after is not None:
            why = f"{' and '.join(shared[path])} have it"
            changes.append(_as_file(member, path, why, there[path], executable.get(path, False)))
            continue
        change, patch = _expressed(member, path, what, before, after, executable=executable.get(path, False))
        changes.append(change)
        patches.append(patch)
    return tuple(changes), b"".join(patches)


def _same_metadata(first: bytes | None, second: bytes | None) -> bool:
    """But for the version, in which a patched wheel says what it is."""
    return _versionless(first) == _versionless(second)


def _versionless(data: bytes | None) -> bytes | None:
    return (
        data if data is None else re.sub(rb"(?m)\AMetadata-Version[^\0]*?^Version:[^\n]*", b"", data, count=1)
    )


_WHY = {
    "metadata": "what a wheel says about itself is not patched",
    "extra": "whoever made the installed wheel left it out of the index's one",
}


def _expressed(
    member: str, path: str, what: What, before: bytes | None, after: bytes | None, *, executable: bool
) -> tuple[Change, bytes]:
    """By a patch if it is text, else as a whole file."""
    try:
        if before is None or after is None:
            raise NotText(f"it is larger than {LARGEST_FILE} bytes")
        patch = file_patch(member, before, None if what == "deleted" else after)
        return Change(path=path, member=member, what=what, how="patch"), patch
    except NotText as error:
        if what == "changed" and after is not None and not is_script(member):
            return _as_file(member, path, str(error), after, executable), b""
        return Change(path=path, member=member, what=what, how="nothing", why=str(error)), b""


def _as_file(member: str, path: str, why: str, data: bytes, executable: bool) -> Change:
    return Change(
        path=path, member=member, what="changed", how="file", why=why, data=data, executable=executable
    )


def _as_packed(member: str, before: bytes, after: bytes) -> bytes:
    """A script with the first line that it has in the wheel, where an installer has put in its
    interpreter.
    """
    if not is_script(member) or not before.startswith(_SHEBANG) or not after.startswith(b"#!"):
        return after
    first = before.partition(b"\n")[0]
    if after.startswith(b"#!/bin/sh\n'''exec'"):  # a long path: three lines
        rest = after.split(b"\n", 3)[3:]
    else:
        rest = after.split(b"\n", 1)[1:]
    return b"\n".join([first, *rest])


def is_foreign(comparison: Comparison) -> bool:
    """Whether it is another build of that version: not proven, and not near either."""
    real = [m for m, what in comparison.different.items() if what in ("changed", "deleted")]
    total = sum(not compiled(m) for m in comparison.candidate.places)
    return not comparison.proven and (2 * len(real) > total or any(_is_code(m) for m in real))


def _is_code(member: str) -> bool:
    return member.endswith((".so", ".exe", ".dll", ".a", ".cubin")) or ".so." in member
