"""Unified diffs of text files, in the form that derived wheels take, each proven by applying it. Pure.

difflib compares lines; what it cannot do in reasonable time is one hunk that replaces the lines in between.
Source: POSIX.1-2017, diff -u.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from imagebuilder.facts import unified
from imagebuilder.lock.patched import changed_paths

CONTEXT = 3
MAX_PATCH = 3 << 20
"""Bytes of a patch; a stack file takes 4 MiB."""
_MAX_WORK = 40_000_000  # lines of one side times lines of the other
_PLAIN = re.compile(r"[!#-\[\]-~](?:[ -!#-\[\]-~]*[!#-\[\]-~])?")  # printable, no quotes, no backslash
_Op = tuple[str, int, int, int, int]


class NotText(Exception):
    """A patch cannot say this; says why."""


def file_patch(path: str, before: bytes, after: bytes | None) -> bytes:
    """The part of a patch for one file; after None: it is deleted. Raises NotText."""
    for content in (before, after or b""):
        if not _is_text(content):
            raise NotText("it is no text")
    if not _PLAIN.fullmatch(path):
        raise NotText("its path cannot be written in a patch")
    if after is None and not before:
        raise NotText("it is empty, and a patch has no line of it to take away")
    old, new = unified.split_lines(before), unified.split_lines(after or b"")
    head = f"--- a/{path}\n+++ {'/dev/null' if after is None else f'b/{path}'}\n".encode()
    patch = head + b"".join(_hunks(old, new))
    if len(patch) > MAX_PATCH:
        raise NotText(f"its patch has more than {MAX_PATCH} bytes")
    _prove(path, patch, before, after)
    return patch


def _prove(path: str, patch: bytes, before: bytes, after: bytes | None) -> None:
    files = unified.parse(path, patch)
    said = changed_paths(patch)
    if len(files) != 1 or said != (path,) or unified.apply(path, files[0], before) != (after or b""):
        raise NotText("lines in it look like a patch's own")


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[bytes]:
    for group in _grouped(list(_operations(old, new))):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n".encode()
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (_line(b" ", line) for line in old[i1:i2])
            else:
                yield from (_line(b"-", line) for line in old[i1:i2])
                yield from (_line(b"+", line) for line in new[j1:j2])


def _operations(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[_Op]:
    """As SequenceMatcher's opcodes; what both begin and end with is taken off before it looks."""
    start, shorter = 0, min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    if start:
        yield "equal", 0, start, 0, start
    if a or b:
        if len(a) * len(b) > _MAX_WORK or not a or not b:
            yield "replace", start, start + len(a), start, start + len(b)
        else:
            for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=True).get_opcodes():
                yield tag, start + i1, start + i2, start + j1, start + j2
    if end:
        yield "equal", len(old) - end, len(old), len(new) - end, len(new)


def _grouped(operations: list[_Op]) -> Iterator[list[_Op]]:
    """Hunks: changes with their context; a longer run of equal lines divides them."""
    group: list[_Op] = []
    for number, (tag, i1, i2, j1, j2) in enumerate(operations):
        if tag != "equal":
            group.append((tag, i1, i2, j1, j2))
            continue
        first, last = number == 0, number == len(operations) - 1
        if i2 - i1 <= 2 * CONTEXT and not first and not last:
            group.append((tag, i1, i2, j1, j2))
            continue
        if not first:
            group.append((tag, i1, min(i2, i1 + CONTEXT), j1, min(j2, j1 + CONTEXT)))
            if any(op[0] != "equal" for op in group):
                yield group
        group = [] if last else [(tag, max(i1, i2 - CONTEXT), i2, max(j1, j2 - CONTEXT), j2)]
    if any(op[0] != "equal" for op in group):
        yield group


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start if not length else start + 1},{length}"


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + (line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
