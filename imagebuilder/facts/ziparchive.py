"""Reading a zip archive that nobody trusts yet: the central directory in one go, members by their raw data.

Strict where `zipfile` is lenient, so that no reader can see other members than this one: the directory ends
exactly where the end record begins and the end record exactly at the end of the file; members do not overlap;
every local header says what the directory says. Source: PKWARE APPNOTE.TXT 6.3.10, §4.3–4.5.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts import zipmethods
from imagebuilder.oci.inflate import InflateError

STORED, DEFLATED = 0, 8
PIECE = 1 << 18  # bytes of packed data at a time

MAX_ENTRIES = 200_000  # the largest wheels on PyPI have some 50,000
MAX_DIRECTORY = 64 << 20
_MAX_RATIO = 1032  # deflate cannot do better; source: zlib's technical details
_BOMB_SIZE, _BOMB_RATIO = 2 << 30, 100

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ALL32 = 0xFFFFFFFF
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
_ENCRYPTED, _DESCRIPTOR, _PATCHED, _STRONG, _UTF8, _MASKED = 0x1, 0x8, 0x20, 0x40, 0x800, 0x2000


class Member(NamedTuple):
    """One entry of the central directory; a named tuple, since a wheel may have tens of thousands of them.

    path: as stored; a directory's ends in a slash. size, compressed: bytes. crc: CRC-32 of the contents.
    mode: the Unix mode with its file type, 0 where the archive has none. header: offset of the local header;
    end: no byte of the member lies behind it.
    """

    path: str
    raw_path: bytes
    method: int
    flags: int
    size: int
    compressed: int
    crc: int
    mode: int
    header: int
    end: int

    @property
    def is_dir(self) -> bool:
        """An entry for a folder; it has no contents."""
        return self.path.endswith("/")

    @property
    def is_symlink(self) -> bool:
        """An entry whose mode says that its contents are the target of a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def is_executable(self) -> bool:
        """As pip sees it: a regular file by its mode, with any execute bit."""
        return stat.S_ISREG(self.mode) and bool(self.mode & 0o111)


