"""The dynamic tables of a library from its first megabytes only.

PT_DYNAMIC lies at the end of a file, but what GNU ld writes in front of the code has a fixed order:
notes, .gnu.hash, .dynsym, .dynstr, .gnu.version, [.gnu.version_d], .gnu.version_r, .rela.dyn, .rela.plt.
Each table is found from the one before and proven by its own structure; where anything does not fit (another
linker, or a tool that moved tables), the answer is None and the whole file has to be read.
"""

from __future__ import annotations

import re
import struct
from array import array

from imagebuilder.facts.elf import MACHINES, ElfFacts, Seekable, VersionNeed, Wanted
from imagebuilder.facts.exports import Exports, symbol_hash

LIMIT = 48 << 20  # bytes of the file, unpacked, that are looked at
_LIBRARY = re.compile(rb"(?:lib|ld-)[\w+.-]*\.so(?:\.[\w.]+)?")
_TEXT = re.compile(rb"[^\x00\x20-\x7e\x80-\xff]")


class _Unfit(Exception):
    """The tables are not where GNU ld puts them."""


def read_front(file: Seekable, file_name: str) -> ElfFacts | None:
    """Facts as far as the front of the file tells them; None where it does not.

    NEEDED is taken from the names of libraries among the strings, without the file's own. There are no search
    paths, no version definitions, and `exports` only serves libraries without versions of their own.
    """
    try:
        return _Front(file, file_name).facts()
    except (_Unfit, struct.error, IndexError):
        return None


class _Front:
    def __init__(self, file: Seekable, file_name: str) -> None:
        self._file, self._name = file, file_name
        file.seek(0)
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01" or head[16] not in (2, 3):
            raise _Unfit
        (self._machine,) = struct.unpack_from("<H", head, 18)
        (phoff,) = struct.unpack_from("<Q", head, 32)
        size, number = struct.unpack_from("<HH", head, 54)
        if phoff != 64 or size != 56 or not 0 < number < 64:
            raise _Unfit
        self._after = phoff + size * number
        for kind, _, offset, _, _, length, _, _ in struct.iter_unpack(
            "<IIQQQQQQ", self._at(phoff, size * number)
        ):
            if kind in (3, 4) and offset < 1 << 16:  # PT_INTERP, PT_NOTE
                self._after = max(self._after, offset + length)

    def facts(self) -> ElfFacts:
        symbols_at, count = self._hash_table(_align(self._after, 8))
        if any(self._at(symbols_at, 24)):
            raise _Unfit
        symbols = list(struct.iter_unpack("<IBBHQQ", self._at(symbols_at, 24 * count)))
        strings_at = symbols_at + 24 * count
        versions_at, strings = self._strings(strings_at, max(s[0] for s in symbols), count)
        indexes = array("H", self._at(versions_at, 2 * count))
        needs, names, end = self._needs(_align(versions_at + 2 * count, 8), strings)
        referenced = self._referenced(
            _align(end, 8), {i for i, s in enumerate(symbols) if i and s[3] == 0 and s[1] >> 4 == 1}, count
        )
        wanted, defined = [], set()
        for i, (name_at, info, other, section, value, _) in enumerate(symbols):
            name = strings[name_at : strings.index(b"\0", name_at)]
            if not i or info >> 4 not in (1, 2, 10):
                continue
            if section == 0:
                version, library = names.get(indexes[i] & 0x7FFF, ("", ""))
                wanted.append(
                    Wanted(
                        name=name.decode("utf-8", "backslashreplace"),
                        version=version,
                        file=library,
                        weak=info >> 4 == 2,
                        referenced=i in referenced,
                    )
                )
            elif (value or info & 15 == 6) and other & 3 not in (1, 2):
                defined.add(symbol_hash(name))
        needed = {m for m in strings.split(b"\0") if _LIBRARY.fullmatch(m)} - {self._name.encode()}
        return ElfFacts(
            machine=MACHINES.get(self._machine, ""),
            soname=self._name,
            needed=tuple(sorted(n.decode() for n in needed)),
            version_needs=needs,
            wanted=tuple(wanted),
            exports=Exports(plain=array("Q", sorted(defined)), versioned=array("Q"), has_versions=False),
        )

    def _at(self, offset: int, size: int) -> bytes:
        data = self._up_to(offset, size)
        if len(data) != size:
            raise _Unfit
        return data

    def _up_to(self, offset: int, size: int) -> bytes:
        if offset + size > LIMIT:
            raise _Unfit
        self._file.seek(offset)
        return self._file.read(size)

    def _hash_table(self, at: int) -> tuple[int, int]:
        """(where .dynsym begins, how many symbols it has), from .gnu.hash."""
        buckets, first, bloom, shift = struct.unpack("<IIII", self._at(at, 16))
        if not 0 < buckets < 1 << 22 or not bloom or bloom & (bloom - 1) or shift > 63 or not first:
            raise _Unfit
        chains = at + 16 + 8 * bloom + 4 * buckets
        last = max(array("I", self._at(at + 16 + 8 * bloom, 4 * buckets)))
        if last < first:
            raise _Unfit  # no exports: nothing says how many symbols there are
        place = chains + 4 * (last - first)
        while not self._at(place, 1)[0] & 1:
            place += 4
        return _align(place + 4, 8), first + (place - chains) // 4 + 1

    def _strings(self, at: int, last_name: int, count: int) -> tuple[int, bytes]:
        """(where .gnu.version begins, the bytes of .dynstr): text ends where the first index begins."""
        data, room = b"", last_name + 1024
        while True:
            data = self._up_to(at, room)
            match = _TEXT.search(data, last_name)
            if match:
                break
            if len(data) < room:
                raise _Unfit
            room *= 2
        for start in range((at + match.start()) & ~1, at + match.start() - 64, -2):
            index = array("H", self._at(start, 2 * count))
            if index[0] == 0 and data[start - at - 1] == 0 and max(i & 0x7FFF for i in index) < 1024:
                section = _align(start + 2 * count, 8)
                version, _, library, aux, _ = struct.unpack("<HHIII", self._at(section, 16))
                strings = data[: start - at]
                if version == 1 and aux == 16 and _LIBRARY.match(strings[library:]):
                    return start, strings
        raise _Unfit

    def _needs(
        self, at: int, strings: bytes
    ) -> tuple[tuple[VersionNeed, ...], dict[int, tuple[str, str]], int]:
        """.gnu.version_r: the needs, version by index, and where it ends."""
        names: dict[int, tuple[str, str]] = {}
        needs, end = [], at
        for _ in range(1024):
            _, number, library_at, aux, step = struct.unpack("<HHIII", self._at(at, 16))
            library, place, versions = _text(strings, library_at), at + aux, []
            for _ in range(number):
                _, flags, other, name_at, aux_step = struct.unpack("<IHHII", self._at(place, 16))
                names[other & 0x7FFF] = (_text(strings, name_at), library)
                if not flags & 2:
                    versions.append(_text(strings, name_at))
                end = max(end, place + 16)
                place += aux_step
            needs.append(VersionNeed(file=library, versions=tuple(versions)))
            if not step:
                return tuple(needs), names, end
            at += step
        raise _Unfit

    def _referenced(self, at: int, undefined: set[int], count: int) -> set[int]:
        """Which of these symbols a relocation refers to; stops when all were seen or the tables end."""
        seen: set[int] = set()
        while seen < undefined:
            block = self._up_to(at, 24 << 10)
            block = block[: len(block) // 24 * 24]
            if not block:
                raise _Unfit
            for place, info, _ in struct.iter_unpack("<QQq", block):
                symbol, kind = info >> 32, info & 0xFFFFFFFF
                if symbol >= count or not place or not 0 < kind < 2048 or (kind > 64 and kind < 256):
                    return seen
                if symbol in undefined:
                    seen.add(symbol)
            at += len(block)
        return seen


def _align(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    if at >= len(strings) or end < 0:
        raise _Unfit
    return strings[at:end].decode("utf-8", "backslashreplace")
