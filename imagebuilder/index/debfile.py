"""Reading one Debian package file: an `ar` archive of `debian-binary`, `control.tar.*` and `data.tar.*`.

Source: deb(5). A package is hostile until read: sizes that lie, bombs, odd members and unsafe names are
ArtefactUnusable. Nothing is ever unpacked below a path that the package names.
"""

from __future__ import annotations

import errno
import io
import lzma
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.tarheaders import SmallHeaders

CHUNK = 1 << 18
_MAX_CONTROL = 64 << 20  # bytes of an unpacked control.tar; the largest in the archive has about 10 MB
MAX_DATA = 16 << 30  # bytes of an unpacked data.tar; the largest package in the archive has about 7 GB


@dataclass(frozen=True, kw_only=True)
class Member:
    """A part of the file: `compression` is `xz`, `zst`, `gz` or empty; offset and size in bytes."""

    compression: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class DebLayoutInfo:
    """Where the two archives lie in the .deb."""

    control: Member
    data: Member


def locate(deb: BinaryIO, name: str) -> DebLayoutInfo:
    """Finds the members. `name` is for error messages. Raises ArtefactUnusable for anything but format 2."""
    size = deb.seek(0, io.SEEK_END)
    deb.seek(0)
    if deb.read(8) != b"!<arch>\n":
        raise ArtefactUnusable(f"{name} is not a Debian package (no ar archive)")
    found: dict[str, Member] = {}
    offset, first = 8, True
    while offset < size:
        deb.seek(offset)
        header = deb.read(60)
        length = header[48:58].strip()
        if len(header) != 60 or header[58:] != b"`\n" or not length.isdigit():
            raise ArtefactUnusable(f"{name} is a damaged Debian package: a bad ar header at byte {offset}")
        member = header[:16].rstrip(b" ").removesuffix(b"/").decode("ascii", "replace")
        start, length_int = offset + 60, int(length)
        if start + length_int > size:
            raise ArtefactUnusable(
                f"{name} is a damaged Debian package: {member} is cut off",
                seen=f"{size - start} bytes",
                wanted=f"{length_int} bytes",
            )
        if first and (member != "debian-binary" or not deb.read(length_int).startswith(b"2.")):
            raise ArtefactUnusable(f"{name} is not a Debian package of format 2")
        first = False
        kind, dot, compression = member.partition(".tar")
        if dot and kind in {"control", "data"}:
            if kind in found or compression not in {"", ".xz", ".zst", ".gz"}:
                raise ArtefactUnusable(f"{name} has a member {member!r} that cannot be read")
            found[kind] = Member(compression=compression[1:], offset=start, size=length_int)
        offset = start + length_int + length_int % 2
    if "control" not in found or "data" not in found:
        raise ArtefactUnusable(f"{name} is a damaged Debian package: control or data archive is missing")
    return DebLayoutInfo(control=found["control"], data=found["data"])


def unpacked(deb: BinaryIO, member: Member, name: str, limit: int) -> Iterator[bytes]:
    """The member's bytes, decompressed, in chunks; never more than `limit`."""
    total = 0
    try:
        for chunk in decompressed(_Window(deb, member.offset, member.size), member.compression):
            total += len(chunk)
            if total > limit:
                raise ArtefactUnusable(
                    f"{name} unpacks to more than it may", seen="more", wanted=f"at most {limit} bytes"
                )
            yield chunk
    except (lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ArtefactUnusable(f"{name} is a damaged Debian package: {error}") from None


def decompressed(window: Any, compression: str) -> Iterator[bytes]:
    """What a stream holds, in chunks; the library's own exceptions where it is damaged."""
    if compression == "zst":
        import zstandard

        try:
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
                window, read_across_frames=True
            ) as reader:
                while chunk := reader.read(CHUNK):
                    yield chunk
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
        return
    if compression == "gz":
        import gzip

        source: Any = gzip.GzipFile(fileobj=window)
    elif compression == "xz":
        source = lzma.LZMAFile(window)  # noqa: SIM115 - it does not own the window
    else:
        source = window
    while chunk := source.read(CHUNK):
        yield chunk


class _Window(io.RawIOBase):
    """A part of a file as a file of its own; forward only."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._left = file, offset, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left]
        self._file.seek(self._offset)
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        self._offset += count
        self._left -= count
        return int(count)


def read_control(deb: BinaryIO, info: DebLayoutInfo, name: str) -> dict[str, tuple[bytes, int]]:
    """The control archive's files: name → (contents, mode), e.g. `control`, `md5sums`, `postinst`."""
    data = b"".join(unpacked(deb, info.control, name, _MAX_CONTROL))
    files: dict[str, tuple[bytes, int]] = {}
    for entry in entries(io.BytesIO(data), len(data), name):
        path = clean(entry.name, name)
        if path and entry.isreg() and "/" not in path:
            files[path] = (data[entry.offset_data : entry.offset_data + entry.size], entry.mode & 0o777)
    if "control" not in files:
        raise ArtefactUnusable(f"{name} is a damaged Debian package: it has no control file")
    return files


def read_data(deb: BinaryIO, path: str, name: str, limit: int) -> bytes | None:
    """One file of the data archive; `limit`: of the whole archive, in bytes."""
    with tempfile.TemporaryFile() as spool:
        for chunk in unpacked(deb, locate(deb, name).data, name, limit):
            spool.write(chunk)
        for entry in entries(spool, spool.tell(), name):
            if entry.isreg() and clean(entry.name, name) == path:
                spool.seek(entry.offset_data)
                return spool.read(entry.size)
    return None


def entries(file: BinaryIO, size: int, name: str) -> Iterator[tarfile.TarInfo]:
    """The headers of an unpacked tar file, to its very end; contents are at `offset_data` in `file`."""
    end = file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=SmallHeaders, encoding="utf-8") as tar:
            for entry in tar:
                tar.members = []  # type: ignore[attr-defined]  # else every header is kept
                end = entry.offset_data + (-(-entry.size // 512) * 512 if entry.isreg() else 0)
                if end > size:
                    raise ArtefactUnusable(f"{name}: {entry.name} is cut off")
                yield entry
    except tarfile.TarError as error:
        raise ArtefactUnusable(f"{name} is a damaged Debian package: {error}") from None
    file.seek(end)
    if file.read(512).strip(b"\0"):  # tarfile takes a bad header for the end
        raise ArtefactUnusable(f"{name} is a damaged Debian package: a bad tar header at byte {end}")


def clean(path: str, name: str) -> str:
    """A tar path without `./`; the empty string is the root. Absolute paths and `..` are ArtefactUnusable."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or "\n" in path:
        raise ArtefactUnusable(f"{name} has a file with the unsafe path {path!r}")
    return "/".join(part for part in parts if part not in {"", "."})


def stanza(text: bytes, name: str) -> dict[str, str]:
    """One control paragraph: field → value, continuation lines kept with their newline and space."""
    from debian.deb822 import Deb822

    try:
        fields = dict(Deb822(text.decode("utf-8")).items())
    except (UnicodeDecodeError, ValueError) as error:
        raise ArtefactUnusable(f"{name} has a control file that cannot be read: {error}") from None
    return {str(key): str(value) for key, value in fields.items()}


def open_deb(path: Path) -> BinaryIO:
    """The .deb, unbuffered enough for several readers of different parts."""
    try:
        return path.open("rb")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # no fault of the file's
            raise
        raise ArtefactUnusable(f"{path.name} cannot be read: {error.strerror}") from None