class ZipArchive:
    """A zip archive in a file on disk or in any seekable file object (then reads go through seek and read).

    name: for errors. ArtefactUnusable for everything that is not a sound zip archive. One thread at a time.
    """

    def __init__(self, source: Path | IO[bytes], name: str) -> None:
        self.name = name
        self._file: IO[bytes] = source.open("rb", buffering=0) if isinstance(source, Path) else source
        self._owned = isinstance(source, Path)
        self._window, self._window_at = b"", 0
        try:
            self.size = self._file.seek(0, io.SEEK_END)
            self.members = self._directory()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file if it was opened here."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> ZipArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bad(self, what: str, *, seen: str = "", wanted: str = "") -> ArtefactUnusable:
        """The error that says what is wrong with this archive."""
        return ArtefactUnusable(f"{self.name}: {what}", seen=seen, wanted=wanted)

    def data_start(self, member: Member) -> int:
        """Offset of the member's data in the file; its local header is seen to agree with the directory."""
        self._look_at(member.header, member.end)
        head = self._read(member.header, _LOCAL.size + len(member.raw_path))
        if not head.startswith(b"PK\x03\x04"):
            raise self.bad(f"there is no local header for {member.path!r}", seen=head[:4].hex())
        fields = _LOCAL.unpack_from(head)
        flags, method, crc, compressed, size, name_length, extra_length = (
            fields[2], fields[3], fields[6], fields[7], fields[8], fields[9], fields[10]
        )  # fmt: skip
        if head[_LOCAL.size :] != member.raw_path or name_length != len(member.raw_path):
            raise self.bad(
                f"the local header of {member.path!r} has another name",
                seen=repr(head[_LOCAL.size :][:name_length]),
                wanted=repr(member.raw_path),
            )
        start: int = member.header + _LOCAL.size + name_length + extra_length
        if start + member.compressed > member.end:
            raise self.bad(f"{member.path!r} overlaps what lies behind it in the archive")
        if _ALL32 in (size, compressed):
            extra = self._read(start - extra_length, extra_length)
            size, compressed, _ = self._zip64(extra, size, compressed, 0, member.path)
        seen = (method, flags & (_ENCRYPTED | _DESCRIPTOR), crc, compressed, size)
        wanted = (
            member.method,
            member.flags & (_ENCRYPTED | _DESCRIPTOR),
            member.crc,
            member.compressed,
            member.size,
        )
        later = flags & _DESCRIPTOR and not any((crc, compressed, size))
        if seen != wanted and not (later and seen[:2] == wanted[:2]):
            raise self.bad(
                f"the local header of {member.path!r} contradicts the central directory",
                seen="method {}, flags {:x}, CRC {:08x}, packed {}, size {}".format(*seen),
                wanted="method {}, flags {:x}, CRC {:08x}, packed {}, size {}".format(*wanted),
            )
        if flags & _DESCRIPTOR:
            self._check_descriptor(member, start + member.compressed)
        return start

    def raw(self, member: Member) -> Iterator[bytes]:
        """The member's data as they are stored, in pieces of at most PIECE bytes."""
        at, left = self.data_start(member), member.compressed
        while left:
            data = self._read(at, min(left, PIECE))
            yield data
            at += len(data)
            left -= len(data)

    def stream(self, member: Member) -> Iterator[bytes]:
        """The member's contents in pieces, proven to have the declared size and CRC when they end."""
        import deflate

        crc = 0
        try:
            for data in zipmethods.unpack(member.method, self.raw(member), member.size):
                crc = deflate.crc32(data, crc)
                yield data
        except InflateError as error:
            raise self.bad(f"{member.path!r} cannot be unpacked: {error}") from None
        if crc != member.crc:
            raise self.bad(
                f"the contents of {member.path!r} do not have the declared CRC-32",
                seen=f"{crc:08x}",
                wanted=f"{member.crc:08x}",
            )

    def read(self, member: Member, limit: int) -> bytes:
        """The member's whole contents, refused when they are declared larger than `limit` bytes."""
        if member.size > limit:
            raise self.bad(
                f"{member.path!r} is too large", seen=f"{member.size} bytes", wanted=f"at most {limit} bytes"
            )
        return b"".join(self.stream(member))

    def _read(self, at: int, size: int) -> bytes:
        """Exactly `size` bytes; from the window, where they are in it."""
        inside = at - self._window_at
        if inside >= 0 and inside + size <= len(self._window):
            return self._window[inside : inside + size]
        if self._owned:
            data = os.pread(self._file.fileno(), size, at)
        else:
            self._file.seek(at)
            data = self._file.read(size)
            while len(data) < size and (more := self._file.read(size - len(data))):
                data += more  # a raw file may give less than it is asked for
        if len(data) != size:
            raise self.bad("it ends early", seen=f"{self.size} bytes", wanted=f"{at + size} bytes or more")
        return data

    def _look_at(self, at: int, end: int) -> None:
        """Read a small member at once; of a remote file only what its header may be."""
        size = min(end - at, PIECE if self._owned else 1024)
        self._window, self._window_at = b"", 0
        self._window, self._window_at = self._read(at, size), at

    def _directory(self) -> tuple[Member, ...]:
        count, length, start = self._end_record()
        if count > MAX_ENTRIES or length > MAX_DIRECTORY:
            raise self.bad(
                "its directory is too large",
                seen=f"{count} entries, {length} bytes",
                wanted=f"at most {MAX_ENTRIES} entries, {MAX_DIRECTORY} bytes",
            )
        data = self._read(start, length)
        entries: list[tuple[int, Member]] = []
        at = 0
        while at < length:
            member, at = self._entry(data, at)
            entries.append((len(entries), member))
        if len(entries) != count:
            raise self.bad("its directory lies", seen=f"{len(entries)} entries", wanted=f"{count} entries")
        return self._placed(entries, start)

    def _end_record(self) -> tuple[int, int, int]:
        """(number of entries, length and offset of the central directory), from the end of the file."""
        for reach in (4096, _END.size + 0xFFFF):  # most archives have no comment
            tail_at = max(self.size - reach, 0)
            tail = self._read(tail_at, self.size - tail_at)
            found = tail.rfind(b"PK\x05\x06")
            if found >= 0:
                break
        if found < 0 or len(tail) - found < _END.size:
            raise self.bad("it is not a zip archive, or not all of one: there is no end record")
        end_at = tail_at + found
        _, disk, start_disk, here, count, length, start, comment = _END.unpack_from(tail, found)
        if end_at + _END.size + comment != self.size:
            raise self.bad("something follows the end of the archive")
        directory_end = end_at
        if _ALL32 in (length, start) or count == 0xFFFF:
            directory_end, disk, start_disk, here, count, length, start = self._end64(end_at)
        if disk or start_disk or here != count:
            raise self.bad("it is one part of an archive of several")
        if start + length != directory_end:
            raise self.bad(
                "its central directory is not where the end record says",
                seen=f"{length} bytes at {start}",
                wanted=f"its end at {directory_end}",
            )
        return count, length, start

    def _end64(self, end_at: int) -> tuple[int, int, int, int, int, int, int]:
        locator_at = end_at - _END64_LOCATOR.size
        if locator_at < 0:
            raise self.bad("its zip64 end record is missing")
        magic, disk, record_at, _ = _END64_LOCATOR.unpack(self._read(locator_at, _END64_LOCATOR.size))
        if magic != b"PK\x06\x07" or disk or record_at + _END64.size > locator_at:
            raise self.bad("its zip64 end record is missing")
        record = _END64.unpack(self._read(record_at, _END64.size))
        if record[0] != b"PK\x06\x06" or record_at + 12 + record[1] != locator_at:
            raise self.bad("its zip64 end record is damaged")
        return (record_at, *record[4:10])

    def _entry(self, data: bytes, at: int) -> tuple[Member, int]:
        """The entry at this place of the directory, and where the next one begins."""
        if at + _CENTRAL.size > len(data) or data[at : at + 4] != b"PK\x01\x02":
            raise self.bad("its central directory is damaged")
        (_, _, _, flags, method, _, _, crc, compressed, size, name_length, extra_length, comment_length,
         disk, _, external, header) = _CENTRAL.unpack_from(data, at)  # fmt: skip
        at += _CENTRAL.size
        raw_path = data[at : at + name_length]
        extra = data[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment_length
        if at > len(data):
            raise self.bad("its central directory is damaged")
        try:
            path = raw_path.decode("utf-8" if flags & _UTF8 else "cp437")
        except UnicodeDecodeError:
            raise self.bad(
                "a name in it is not the UTF-8 that it claims to be", seen=repr(raw_path)
            ) from None
        if extra and _UNICODE_PATH in _extra_kinds(extra):
            raise self.bad(f"{path!r} has a second name, which some readers see and others do not")
        if _ALL32 in (size, compressed, header):
            size, compressed, header = self._zip64(extra, size, compressed, header, path)
        if flags & (_ENCRYPTED | _STRONG | _MASKED):
            raise self.bad(f"{path!r} is encrypted")
        if flags & _PATCHED or not zipmethods.known(method):
            raise self.bad(
                f"{path!r} is packed in a way that installers do not know", seen=f"method {method}"
            )
        if disk:
            raise self.bad("it is one part of an archive of several")
        impossible = method == STORED and size != compressed
        if impossible or (method == DEFLATED and size > compressed * _MAX_RATIO):
            raise self.bad(
                f"the sizes of {path!r} cannot be", seen=f"{compressed} bytes packed, {size} unpacked"
            )
        # The upper half is the Unix mode whatever system made the entry: that is how pip reads it.
        mode = external >> 16
        return Member(
            path=path, raw_path=raw_path, method=method, flags=flags, size=size, compressed=compressed,
            crc=crc, mode=mode, header=header, end=0,
        ), at  # fmt: skip

    def _zip64(
        self, extra: bytes, size: int, compressed: int, header: int, path: str
    ) -> tuple[int, int, int]:
        """The three numbers, those that are all ones taken from the zip64 extra field, in this order."""
        values = [size, compressed, header]
        at = 0
        while at + 4 <= len(extra):
            kind, length = struct.unpack_from("<2H", extra, at)
            field = extra[at + 4 : at + 4 + length]
            at += 4 + length
            if kind != _ZIP64:
                continue
            place = 0
            for index, value in enumerate(values):
                if value == _ALL32:
                    if place + 8 > len(field):
                        raise self.bad(f"the zip64 sizes of {path!r} are incomplete")
                    values[index] = int.from_bytes(field[place : place + 8], "little")
                    place += 8
            return values[0], values[1], values[2]
        raise self.bad(f"the zip64 sizes of {path!r} are missing")

    def _placed(self, entries: list[tuple[int, Member]], directory: int) -> tuple[Member, ...]:
        """The members in the directory's order, each knowing where the next one begins; none overlap."""
        members = [member for _, member in entries]
        end = directory
        for index, member in sorted(entries, key=lambda entry: entry[1].header, reverse=True):
            if member.header + _LOCAL.size + len(member.raw_path) + member.compressed > end:
                raise self.bad(f"{member.path!r} overlaps what lies behind it in the archive")
            members[index] = member._replace(end=end)
            end = member.header
        size, packed = sum(m.size for m in members), sum(m.compressed for m in members)
        if size > _BOMB_SIZE and size > packed * _BOMB_RATIO:
            raise self.bad("it is a zip bomb", seen=f"{packed} bytes that unpack to {size}")
        return tuple(members)

    def _check_descriptor(self, member: Member, at: int) -> None:
        """The data descriptor behind the data (§4.3.9): with or without signature, 32 or 64 bits wide."""
        data = self._read(at, min(24, member.end - at))
        for lead in (b"PK\x07\x08", b""):
            for form in ("<LLL", "<LQQ"):
                if form == "<LLL" and max(member.size, member.compressed) > _ALL32:
                    continue
                if data.startswith(lead + struct.pack(form, member.crc, member.compressed, member.size)):
                    return
        raise self.bad(f"the data descriptor of {member.path!r} contradicts the central directory")


def _extra_kinds(extra: bytes) -> Iterator[int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        yield kind
        at += 4 + length
