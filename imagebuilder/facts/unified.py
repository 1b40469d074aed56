"""Unified diffs, as diff and git write them, applied exactly: no fuzz, no offset, no guessing.

Libraries for patches search for a place where a hunk might fit, or split lines where Python does and not
where diff does. Here a hunk that is not exactly where it says is an error: a patch that slipped into the
wrong function is worse than none. Source: POSIX.1-2017, diff -u; git's "Generating patch text with -p".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from imagebuilder.errors import ArtefactUnusable

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SHOWN = 100  # bytes of a line that an error shows


@dataclass(kw_only=True)
class Hunk:
    """Lines of a file (each with its line end, where it has one) before and after; starts count from 1."""

    title: str
    old_start: int
    new_start: int
    old: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)


@dataclass(kw_only=True)
class FilePatch:
    """What a patch does to one file.

    old, new: its paths, None where there is no file; they differ only where git says that it is renamed.
    executable: before and after, None where the patch does not say.
    """

    old: str | None
    new: str | None
    renamed: bool = False
    old_executable: bool | None = None
    new_executable: bool | None = None
    hunks: list[Hunk] = field(default_factory=list)


def parse(name: str, patch: bytes) -> list[FilePatch]:
    """The files of a patch in their order. ArtefactUnusable when it is damaged or not a unified diff."""
    files = _Parser(name, patch).parse()
    if not files:
        raise ArtefactUnusable(f"{name}: there is no unified diff in it")
    return files


def apply(name: str, file: FilePatch, content: bytes) -> bytes:
    """The file's new contents. ArtefactUnusable names the hunk, the line seen and the line wanted."""
    before = split_lines(content)
    after: list[bytes] = []
    position = 0
    for hunk in file.hunks:
        # A hunk that has no old lines stands *after* the line it names.
        start = hunk.old_start - (1 if hunk.old else 0)
        if start < position or start > len(before):
            raise _misfit(
                name, file, hunk, f"line {hunk.old_start} of {len(before)}", "hunks in order, in the file"
            )
        after += before[position:start]
        for offset, wanted in enumerate(hunk.old):
            line = before[start + offset] if start + offset < len(before) else None
            if line != wanted:
                place = f"line {start + offset + 1}: "
                seen = "the end of the file" if line is None else _show(line)
                raise _misfit(name, file, hunk, place + seen, place + _show(wanted))
        if len(after) != hunk.new_start - (1 if hunk.new else 0):
            raise _misfit(
                name, file, hunk, f"line {len(after) + 1} of the new file", f"line {hunk.new_start}"
            )
        after += hunk.new
        position = start + len(hunk.old)
    after += before[position:]
    for line, _ in pairwise(after):
        if not line.endswith(b"\n"):
            raise ArtefactUnusable(
                f"{name}: it leaves a line without an end inside {file.new}", seen=_show(line)
            )
    return b"".join(after)


def split_lines(content: bytes) -> list[bytes]:
    """Lines with their ends; only a line feed ends one."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


class _Parser:
    def __init__(self, name: str, patch: bytes) -> None:
        self._name = name
        self._lines = split_lines(patch)
        self._at = 0
        self._files: list[FilePatch] = []

    def parse(self) -> list[FilePatch]:
        while self._at < len(self._lines):
            line = self._line()
            if line.startswith(b"diff --git "):
                self._git_header()
            elif line.startswith(b"--- ") and self._line(1).startswith(b"+++ "):
                self._files.append(FilePatch(old=None, new=None))
                self._names()
            elif _HUNK.match(line):
                raise self._bad("a hunk that belongs to no file")
            else:
                self._at += 1  # a commit's message, or a signature
        return self._files

    def _line(self, ahead: int = 0) -> bytes:
        """A header line, without its end."""
        place = self._at + ahead
        return self._lines[place].rstrip(b"\r\n") if place < len(self._lines) else b""

    def _git_header(self) -> None:
        name = self._git_name(self._line()[len(b"diff --git ") :])
        file = FilePatch(old=name, new=name)
        self._files.append(file)
        self._at += 1
        while self._at < len(self._lines):
            key, _, value = self._line().partition(b" ")
            text = self._line()
            if text.startswith(b"--- ") and self._line(1).startswith(b"+++ "):
                self._names()
                return
            if text.startswith((b"GIT binary patch", b"Binary files ")):
                raise self._bad("a binary patch")
            if text.startswith(b"copy from "):
                raise self._bad("a copy, which unified diffs cannot be checked for")
            if text.startswith((b"old mode ", b"deleted file mode ")):
                file.old_executable = self._executable(text)
            elif text.startswith((b"new mode ", b"new file mode ")):
                file.new_executable = self._executable(text)
            elif text.startswith(b"rename from "):
                file.old, file.renamed = _unquote(value.removeprefix(b"from ")), True
            elif text.startswith(b"rename to "):
                file.new = _unquote(value.removeprefix(b"to "))
            elif key not in (b"index", b"similarity", b"dissimilarity"):
                break
            if text.startswith(b"deleted file "):
                file.new = None
            elif text.startswith(b"new file "):
                file.old = None
            self._at += 1
        if not (file.old or file.new):
            raise self._bad("a file without a name")

    def _git_name(self, text: bytes) -> str:
        """NAME of `a/NAME b/NAME`; empty where the two differ, which the lines that follow then say."""
        half = len(text) // 2
        names = {_unquote(side).partition("/")[2] for side in (text[:half], text[half + 1 :])}
        return names.pop() if len(names) == 1 else ""

    def _names(self) -> None:
        """The lines `--- a/NAME` and `+++ b/NAME`, and the hunks that follow."""
        file = self._files[-1]
        names = []
        for lead in (b"--- ", b"+++ "):
            text = self._line().removeprefix(lead).partition(b"\t")[0].rstrip()
            names.append(None if text == b"/dev/null" else self._stripped(text))
            self._at += 1
        if file.renamed and names != [file.old, file.new]:
            raise self._bad("a renamed file with other names in its header")
        file.old, file.new = names
        if file.old is None and file.new is None:
            raise self._bad("a file that is neither before nor after")
        if file.old and file.new and file.old != file.new and not file.renamed:
            raise self._bad(f"two names for a file, {file.old} and {file.new}")
        while _HUNK.match(self._line()):
            self._hunk(file)
        line = self._line()
        if line[:1] in (b"+", b"-", b" ", b"\\") and not line.startswith((b"--- ", b"-- ")) and line != b"--":
            raise self._bad("a line behind the end of a hunk: its header gives too few lines")
        if not file.hunks:
            raise self._bad(f"no hunk for {file.new or file.old}")

    def _hunk(self, file: FilePatch) -> None:
        match = _HUNK.match(self._line())
        assert match
        old_start, old_count, new_start, new_count = (int(g) if g is not None else 1 for g in match.groups())
        hunk = Hunk(title=self._line().decode("utf-8", "replace"), old_start=old_start, new_start=new_start)
        file.hunks.append(hunk)
        self._at += 1
        while len(hunk.old) < old_count or len(hunk.new) < new_count:
            if self._at >= len(self._lines):
                raise self._bad(f"the end of the patch within the hunk {hunk.title}")
            line = self._lines[self._at]
            kind, text = line[:1], line[1:]
            if line in (b"\n", b"\r\n"):  # an empty line of context whose blank somebody has trimmed
                kind, text = b" ", line
            if kind not in (b" ", b"-", b"+"):
                raise self._bad(f"a line that belongs to no hunk within {hunk.title}")
            sides = {b" ": (hunk.old, hunk.new), b"-": (hunk.old,), b"+": (hunk.new,)}[kind]
            self._at += 1
            if self._line().startswith(b"\\ "):  # "\ No newline at end of file", in any language
                text = text.removesuffix(b"\n")
                self._at += 1
            for side in sides:
                side.append(text)
        if len(hunk.old) != old_count or len(hunk.new) != new_count:
            raise self._bad(f"other numbers of lines than its header gives in the hunk {hunk.title}")

    def _stripped(self, text: bytes) -> str:
        """A path without its first part, as `patch -p1` has it."""
        first, slash, rest = _unquote(text).partition("/")
        if not slash or not rest:
            raise self._bad(f"a path without a first part to take away (p1): {first!r}")
        return rest

    def _executable(self, line: bytes) -> bool:
        mode = line.rpartition(b" ")[2]
        if mode not in (b"100644", b"100755"):
            raise self._bad("a link or a submodule")
        return mode == b"100755"

    def _bad(self, what: str) -> ArtefactUnusable:
        return ArtefactUnusable(
            f"{self._name}: it has {what}",
            seen=f"line {self._at + 1}: {_show(self._line())}",
            wanted="a unified diff",
        )


def _unquote(text: bytes) -> str:
    """git puts names with other than printable ASCII in quotes, with C's escapes."""
    if text.startswith(b'"') and text.endswith(b'"') and len(text) > 1:
        letters = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

        def plain(match: re.Match[bytes]) -> bytes:
            code = match[1]
            return bytes([int(code, 8) & 255]) if code.isdigit() else letters.get(code, code)

        text = re.sub(rb"\\([0-7]{3}|.)", plain, text[1:-1], flags=re.DOTALL)
    return text.decode("utf-8", "surrogateescape")


def _show(line: bytes) -> str:
    return repr(line[:_SHOWN].decode("utf-8", "replace")) + ("…" if len(line) > _SHOWN else "")


def _misfit(name: str, file: FilePatch, hunk: Hunk, seen: str, wanted: str) -> ArtefactUnusable:
    return ArtefactUnusable(
        f"{name} does not apply to {file.old or file.new}: hunk {hunk.title}",
        seen=seen,
        wanted=wanted,
        hint="make the patch anew against exactly this version of the package",
    )
