"""What one ELF file asks for and offers, read the way the dynamic loader reads it.

Only PT_DYNAMIC is followed, never section names (tools move and strip sections). The result is compact: what
is wanted keeps its names, what is offered is kept as sorted 64-bit hashes, since a large library exports
hundreds of thousands of names and the only question ever asked is "is it there?".
Sources: System V gABI "Dynamic Section"; glibc elf/dl-lookup.c for what counts as a definition.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.exports import NO_EXPORTS, Definitions, Exports

MACHINES = {62: "x86_64", 183: "aarch64"}

MAX_TABLE = 512 << 20  # no dynamic table of a real library comes near this
MAX_SYMBOLS = 8_000_000
_CHUNK = 3 << 20  # a multiple of 24, the size of one Elf64_Rela and of one Elf64_Sym

_NEEDED, _PLTRELSZ, _HASH, _STRTAB, _SYMTAB, _RELA, _RELASZ = 1, 2, 4, 5, 6, 7, 8
_STRSZ, _SONAME, _RPATH, _REL, _RELSZ, _PLTREL, _JMPREL, _RUNPATH = 10, 14, 15, 17, 18, 20, 23, 29
_GNU_HASH, _VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_WEAK = 2
_DEFINING_TYPES = frozenset({0, 1, 2, 5, 6, 10})  # NOTYPE OBJECT FUNC COMMON TLS GNU_IFUNC
_DEFINING_BINDS = frozenset({1, 2, 10})  # GLOBAL WEAK GNU_UNIQUE


class Seekable(Protocol):
    """A file that can be read at any place: a local file, a remote one, a member of a wheel."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As io.IOBase.seek."""

    def read(self, size: int = -1, /) -> bytes:
        """As io.RawIOBase.read; fewer bytes only at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """One undefined symbol. version: empty where the reference has none; file: the library it names."""

    name: str
    version: str = ""
    file: str = ""
    weak: bool = False
    referenced: bool = True

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True, kw_only=True)
class VersionNeed:
    """Versions that `file` must define (Elf64_Verneed), without those marked weak."""

    file: str
    versions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """What one ELF file says about itself. packed_names: exported names, by line, zlib."""

    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    version_needs: tuple[VersionNeed, ...] = ()
    version_defs: tuple[str, ...] = ()
    wanted: tuple[Wanted, ...] = ()  # in the order in which the loader would look them up
    exports: Exports = NO_EXPORTS
    packed_names: bytes = field(default=b"", repr=False, compare=False)

    def names(self) -> list[bytes]:
        """The exported names, sorted. Only for showing evidence: `exports` answers what is there."""
        packed = self.packed_names
        return sorted({*zlib.decompress(packed).split(b"\n")} - {b""}) if packed else []


def read_elf(file: Seekable, what: str) -> ElfFacts | None:
    """Read one shared library or program; None for a file that is not a 64-bit little-endian ELF file.

    `what` names the file in errors. Raises ArtefactUnusable where the file contradicts itself.
    """
    file.seek(0)
    head = file.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return None
    return _Elf(file, what, head).facts()


class _Elf:
    """One pass over one file; holds the tables only while they are read."""

    def __init__(self, file: Seekable, what: str, head: bytes) -> None:
        self._file, self._what = file, what
        kind, self._machine = struct.unpack_from("<HH", head, 16)
        (phoff,) = struct.unpack_from("<Q", head, 32)
        phentsize, phnum = struct.unpack_from("<HH", head, 54)
        self._loads: list[tuple[int, int, int]] = []  # vaddr, offset, filesz
        self._dynamic: dict[int, list[int]] = {}
        if kind not in (2, 3) or not phnum:  # object files and core dumps have nothing for the loader
            return
        if phentsize != 56 or phnum > 4096:
            raise self._bad(f"{phnum} program headers of {phentsize} bytes", "at most 4096 of 56 bytes")
        place = None
        for ptype, _, offset, vaddr, _, filesz, _, _ in struct.iter_unpack(
            "<IIQQQQQQ", self._at(phoff, phentsize * phnum)
        ):
            if ptype == 1:
                self._loads.append((vaddr, offset, filesz))
            elif ptype == 2:
                place = (offset, filesz)
        if place:
            table = self._at(place[0], min(place[1], 1 << 20) // 16 * 16)
            for tag, value in struct.iter_unpack("<QQ", table):
                if tag == 0:
                    break
                self._dynamic.setdefault(tag, []).append(value)

    def facts(self) -> ElfFacts:
        machine = MACHINES.get(self._machine, f"machine {self._machine}")
        if not self._dynamic:
            return ElfFacts(machine=machine)
        # In the order in which linkers and patchelf lay tables down: going back costs.
        count = self._hash_count() if self._one(_SYMTAB) else 0
        self._strings = self._table(self._one(_STRTAB), self._one(_STRSZ))
        indexes = self._indexes(count)
        versions, needs = self._version_needs()
        defs = self._version_defs()
        wanted, exports, names = self._symbols(count, indexes, versions, defs)
        return ElfFacts(
            machine=machine,
            soname=self._text(self._one(_SONAME)) if _SONAME in self._dynamic else "",
            needed=tuple(self._text(v) for v in self._dynamic.get(_NEEDED, ())),
            rpath=self._path(_RPATH),
            runpath=self._path(_RUNPATH),
            version_needs=needs,
            version_defs=tuple(defs.values()),
            wanted=wanted,
            exports=exports,
            packed_names=names,
        )

    def _bad(self, seen: str, wanted: str) -> ArtefactUnusable:
        return ArtefactUnusable(f"{self._what} is a malformed ELF file", seen=seen, wanted=wanted)

    def _at(self, offset: int, size: int) -> bytes:
        if size > MAX_TABLE:
            raise self._bad(f"a table of {size} bytes", f"at most {MAX_TABLE}")
        if offset >= 1 << 62:
            raise self._bad(f"offset {offset}", "a place in the file")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise self._bad(f"{size} bytes at {offset} end behind the file", "tables inside the file")
        return data

    def _offset(self, address: int) -> tuple[int, int]:
        """(file offset, bytes left in the segment) of a virtual address."""
        for vaddr, offset, filesz in self._loads:
            if vaddr <= address < vaddr + filesz:
                return offset + address - vaddr, vaddr + filesz - address
        raise self._bad(f"address {address:#x}", "an address in a loaded segment")

    def _table(self, address: int, size: int) -> bytes:
        if not size:
            return b""
        offset, room = self._offset(address)
        if size > room:
            raise self._bad(f"a table of {size} bytes at {address:#x}", f"at most {room}: the segment ends")
        return self._at(offset, size)

    def _chunks(self, address: int, size: int) -> Iterator[bytes]:
        if not size:
            return
        offset, room = self._offset(address)
        if size > room:
            raise self._bad(f"a table of {size} bytes at {address:#x}", f"at most {room}: the segment ends")
        for at in range(0, size, _CHUNK):
            yield self._at(offset + at, min(_CHUNK, size - at))

    def _one(self, tag: int) -> int:
        return self._dynamic.get(tag, [0])[0]

    def _name(self, at: int) -> bytes:
        end = self._strings.find(b"\0", at)
        if at >= len(self._strings) or end < 0:
            raise self._bad(f"a name at {at}", f"inside the {len(self._strings)} bytes of names")
        return self._strings[at:end]

    def _text(self, at: int) -> str:
        return self._name(at).decode("utf-8", "backslashreplace")

    def _path(self, tag: int) -> tuple[str, ...]:
        if tag not in self._dynamic:
            return ()
        return tuple(self._text(self._one(tag)).split(":"))

    def _version_needs(self) -> tuple[dict[int, tuple[str, str]], tuple[VersionNeed, ...]]:
        """Version index → (version, library), and the needs in order. Bounded by the counts and by size."""
        index: dict[int, tuple[str, str]] = {}
        needs: list[VersionNeed] = []
        address, number = self._one(_VERNEED), self._one(_VERNEEDNUM)
        for _ in range(min(number, 4096) if address else 0):
            _, count, file, aux, step = struct.unpack("<HHIII", self._table(address, 16))
            library, versions, place = self._text(file), [], address + aux
            for _ in range(min(count, 4096)):
                _, flags, other, name, aux_step = struct.unpack("<IHHII", self._table(place, 16))
                index[other & 0x7FFF] = (self._text(name), library)
                if not flags & _WEAK:
                    versions.append(self._text(name))
                if not aux_step:
                    break
                place += aux_step
            needs.append(VersionNeed(file=library, versions=tuple(versions)))
            if not step:
                break
            address += step
        return index, tuple(needs)

    def _version_defs(self) -> dict[int, str]:
        """Version index → version defined here; the base version (the file itself) is left out."""
        defs: dict[int, str] = {}
        address, number = self._one(_VERDEF), self._one(_VERDEFNUM)
        for _ in range(min(number, 65536) if address else 0):
            _, flags, ndx, count, _, aux, step = struct.unpack("<HHHHIII", self._table(address, 20))
            if count:
                (name,) = struct.unpack("<I", self._table(address + aux, 4))
                if not flags & 1:
                    defs[ndx & 0x7FFF] = self._text(name)
            if not step:
                break
            address += step
        return defs

    def _referenced(self) -> dict[int, int]:
        """Symbols that some relocation refers to → their turn (RELR relocations refer to none)."""
        seen: dict[int, None] = {}
        plt_is_rela = self._one(_PLTREL) != _REL
        for address, size, rela in (
            (self._one(_RELA), self._one(_RELASZ), True),
            (self._one(_REL), self._one(_RELSZ), False),
            (self._one(_JMPREL), self._one(_PLTRELSZ), plt_is_rela),
        ):
            width = 3 if rela else 2
            for chunk in self._chunks(address, size // (8 * width) * 8 * width):
                words = array("Q", chunk)
                seen.update(dict.fromkeys(info >> 32 for info in dict.fromkeys(words[1::width])))
        seen.pop(0, None)
        return {number: turn for turn, number in enumerate(seen)}

    def _hash_count(self) -> int:
        """How many symbols there are, by a hash table: nothing in PT_DYNAMIC says so. 0: it does not tell."""
        if _HASH not in self._dynamic:
            return self._gnu_count()
        return int(struct.unpack("<4xI", self._table(self._one(_HASH), 8))[0])

    def _count(self, referenced: Iterable[int]) -> int:
        """How many, where nothing is exported and so no hash tells: the next table ends the symbols."""
        start, least = self._one(_SYMTAB), max(referenced, default=0) + 1
        tables = [v for t in (_STRTAB, _VERSYM, _GNU_HASH) for v in self._dynamic.get(t, ())]
        after = min((v for v in tables if v > start), default=start)
        count = max(least, (after - start) // 24)
        if _VERSYM in self._dynamic:
            count = max(least, min(count, self._offset(self._one(_VERSYM))[1] // 2))
        return count

    def _gnu_count(self) -> int:
        """By the last chain of the hash table; 0 where nothing is exported."""
        address = self._one(_GNU_HASH)
        if not address:
            return 0
        buckets, first, bloom, _ = struct.unpack("<IIII", self._table(address, 16))
        table = array("I", self._table(address + 16 + 8 * bloom, 4 * buckets))
        last = max(table, default=0)
        if last < first:
            return 0
        chains = address + 16 + 8 * bloom + 4 * buckets
        offset, room = self._offset(chains)
        at = last - first
        while 4 * at + 4 <= room:
            block = self._at(offset + 4 * at, min(4096, (room - 4 * at) // 4 * 4))
            for i, value in enumerate(array("I", block)):
                if value & 1:
                    return int(first + at + i + 1)
            at += len(block) // 4
        raise self._bad("a hash chain without end", "chains inside the segment")

    def _indexes(self, count: int) -> array[int]:
        """The version index of each of so many symbols; none where the file has no versions."""
        if count > MAX_SYMBOLS:
            raise self._bad(f"{count} symbols", f"at most {MAX_SYMBOLS}")
        return array("H", self._table(self._one(_VERSYM), 2 * count) if _VERSYM in self._dynamic else b"")

    def _symbols(
        self, count: int, indexes: array[int], needs: dict[int, tuple[str, str]], defs: dict[int, str]
    ) -> tuple[tuple[Wanted, ...], Exports, bytes]:
        address = self._one(_SYMTAB)
        if not address:
            return (), NO_EXPORTS, b""
        referenced = self._referenced()
        if not count:
            count = self._count(referenced)
            indexes = self._indexes(count)
        wanted: dict[int, Wanted] = {}
        found = Definitions(defs)
        rows = (r for c in self._chunks(address, 24 * count) for r in struct.iter_unpack("<IBBHQQ", c))
        for number, (name_at, info, other, section, value, _) in enumerate(rows):
            index = indexes[number] if indexes else 1
            if not number or info >> 4 not in _DEFINING_BINDS:
                continue
            if section == 0:
                version, file = needs.get(index & 0x7FFF, ("", ""))
                wanted[number] = Wanted(
                    name=self._text(name_at),
                    version=version,
                    file=file,
                    weak=info >> 4 == _WEAK,
                    referenced=number in referenced,
                )
            elif (
                (value or section == 0xFFF1 or info & 15 == 6)
                and info & 15 in _DEFINING_TYPES
                and other & 3 not in (1, 2)
            ):
                found.add(self._name(name_at), index)
        in_turn = sorted(wanted, key=lambda n: (referenced.get(n, len(referenced)), n))
        return tuple(wanted[n] for n in in_turn if wanted[n].name), found.exports(), found.names()
