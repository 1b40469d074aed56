"""Small wheels for tests: well-formed ones in a few lines, malformed ones byte by byte."""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

FILE, EXECUTABLE, LINK, NO_TYPE = 0o100644, 0o100755, 0o120777, 0o755


@dataclass(frozen=True, kw_only=True)
class Content:
    """A file of a wheel: its bytes, the Unix mode and method in the archive, whether RECORD lists it."""

    data: bytes
    mode: int = FILE
    method: int = zipfile.ZIP_DEFLATED
    recorded: bool = True


def record_row(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}"


def make_wheel(
    folder: Path,
    name: str = "sample",
    version: str = "1.0",
    files: Mapping[str, bytes | Content] | None = None,
    *,
    entry_points: str = "",
    record: str | None = None,
    filename: str | None = None,
    metadata: str = "",
    method: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Writes a wheel and returns its path. `record` replaces the RECORD that would be right.

    method: of files given as bytes, and of the dist-info folder's.
    """
    info = f"{name}-{version}.dist-info"
    contents = {
        path: content if isinstance(content, Content) else Content(data=content, method=method)
        for path, content in (files or {}).items()
    }
    contents.setdefault(
        f"{info}/METADATA",
        Content(
            data=f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode(),
            method=method,
        ),
    )
    contents.setdefault(
        f"{info}/WHEEL",
        Content(
            data=b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            method=method,
        ),
    )
    if entry_points:
        contents[f"{info}/entry_points.txt"] = Content(data=entry_points.encode())
    if record is None:
        rows = [record_row(path, content.data) for path, content in contents.items() if content.recorded]
        record = "\n".join([*rows, f"{info}/RECORD,,", ""])
    contents[f"{info}/RECORD"] = Content(data=record.encode("utf-8", "surrogateescape"), method=method)
    path = folder / (filename or f"{name}-{version}-py3-none-any.whl")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in contents.items():
            entry = zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = content.mode << 16
            entry.compress_type = content.method
            archive.writestr(entry, content.data)
    return path


@dataclass(frozen=True, kw_only=True)
class Raw:
    """A zip entry of which every field can lie; what is None is told truthfully."""

    name: bytes
    data: bytes = b""
    method: int = 8
    flags: int = 0
    packed: bytes | None = None
    crc: int | None = None
    size: int | None = None
    compressed: int | None = None
    mode: int = FILE
    extra: bytes = b""
    offset: int | None = None
    local: Mapping[str, object] = field(default_factory=dict)
    extra_length: int | None = None
    descriptor: bytes = b""
    gap: bytes = b""

    def payload(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method == 0:
            return self.data
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        return packer.compress(self.data) + packer.flush()

    def fields(self) -> tuple[int, int, int]:
        """CRC, packed size, size."""
        return (
            zlib.crc32(self.data) if self.crc is None else self.crc,
            len(self.payload()) if self.compressed is None else self.compressed,
            len(self.data) if self.size is None else self.size,
        )


def raw_zip(
    entries: list[Raw], *, count: int | None = None, comment: bytes = b"", trailing: bytes = b""
) -> bytes:
    """A zip archive of these entries, lies included."""
    body, directory = b"", b""
    for entry in entries:
        told = replace(entry, local={}, **dict(entry.local))  # type: ignore[arg-type]
        body += entry.gap
        offset = len(body) if entry.offset is None else entry.offset
        body += struct.pack(
            "<4s5H3L2H",
            b"PK\3\4",
            20,
            told.flags,
            told.method,
            0,
            33,
            *told.fields(),
            len(told.name),
            len(told.extra) if told.extra_length is None else told.extra_length,
        )
        body += told.name + told.extra + entry.payload() + entry.descriptor
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 0x314, 20, entry.flags, entry.method, 0, 33, *entry.fields(),
            len(entry.name), len(entry.extra), 0, 0, 0, entry.mode << 16, offset,
        )  # fmt: skip
        directory += entry.name + entry.extra
    number = len(entries) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), len(body), len(comment))
    return body + directory + end + comment + trailing


def raw_wheel_entries(name: str = "sample", version: str = "1.0") -> list[Raw]:
    """The three files that every wheel has."""
    info = f"{name}-{version}.dist-info".encode()
    return [
        Raw(
            name=info + b"/METADATA",
            data=f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        ),
        Raw(name=info + b"/WHEEL", data=b"Wheel-Version: 1.0\nTag: py3-none-any\n"),
        Raw(name=info + b"/RECORD", data=info + b"/RECORD,,\n"),
    ]
