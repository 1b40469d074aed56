"""GPU code: which architectures a library, a fat binary or a cubin was compiled for.

A `.nv_fatbin` section holds fat binaries one behind the other; each is one group (one translation unit or
one link step) with entries of PTX or SASS. Coverage is a matter of every group, not of the library.
Sources: entries compared with nvcc 13.0 and cuobjdump (tests/facts/test_gpu.py); the rules of what runs on
what: CUDA C++ Programming Guide, "Compute Capabilities", family- and architecture-specific features.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.elf import Seekable
from imagebuilder.values import GpuArch

SECTIONS = frozenset({b".nv_fatbin", b"__nv_relfatbin"})
_FATBIN = 0xBA55ED50
_MAGIC = _FATBIN.to_bytes(4, "little")
_FIND = re.compile(re.escape(_MAGIC)).search  # twice as fast as bytes.find
_HEADER = struct.Struct("<IHHQ")
_PTX, _SASS, _EMPTY = 1, 2, 0
_SMALL = 4096  # bytes of an entry that may be a mere registration, without any kernel
_UNPACKED = 8 << 20  # bytes of such an entry that are looked at, once unpacked
_LZ4, _ZSTD, _ACCELERATED, _FAMILY = 1 << 13, 1 << 15, 1 << 20, 1 << 21
_MAX_ENTRIES = 1_000_000
_EM_CUDA = 190
_ARCH_OPTION = re.compile(rb"-arch[= ]sm_(\d{2,3})([af]?)")

Coverage = Literal["sass", "ptx"]


@dataclass(frozen=True, kw_only=True)
class GpuGroup:
    """Fat binaries with the same entries: which, and how many of them. Sorted, without repetition."""

    entries: tuple[GpuArch, ...]
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class GpuCode:
    """All GPU code of one file. compressed: number of entries by method (`lz4`, `zstd`, ``)."""

    groups: tuple[GpuGroup, ...] = ()
    compressed: tuple[tuple[str, int], ...] = ()

    @property
    def entries(self) -> tuple[GpuArch, ...]:
        """Every architecture there is code for, in any group."""
        return tuple(sorted({arch for group in self.groups for arch in group.entries}, key=_order))

    @property
    def total(self) -> int:
        """Number of groups."""
        return sum(group.count for group in self.groups)


def covers(entry: GpuArch, gpu: GpuArch) -> Coverage | None:
    """How this entry serves this GPU: its machine code runs there, or its PTX can be compiled for it."""
    have, want = entry.capability, gpu.capability
    if entry.suffix == "a":
        fits = have == want
    elif entry.suffix == "f" or entry.kind == "sm":
        fits = have[0] == want[0] and have[1] <= want[1]
    else:
        fits = have <= want
    if not fits:
        return None
    return "sass" if entry.kind == "sm" else "ptx"


def coverage(entries: Iterable[GpuArch], gpu: GpuArch) -> Coverage | None:
    """The best that these entries offer this GPU."""
    found = {covers(entry, gpu) for entry in entries}
    return "sass" if "sass" in found else "ptx" if "ptx" in found else None


class FatbinWatch:
    """Notes the fat binaries in bytes that pass by from front to back, so that they need not be read again.

    What it notes is only used where a section of the file says that fat binaries lie there.
    """

    def __init__(self) -> None:
        self.groups: dict[int, tuple[int, list[_Entry]]] = {}  # start → end, entries
        self._first: int | None = None  # where the first magic lies that a fat binary could begin with
        self._work = _scan(self.groups)
        self._request: tuple[int, int] = next(self._work)
        self._window, self._window_at = b"", 0

    def feed(self, at: int, data: bytes) -> None:
        """The next bytes, which begin at this place."""
        if at == self._window_at + len(self._window):
            self._window += data
        else:
            self._window, self._window_at = data, at
        end = at + len(data)
        while True:
            start, size = self._request
            if not size:  # look for the next magic
                found = _FIND(self._window, max(start - self._window_at, 0))
                if not found:
                    begun = next((n for n in (3, 2, 1) if self._window.endswith(_MAGIC[:n])), 0)
                    start = max(start, end - begun)
                    self._request = (start, 0)
                    break
                place = self._window_at + found.start()
                if place % 8 == 0 and self._first is None:
                    self._first = place
                self._request = self._work.send(place.to_bytes(8, "little"))
            elif start + size <= end:
                begin = start - self._window_at
                self._request = self._work.send(self._window[begin : begin + size])
            else:
                break
        keep = max(min(start, end), self._window_at)
        self._window, self._window_at = self._window[keep - self._window_at :], keep

    def excludes(self, end: int) -> bool:
        """Whether no fat binary begins before this place: all of it was seen, and no magic."""
        seen = self._window_at + len(self._window)
        return end <= (seen if self._first is None else self._first)

    def after(self, place: int) -> int | None:
        """Start of the next fat binary at or just behind this place."""
        for start in range(place, place + 64, 8):
            if start in self.groups:
                return start
        return None


def _scan(groups: dict[int, tuple[int, list[_Entry]]]) -> Generator[tuple[int, int], bytes, None]:
    """Asks for (place, size), or for the next magic by size 0. No method: it would keep its watch alive."""
    at = 0
    while True:
        at = int.from_bytes((yield (at, 0)), "little")
        _, version, header, size = _HEADER.unpack((yield (at, 16)))
        if at % 8 or version != 1 or header != 16:
            at += 4
            continue
        place, end, entries = at + header, at + header + size, list[_Entry]()
        while place + 48 <= end:
            entry = _Entry.parse((yield (place, 48)))
            behind = place + entry.header + entry.size
            if entry.header < 48 or behind > end:
                break
            if entry.is_small and not entry.has_code((yield (place + entry.header, entry.size))):
                entry = replace(entry, kind=_EMPTY)
            entries.append(entry)
            place = behind
        if entries and place <= end < place + 48:
            groups[at] = (end, entries)
            at = end
        else:
            at += 4


def read_gpu(file: Seekable, what: str, watch: FatbinWatch | None = None) -> GpuCode | None:
    """GPU code of a shared library, object, program, `.fatbin` or `.cubin`; None where there is none.

    watch: one that has seen the bytes of the file. Raises ArtefactUnusable for a section that is no sequence
    of fat binaries.
    """
    file.seek(0)
    head = file.read(64)
    found = _Collector(what, watch or FatbinWatch())
    if head[:4] == _MAGIC:
        found.scan(file, 0, file.seek(0, 2))
    elif len(head) == 64 and head[:6] == b"\x7fELF\x02\x01":
        if struct.unpack_from("<H", head, 18)[0] == _EM_CUDA:
            return GpuCode(groups=(GpuGroup(entries=(_cubin(file, head),)),), compressed=(("", 1),))
        for name, offset, size in sections(file, head, what, watch):
            if name in SECTIONS:
                found.scan(file, offset, offset + size)
    return found.code()


def sections(
    file: Seekable, head: bytes, what: str, watch: FatbinWatch | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """(name, offset, size) of every section that has bytes; nothing where the headers were stripped.

    watch: leaves those out of which it says that they hold no fat binary. Names may lie far before the
    headers, which is dear to go back to: without any section left they are not read.
    """
    (offset,) = struct.unpack_from("<Q", head, 40)
    size, number, names = struct.unpack_from("<HHH", head, 58)
    if not offset or not number or size != 64 or names >= number:
        return
    end = file.seek(0, 2)
    if offset + size * number > end:
        raise _behind(what)
    file.seek(offset)
    rows = list(struct.iter_unpack("<IIQQQQIIQQ", file.read(size * number)))
    filled = [row for row in rows if row[1] != 8 and row[5]]
    if rows[names][4] > end or any(row[4] + row[5] > end for row in filled):
        raise _behind(what)
    wanted = [row for row in filled if not (watch and watch.excludes(row[4] + row[5]))]
    if not wanted:
        return
    file.seek(rows[names][4])
    text = file.read(min(rows[names][5], 1 << 24))
    for row in wanted:
        yield text[row[0] : max(text.find(b"\0", row[0]), row[0])], row[4], row[5]


def _behind(what: str) -> ArtefactUnusable:
    return ArtefactUnusable(
        f"{what} is a malformed ELF file", seen="a section behind its end", wanted="sections inside"
    )


def _order(arch: GpuArch) -> tuple[int, str, str]:
    return arch.number, arch.kind, arch.suffix


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry's header: its own size, that of its payload, and what it is for."""

    kind: int
    header: int
    size: int
    number: int
    flags: int

    @classmethod
    def parse(cls, head: bytes) -> _Entry:
        kind, _, header, size = struct.unpack_from("<HHIQ", head)
        return cls(kind, header, size, *struct.unpack_from("<I8xQ", head, 28))

    @property
    def is_small(self) -> bool:
        return self.kind in (_PTX, _SASS) and 0 < self.size <= _SMALL

    def has_code(self, payload: bytes) -> bool:
        """Is there a kernel or a function in it? lz4 keeps the first appearance of a text as it is."""
        if self.flags & _ZSTD:
            import zstandard

            try:
                stream = zstandard.ZstdDecompressor(max_window_size=_UNPACKED).stream_reader(payload)
                payload = stream.read(_UNPACKED)
            except zstandard.ZstdError:
                return True
        return (b".text" if self.kind == _SASS else b".entry") in payload or b".func" in payload


