"""What an ELF file offers, kept small: names are hashes, as all that is asked is whether one is there."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

_PACKED_AT_ONCE = 2 << 20  # bytes of names


def symbol_hash(name: bytes) -> int:
    """The 64-bit hash under which an exported name is kept."""
    return int.from_bytes(_hashed(name), "little")


@dataclass(frozen=True, kw_only=True)
class Exports:
    """Defined symbols, as sorted hashes. glibc's do_lookup_x and check_match decide what satisfies what.

    plain: names that a reference without a version binds to. versioned: `name@VERSION`, and `name@` for a
    definition without a version in a library that has versions.
    """

    plain: array[int]
    versioned: array[int]
    has_versions: bool

    def has_plain(self, hashed: int) -> bool:
        """Is there a definition that a reference without version takes?"""
        return _contains(self.plain, hashed)

    def has_versioned(self, hashed: int) -> bool:
        """Is there this definition, by the hash of `name@VERSION` or `name@`?"""
        return _contains(self.versioned, hashed)


NO_EXPORTS = Exports(plain=array("Q"), versioned=array("Q"), has_versions=False)


class Definitions:
    """Collects definitions and turns them into Exports, as glibc's check_match would see them.

    Of most names only hashes are held: a library may have 26 MB of names.
    """

    def __init__(self, defs: dict[int, str]) -> None:
        self._defs = {index: b"@" + version.encode() for index, version in defs.items()}
        self._plain, self._versioned = bytearray(), bytearray()
        self._names: list[bytes] = []
        self._size = 0
        self._packer, self._packed = zlib.compressobj(6), list[bytes]()

    def add(self, name: bytes, index: int) -> None:
        """A definition, and the index of its version."""
        # A reference without version takes the base or oldest definition, or else the default one.
        if not index & 0x8000 or index & 0x7FFF < 3:
            self._plain += _hashed(name)
        if self._defs:
            version = self._defs.get(index & 0x7FFF, b"@")
            self._versioned += _hashed(name + version)
        self._names.append(name)
        self._size += len(name)
        if self._size > _PACKED_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        self._names.sort()  # what resembles each other packs well
        self._packed.append(self._packer.compress(b"\n".join([*self._names, b""])))
        self._names, self._size = [], 0

    def exports(self) -> Exports:
        """All that was added."""
        plain, versioned = _sorted(self._plain), _sorted(self._versioned)
        return Exports(plain=plain, versioned=versioned, has_versions=bool(self._defs))

    def names(self) -> bytes:
        """The names by line, packed by zlib; nothing where there are none."""
        if self._names:
            self._pack()
        return b"".join([*self._packed, self._packer.flush()]) if self._packed else b""


def _hashed(name: bytes) -> bytes:
    return blake2b(name, digest_size=8).digest()


def _sorted(hashes: bytearray) -> array[int]:
    """Each hash once."""
    return array("Q", [value for value, _ in groupby(sorted(array("Q", bytes(hashes))))])


def _contains(hashes: array[int], value: int) -> bool:
    at = bisect_left(hashes, value)
    return at < len(hashes) and hashes[at] == value
