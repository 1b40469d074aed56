"""Facts of a whole wheel: one pass over its members, from a local file or by ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, cast

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.elf import ElfFacts, Seekable, read_elf
from imagebuilder.facts.elfplaces import late_tables
from imagebuilder.facts.gpu import FatbinWatch, GpuCode, read_gpu
from imagebuilder.facts.member import Packed, Stored, unwatched
from imagebuilder.facts.prefix import read_front
from imagebuilder.facts.pyloader import LOADER_MODULE, MAX_SOURCE, literals, preloads
from imagebuilder.facts.record import FileFact, Literal, Preload, WheelFacts
from imagebuilder.facts.tools import TOOL, Tool, read_tool
from imagebuilder.facts.wheel import Wheel
from imagebuilder.facts.ziparchive import STORED, Member
from imagebuilder.index.ranged import REMOTE_FAULTS

_BINARY = re.compile(r"(\.so(\.[\w.]+)?|\.cubin|\.fatbin|(^|/)bin/[^/.]+)$")
_PARTS = (".so", ".cubin", ".fatbin", "bin/")
_GPU_FILE = re.compile(r"\.(cubin|fatbin)$")
_DATA = re.compile(r"^[^/]+\.data/(purelib|platlib|data|scripts|headers)/(.+)$")
_PREFIX = "../../../"  # from site-packages to the environment: lib/python3.x/site-packages


def installed_path(path: str) -> str:
    """Where a member of a wheel lies once installed, relative to site-packages (spec: `.data` folders)."""
    match = _DATA.match(path)
    if not match:
        return path
    kind, rest = match.groups()
    if kind in ("purelib", "platlib"):
        return rest
    return _PREFIX + {"data": "", "scripts": "bin/", "headers": "include/"}[kind] + rest


def reads_whole(path: str) -> bool:
    """Whether facts are read from the contents of a member of this path: a library, a program, GPU code."""
    return _is_binary(installed_path(path))


def _is_binary(path: str) -> bool:
    # Most paths are Python code; looking for the parts first is ten times as fast.
    return any(part in path for part in _PARTS) and bool(_BINARY.search(path))


def collect(
    source: IO[bytes], filename: str | None = None, preload_functions: Sequence[tuple[str, str]] = ()
) -> WheelFacts:
    """Facts of the wheel in this seekable file, local or remote.

    preload_functions: (module, function) pairs whose preloads are read. A malformed library is a problem of
    that library and is listed; ArtefactUnusable where the wheel itself cannot be used.
    """
    with Wheel.open(source, filename) as wheel:
        return _Collector(wheel, source, dict(preload_functions)).facts()


def collect_front(
    source: IO[bytes], filename: str, *, whole: frozenset[str] = frozenset(), most: int = 4 << 20
) -> WheelFacts:
    """Facts that the fronts of libraries tell, for a remote wheel: little is read.

    whole: file names of the libraries to read instead of all; they are read to their end. A library whose
    front does not suffice is read to its end where it is at most `most` bytes long, else it is in `problems`.
    `files` are only the libraries.
    """
    with Wheel.open(source, filename) as wheel:
        return _Collector(wheel, source, {}).front(whole, most)


class _Collector:
    """Goes through the members of one wheel once."""

    def __init__(self, wheel: Wheel, source: IO[bytes], preload_functions: dict[str, str]) -> None:
        self._wheel, self._source, self._preload_functions = wheel, source, preload_functions
        self._elf: dict[str, ElfFacts] = {}
        self._gpu: dict[str, GpuCode] = {}
        self._literals: list[Literal] = []
        self._preloads: list[Preload] = []
        self._tools: list[Tool] = []
        self._problems: list[tuple[str, str]] = []

    def facts(self) -> WheelFacts:
        wheel = self._wheel
        for member in wheel.files:
            path = installed_path(member.path)
            if _is_binary(path):
                try:
                    self._binary(member, path)
                except REMOTE_FAULTS:
                    raise
                except ArtefactUnusable as error:
                    self._problems.append((path, f"{error.what}: {error.seen}"))
            elif path.endswith(".py") and member.size <= MAX_SOURCE and LOADER_MODULE.search(path):
                source = wheel.read(member)
                self._literals.extend(literals(path, source))
                if path in self._preload_functions:
                    self._preloads.extend(preloads(source, self._preload_functions[path]))
        return self._result()

    def front(self, whole: frozenset[str], most: int) -> WheelFacts:
        for member in self._wheel.files:
            path = installed_path(member.path)
            name = path.rsplit("/", 1)[-1]
            if not _is_binary(path) or _GPU_FILE.search(path) or (whole and name not in whole):
                continue
            try:
                file = self._file(member)
                facts = None if whole else read_front(file, name)
                if facts is None and member.size <= most:
                    facts = read_elf(file, path)
                if facts is not None:
                    self._elf[path] = facts
                elif member.size > most:
                    self._problems.append((path, "its front does not tell what it needs"))
            except REMOTE_FAULTS:
                raise
            except ArtefactUnusable as error:
                self._problems.append((path, f"{error.what}: {error.seen}"))
        return replace(self._result(), files={p: f for p, f in self._files().items() if _is_binary(p)})

    def _files(self) -> dict[str, FileFact]:
        return {installed_path(m.path): FileFact(crc=m.crc, size=m.size) for m in self._wheel.files}

    def _result(self) -> WheelFacts:
        wheel = self._wheel
        return WheelFacts(
            metadata=wheel.read(f"{wheel.dist_info}/METADATA").decode("utf-8", "replace"),
            tags=tuple(wheel.wheel_file().get_all("Tag", [])),
            scripts=tuple(sorted(e.name for e in wheel.entry_points() if e.group.endswith("_scripts"))),
            files=self._files(),
            elf=self._elf,
            gpu=self._gpu,
            literals=tuple(self._literals),
            preloads=tuple(self._preloads),
            tools=tuple(self._tools),
            problems=tuple(self._problems),
        )

    def _binary(self, member: Member, path: str) -> None:
        watch = FatbinWatch()
        file = self._file(member, unwatched if path.endswith(".cubin") else watch.feed)
        if isinstance(file, Packed):
            file.remember(*late_tables(file))
        if not _GPU_FILE.search(path):
            facts = read_elf(file, path)
            if facts is None:
                return
            self._elf[path] = facts
        if TOOL.search(path):
            tool = read_tool(file, path)
            self._tools.extend([tool] if tool else [])
        code = read_gpu(file, path, watch)
        if code is not None:
            self._gpu[path] = code

    def _file(self, member: Member, watch: Callable[[int, bytes], None] = unwatched) -> Seekable:
        start = self._wheel.archive.data_start(member)
        source = cast(Seekable, self._source)
        if member.method == STORED:
            return Stored(source, start, member.size)
        return Packed(
            source,
            method=member.method,
            start=start,
            packed=member.compressed,
            size=member.size,
            what=member.path,
            watch=watch,
        )
