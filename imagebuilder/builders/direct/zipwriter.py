"""Writing a zip archive that depends on nothing but its members, whose packed data are taken as they are.

All times are 1980-01-01, the first that zip can say. Source: PKWARE APPNOTE.TXT 6.3.10, §4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO

_DATE, _TIME = 0x0021, 0
_LIMIT = 0xFFFFFFFF
_UTF8 = 0x800


class ZipWriter:
    """Writes members in the order of the calls; `finish` writes the directory. `out` starts at offset 0."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._at = 0
        self._directory: list[bytes] = []

    def add(
        self,
        path: str,
        mode: int,
        method: int,
        *,
        crc: int,
        size: int,
        compressed: int,
        data: Iterable[bytes],
    ) -> None:
        """A member whose packed data come in pieces; mode: with the file type."""
        name = path.encode()
        flags = 0 if name.isascii() else _UTF8
        offset = self._at
        large = size >= _LIMIT or compressed >= _LIMIT
        sizes = (_LIMIT, _LIMIT) if large else (compressed, size)
        extra = struct.pack("<2H2Q", 1, 16, size, compressed) if large else b""
        version = 45 if large or offset >= _LIMIT else 20
        fields = (version, flags, method, _TIME, _DATE, crc, *sizes, len(name))
        self._write(struct.pack("<4s5H3L2H", b"PK\x03\x04", *fields, len(extra)) + name + extra)
        start = self._at
        for piece in data:
            self._write(piece)
        if self._at - start != compressed:
            raise ValueError(f"{path}: {self._at - start} bytes of data instead of {compressed}")
        if offset >= _LIMIT:
            extra = struct.pack("<2H", 1, 24 if large else 8) + extra[4:] + struct.pack("<Q", offset)
        made_by = 3 << 8 | version  # Unix, so that the mode counts
        tail = (0, 0, 0, mode << 16, min(offset, _LIMIT))
        entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", made_by, *fields, len(extra), *tail)
        self._directory.append(entry + name + extra)

    def finish(self) -> None:
        """The central directory and the end record."""
        start, count = self._at, len(self._directory)
        for entry in self._directory:
            self._write(entry)
        length = self._at - start
        if count >= 0xFFFF or start >= _LIMIT:
            end64 = self._at
            self._write(
                struct.pack(
                    "<4sQ2H2L4Q", b"PK\x06\x06", 44, 3 << 8 | 45, 45, 0, 0, count, count, length, start
                )
            )
            self._write(struct.pack("<4sLQL", b"PK\x06\x07", 0, end64, 1))
        number = min(count, 0xFFFF)
        self._write(
            struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, number, number, length, min(start, _LIMIT), 0)
        )

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._at += len(data)
