"""METADATA of a remote wheel without its whole directory: torch's alone is 1.2 MB, for 12,000 files.

Wheels end with their .dist-info folder (the specification recommends it), so the last directory entries are
enough. They are found from behind: a chain of entries that ends exactly where the directory ends.
Source: APPNOTE.TXT 4.3 and 4.4; the binary distribution format, "Recommended archiver features".
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import NamedTuple

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.ranged import RangedFile

_TAIL = 1 << 16
_LIMIT = 16 << 20
_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_METADATA = re.compile(rb"[^/]+\.dist-info/METADATA")


def wheel_metadata(file: RangedFile) -> bytes | None:
    """The METADATA file; None where it is not among the last entries: then read the archive as a whole.

    ArtefactUnusable: it is there and broken.
    """
    start = max(0, file.size - _TAIL)
    tail = file.read_at(start, _TAIL)
    end = tail.rfind(b"PK\5\6")
    if end < 0 or end + _END.size > len(tail):
        return None
    *_, directory_size, directory_start, comment_size = _END.unpack_from(tail, end)
    if end + _END.size + comment_size != len(tail) or directory_start + directory_size != start + end:
        return None  # ZIP64, or something before or after the archive
    entries = _last_entries(tail, max(0, directory_start - start), end)
    found = [entry for entry in entries if _METADATA.fullmatch(entry.name)]
    return _read(file, found[0]) if len(found) == 1 else None


class _Entry(NamedTuple):
    name: bytes
    method: int
    crc: int
    packed: int
    size: int
    offset: int  # of its local header


def _last_entries(tail: bytes, first: int, end: int) -> list[_Entry]:
    """The longest chain of directory entries between `first` and `end` that ends at `end`."""
    start = tail.find(b"PK\1\2", first, end)
    while start >= 0:
        entries: list[_Entry] = []
        position = start
        while position + _ENTRY.size <= end and tail.startswith(b"PK\1\2", position):
            fields = _ENTRY.unpack_from(tail, position)
            flags, method, crc, packed, size, name_size, extra_size, comment_size = (
                *fields[3:5],
                *fields[7:13],
            )
            name_start = position + _ENTRY.size
            if not flags & 1:  # not encrypted
                name = tail[name_start : name_start + name_size]
                entries.append(_Entry(name, method, crc, packed, size, fields[16]))
            position = name_start + name_size + extra_size + comment_size
        if position == end:
            return entries
        start = tail.find(b"PK\1\2", start + 1, end)
    return []


def _read(file: RangedFile, entry: _Entry) -> bytes:
    """The bytes of a member, checked."""
    header = file.read_at(entry.offset, _LOCAL.size)
    problem = "no header where the directory says"
    if len(header) == _LOCAL.size and header.startswith(b"PK\3\4"):
        *_, name_size, extra_size = _LOCAL.unpack(header)
        problem = f"{entry.packed} bytes for {entry.size}, compressed by method {entry.method}"
        if max(entry.packed, entry.size) <= _LIMIT and entry.method in (0, 8):
            packed = file.read_at(entry.offset + _LOCAL.size + name_size + extra_size, entry.packed)
            text = packed if entry.method == 0 else _inflate(packed, entry.size)
            problem = "its size or CRC is wrong"
            if (len(packed), len(text)) == (entry.packed, entry.size) and zlib.crc32(text) == entry.crc:
                return text
    raise ArtefactUnusable(f"the METADATA of {file.name} cannot be read", seen=problem)


def _inflate(packed: bytes, size: int) -> bytes:
    """Exactly one raw deflate stream of at most `size` bytes; empty where it is not."""
    stream = zlib.decompressobj(-15)
    try:
        text = stream.decompress(packed, size + 1)
    except zlib.error:
        return b""
    return text if stream.eof and not stream.unused_data else b""