class _Collector:
    """Walks fat binaries and counts groups with equal entries."""

    def __init__(self, what: str, watch: FatbinWatch) -> None:
        self._what, self._watch = what, watch
        self._groups: Counter[tuple[GpuArch, ...]] = Counter()
        self._compressed: Counter[str] = Counter()
        self._entries = 0

    def code(self) -> GpuCode | None:
        if not self._groups:
            return None
        ordered = sorted(self._groups.items(), key=lambda item: [_order(arch) for arch in item[0]])
        return GpuCode(
            groups=tuple(GpuGroup(entries=entries, count=count) for entries, count in ordered),
            compressed=tuple(sorted(self._compressed.items())),
        )

    def scan(self, file: Seekable, at: int, end: int) -> None:
        """All fat binaries between two places; zeros between them are padding."""
        while at + 16 <= end:
            start = self._watch.after(at)
            if start is not None and self._watch.groups[start][0] <= end:
                at, entries = self._watch.groups[start]
                self._count(entries)
            else:
                file.seek(at)
                head = file.read(16)
                if len(head) < 16:
                    raise self._bad(f"the file ends at {at + len(head)}", f"{end} bytes")
                magic, _, header, size = _HEADER.unpack(head)
                if magic == 0:
                    at += 8
                    continue
                if magic != _FATBIN or header < 16 or size > end - at - header:
                    raise self._bad(f"{head.hex()} at {at}", "a fat binary inside its section")
                self._count(self._group(file, at + header, at + header + size))
                at += header + size
            at = (at + 7) & ~7

    def _group(self, file: Seekable, at: int, end: int) -> Iterator[_Entry]:
        while at + 48 <= end:
            file.seek(at)
            head = file.read(48)
            if len(head) < 48:
                raise self._bad(f"the file ends at {at + len(head)}", f"{end} bytes")
            entry = _Entry.parse(head)
            if entry.header < 48 or entry.size > end - at - entry.header:
                raise self._bad(f"an entry of {entry.header} + {entry.size} bytes at {at}", f"{end - at}")
            if entry.is_small:
                file.seek(at + entry.header)
                if not entry.has_code(file.read(entry.size)):
                    entry = replace(entry, kind=_EMPTY)
            yield entry
            at += entry.header + entry.size

    def _count(self, entries: Iterable[_Entry]) -> None:
        archs: set[GpuArch] = set()
        for entry in entries:
            self._entries += 1
            if self._entries > _MAX_ENTRIES:
                raise self._bad(f"over {_MAX_ENTRIES} entries", "fewer")
            if entry.kind not in (_PTX, _SASS):
                continue
            flags = entry.flags
            if not 10 <= entry.number <= 999:
                raise self._bad(f"code for compute capability {entry.number / 10}", "one such as 12.0")
            suffix = "a" if flags & _ACCELERATED else "f" if flags & _FAMILY else ""
            archs.add(GpuArch("compute" if entry.kind == _PTX else "sm", entry.number, suffix))
            self._compressed["zstd" if flags & _ZSTD else "lz4" if flags & _LZ4 else ""] += 1
        if archs:
            self._groups[tuple(sorted(archs, key=_order))] += 1

    def _bad(self, seen: str, wanted: str) -> ArtefactUnusable:
        return ArtefactUnusable(f"{self._what} holds malformed GPU code", seen=seen, wanted=wanted)


def _cubin(file: Seekable, head: bytes) -> GpuArch:
    """Architecture of a single cubin. The suffix is only in the note that ptxas leaves of its options."""
    (flags,) = struct.unpack_from("<I", head, 48)
    new_layout = head[8] >= 8  # EI_ABIVERSION
    number = flags >> 8 & 0xFF if new_layout else flags & 0xFF
    for name, offset, size in sections(file, head, "cubin"):
        if name == b".note.nv.tkinfo":
            file.seek(offset)
            option = _ARCH_OPTION.search(file.read(min(size, 1 << 16)))
            if option and int(option[1]) == number:
                return GpuArch("sm", number, option[2].decode())
    return GpuArch("sm", number, "" if new_layout or not flags & 0x800 else "a")
