"""Writing an image layer: a gzip stream of a tar, of many gzip members, hashed on both sides while written.

A gzip file may have many members (RFC 1952 §2.2). So a file that is already deflated, as every file of a
wheel is, becomes part of a layer without being compressed again: its deflate data are wrapped in a member of
their own, between small members with tar headers and padding. They are inflated once, to prove size and CRC
and to hash what they hold. A member starts exactly at every file's payload, which is also eStargz's rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci import encode, tar
from imagebuilder.oci.inflate import Buffer, InflateError, inflate
from imagebuilder.values import Digest

_GATHER = 1 << 18  # bytes of small pieces that are hashed and written in one go


@dataclass(frozen=True, kw_only=True)
class LayerBlob:
    """What became of a layer: digest and size of the gzip blob, diff_id and size of the tar in it."""

    digest: Digest
    size: int
    diff_id: Digest
    uncompressed_size: int


class LayerWriter:
    """Writes one layer to `out`, entry by entry, in the order of the calls; the caller sorts them.

    Paths are relative to the image's root ("opt/venv/bin"). Parents are not added. A path may come once only.
    Modes are permission bits, times are seconds since the epoch, owners are numbers. After an exception the
    layer is unfinished, and what was written to `out` is of no use.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._paths: set[str] = set()
        self._headers: list[bytes] = []  # tar bytes that wait for their gzip member
        self._headers_size = 0
        self._plain = _Side(None)
        self._packed = _Side(out)

    def directory(self, path: str, mode: int = 0o755, *, uid: int = 0, gid: int = 0, mtime: int = 0) -> None:
        """A directory."""
        name = self._claim(path) + b"/"
        self._entry(tar.header(tar.Entry(name, tar.DIRECTORY, 0, mode, uid, gid, mtime)))

    def symlink(
        self, path: str, target: str, *, mode: int = 0o777, uid: int = 0, gid: int = 0, mtime: int = 0
    ) -> None:
        """A symbolic link; `target` is written as it is."""
        if not target or "\0" in target:
            raise ArtefactUnusable(f"{path}: a symbolic link to {target!r} cannot exist")
        link = _encoded(target)
        self._entry(tar.header(tar.Entry(self._claim(path), tar.SYMLINK, 0, mode, uid, gid, mtime, link)))

    def hardlink(
        self, path: str, target: str, *, mode: int = 0o644, uid: int = 0, gid: int = 0, mtime: int = 0
    ) -> None:
        """A further name of `target`, a file written before."""
        target = target.strip("/")
        if target not in self._paths:
            raise ArtefactUnusable(f"{path}: a hard link to {target}, which is not in this layer before it")
        link = _encoded(target)
        self._entry(tar.header(tar.Entry(self._claim(path), tar.HARDLINK, 0, mode, uid, gid, mtime, link)))

    def file_bytes(
        self, path: str, data: Buffer, mode: int = 0o644, *, uid: int = 0, gid: int = 0, mtime: int = 0
    ) -> None:
        """A file with these bytes, compressed here."""
        size = len(data)
        self._file(tar.Entry(self._claim(path), tar.FILE, size, mode, uid, gid, mtime))
        self._plain.add(data)
        for member in encode.gzip_members(data):
            self._packed.add(member)
        self._pad(size)

    def file_stream(
        self,
        path: str,
        size: int,
        chunks: Iterable[Buffer],
        mode: int = 0o644,
        *,
        uid: int = 0,
        gid: int = 0,
        mtime: int = 0,
    ) -> None:
        """A file of `size` bytes that come in chunks of any length, compressed here; flat in memory."""
        self._file(tar.Entry(self._claim(path), tar.FILE, size, mode, uid, gid, mtime))
        seen = 0
        for piece in _rechunk(chunks, encode.CHUNK):
            seen += len(piece)
            if seen > size:
                break
            self._plain.add(piece)
            self._packed.add(encode.gzip_member(piece))
        if seen != size:
            more = "or more " if seen > size else ""
            raise ArtefactUnusable(
                f"{path}: its data are not of the declared size",
                seen=f"{seen} {more}bytes",
                wanted=f"{size} bytes",
            )
        self._pad(size)

    def file_deflated(
        self,
        path: str,
        size: int,
        crc32: int,
        chunks: Iterable[Buffer],
        mode: int = 0o644,
        *,
        uid: int = 0,
        gid: int = 0,
        mtime: int = 0,
    ) -> None:
        """A file of `size` bytes and this CRC-32 given as chunks of raw deflate data, taken over unchanged.

        They are inflated to prove both, never beyond `size`. ArtefactUnusable where anything disagrees.
        """
        import deflate

        self._file(tar.Entry(self._claim(path), tar.FILE, size, mode, uid, gid, mtime))
        if size:  # an empty file has no payload, so it needs no member; its stream is proven all the same
            self._packed.add(encode.GZIP_HEADER)
            chunks = self._passing(chunks)
        crc = 0
        try:
            for data in inflate(chunks, size):
                crc = deflate.crc32(data, crc)
                self._plain.add(data)
        except InflateError as error:
            raise ArtefactUnusable(f"{path}: {error}") from None
        if crc != crc32:
            raise ArtefactUnusable(
                f"{path}: the contents do not have the declared CRC-32",
                seen=f"{crc:08x}",
                wanted=f"{crc32:08x}",
            )
        if size:
            self._packed.add(encode.gzip_trailer(crc, size))
        self._pad(size)

    def finish(self) -> LayerBlob:
        """Ends the tar and the stream. `out` is neither flushed to disk nor closed."""
        self._entry(tar.END)
        self._end_headers()
        diff_id, uncompressed = self._plain.finish()
        digest, size = self._packed.finish()
        return LayerBlob(digest=digest, size=size, diff_id=diff_id, uncompressed_size=uncompressed)

    def _claim(self, path: str) -> bytes:
        """The name under which `path` is stored, once it is known to be a harmless and a new one."""
        name = path.strip("/")
        parts = name.split("/")
        if "\0" in name or "" in parts or "." in parts or ".." in parts:
            raise ArtefactUnusable(f"{path!r} is not a path that may be in a layer")
        if parts[-1].startswith(".wh."):
            # OCI image-spec, layer.md "Whiteouts": unpacked, it would delete a file of a layer below.
            raise ArtefactUnusable(
                f"{path!r} would be taken for a whiteout: no file in a layer may be called .wh.*"
            )
        if name in self._paths:
            raise ArtefactUnusable(f"{path!r} comes twice in one layer")
        self._paths.add(name)
        return _encoded(name)

    def _file(self, entry: tar.Entry) -> None:
        self._entry(tar.header(entry))
        if entry.size:
            self._end_headers()

    def _passing(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            self._packed.add(chunk)
            yield chunk

    def _pad(self, size: int) -> None:
        if size % tar.BLOCK:
            self._entry(tar.padding(size))

    def _entry(self, data: bytes) -> None:
        self._headers.append(data)
        self._headers_size += len(data)
        if self._headers_size >= encode.CHUNK:
            self._end_headers()

    def _end_headers(self) -> None:
        """Everything since the last payload becomes one member (or more, of CHUNK bytes each)."""
        data = b"".join(self._headers)
        self._headers.clear()
        self._headers_size = 0
        self._plain.add(data)
        for member in encode.gzip_members(data):
            self._packed.add(member)


class _Side:
    """One side of the layer, hashed, counted and, if packed, written; small pieces are gathered first."""

    def __init__(self, out: BinaryIO | None) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self._pieces: list[Buffer] = []
        self._gathered = 0
        self._size = 0

    def add(self, data: Buffer) -> None:
        length = len(data)
        self._size += length
        if self._gathered + length < _GATHER:
            self._pieces.append(data)
            self._gathered += length
            return
        self._flush()
        self._put(data)

    def finish(self) -> tuple[Digest, int]:
        self._flush()
        return Digest.from_hex(self._hash.hexdigest()), self._size

    def _flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._gathered = 0
            self._put(data)

    def _put(self, data: Buffer) -> None:
        self._hash.update(data)
        if self._out is not None:
            self._out.write(data)


def _encoded(name: str) -> bytes:
    """As a file system has it: UTF-8, and bytes that are none as `os.fsdecode` marks them."""
    return name.encode("utf-8", "surrogateescape")


def _rechunk(chunks: Iterable[Buffer], length: int) -> Iterator[bytes]:
    """The same bytes in pieces of exactly `length`, the last one shorter."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        while len(rest) >= length:
            yield bytes(rest[:length])
            del rest[:length]
    if rest:
        yield bytes(rest)
