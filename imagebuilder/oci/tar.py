"""Tar headers, the same bytes for the same entry: ustar, and PAX records only where ustar cannot say it.

Owners are numbers, names of owners are empty, devices are zero. Source: POSIX.1-2017, pax, "ustar
Interchange Format" and "pax Header".
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

BLOCK = 512
END = bytes(2 * BLOCK)

FILE, HARDLINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"
_PAX = b"x"
_PAX_NAME = b"././@PaxHeader"

_MAX_NUMBER = 8**11 - 1  # size and mtime
_MAX_ID = 8**7 - 1


class Entry(NamedTuple):
    """What a header says. name: relative; a directory's ends in a slash. link: where a link points.

    pax: further PAX records, such as extended attributes (`SCHILY.xattr.…`).
    """

    name: bytes
    kind: bytes
    size: int = 0
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    link: bytes = b""
    pax: tuple[tuple[bytes, bytes], ...] = ()


def padding(size: int) -> bytes:
    """The zeros that fill the last block of `size` bytes."""
    return bytes(-size % BLOCK)


def header(entry: Entry) -> bytes:
    """The header blocks of one entry: 512 bytes, or a PAX header before them where that is needed."""
    prefix, name = _split(entry.name)
    if (
        name
        and 0 <= entry.mtime <= _MAX_NUMBER
        and entry.size <= _MAX_NUMBER
        and entry.uid <= _MAX_ID
        and entry.gid <= _MAX_ID
        and len(entry.link) <= 100
        and entry.link.isascii()
        and not entry.pax
    ):
        return _block(entry, prefix, name)
    return _extended(entry)


def _split(name: bytes) -> tuple[bytes, bytes]:
    """(prefix, name) as ustar stores it; no name where it cannot."""
    if not name.isascii():
        return b"", b""
    if len(name) <= 100:
        return b"", name
    # At the first slash that leaves at most 100 bytes; a directory's own slash is part of its name.
    cut = name.find(b"/", len(name) - 101, len(name) - 1)
    if cut < 1 or cut > 155:
        return b"", b""
    return name[:cut], name[cut + 1 :]


# Magic "ustar", version "00", no names of owners, device 0,0.
_TAIL = b"ustar\x0000" + bytes(64) + b"0000000\x000000000\x00"


@lru_cache(maxsize=256)
def _owner(mode: int, uid: int, gid: int) -> tuple[bytes, int]:
    """The three fields that most entries of a layer share, and the sum of all fixed bytes of a header."""
    fields = b"%07o\0%07o\0%07o\0" % (mode, uid, gid)
    return fields, sum(fields) + sum(_TAIL) + sum(b" " * 8)


def _block(entry: Entry, prefix: bytes, name: bytes) -> bytes:
    owner, checksum = _owner(entry.mode, entry.uid, entry.gid)
    numbers = b"%011o\0%011o\0" % (entry.size, entry.mtime)
    checksum += sum(name) + sum(numbers) + entry.kind[0] + sum(entry.link) + sum(prefix)
    return b"".join(
        (
            name.ljust(100, b"\0"),
            owner,
            numbers,
            b"%06o\0 " % checksum,
            entry.kind,
            entry.link.ljust(100, b"\0"),
            _TAIL,
            prefix.ljust(167, b"\0"),
        )
    )


def _extended(entry: Entry) -> bytes:
    """A PAX header with what does not fit, then the entry with what an old reader can make of it."""
    records = dict(entry.pax)
    prefix, name = _split(entry.name)
    if not name:
        records[b"path"] = entry.name
        name = _ascii(entry.name)
        if entry.kind == DIRECTORY:
            name = name.rstrip(b"/")[:99] + b"/"
    if len(entry.link) > 100 or not entry.link.isascii():
        records[b"linkpath"] = entry.link
        entry = entry._replace(link=_ascii(entry.link))
    for key, limit in (("size", _MAX_NUMBER), ("mtime", _MAX_NUMBER), ("uid", _MAX_ID), ("gid", _MAX_ID)):
        number: int = getattr(entry, key)
        if not 0 <= number <= limit:
            records[key.encode()] = b"%d" % number
            entry = entry._replace(**{key: 0})  # type: ignore[arg-type]  # key is one of the four above
    body = b"".join(_record(key, records[key]) for key in sorted(records))
    before = _block(Entry(_PAX_NAME, _PAX, size=len(body)), b"", _PAX_NAME)
    return before + body + padding(len(body)) + _block(entry, prefix, name)


_TO_ASCII = bytes(range(128)) + b"?" * 128


def _ascii(name: bytes) -> bytes:
    """What an old reader sees: the first 100 bytes, with `?` for those that are not ASCII."""
    return name[:100].translate(_TO_ASCII)


def _record(key: bytes, value: bytes) -> bytes:
    r"""`LENGTH KEY=VALUE\n`, where LENGTH counts its own digits too."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest
