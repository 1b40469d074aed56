"""Layers read as streams: their members in order, nothing of them remembered.

Whoever made a layer may have lied in its headers. Paths that lead out of it, extended headers that would fill
the memory and sparse files are refused; a size that is not there ends in an error, not in an endless read.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.inflate import damage, decompressed
from imagebuilder.tarheaders import SmallHeaders

STEP = 1 << 18  # bytes of a file at a time


@contextmanager
def open_layer(path: Path) -> Iterator[Members]:
    """The members of a layer's blob: plain, gzip or zstd. ArtefactUnusable: it cannot be opened."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path.name, error) from None
    with file:
        yield Members(decompressed(file), path.name)


@contextmanager
def errors_of_reading(name: str) -> Iterator[None]:
    """Turns what is wrong with a layer into ArtefactUnusable."""
    wrong: tuple[type[Exception], ...] = (tarfile.TarError, *damage())
    try:
        yield
    except wrong as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> ArtefactUnusable:
    return ArtefactUnusable(f"{name} cannot be read as a layer", seen=str(error)[:200])


class Members:
    """(path, header) of each member of a tar, once, in order; the path without `./` and outer slashes.

    The root's path is empty. Read to its end, all of the stream was seen. ArtefactUnusable, when iterating
    and when reading contents: whatever is wrong with it.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = _Forward(stream)
        self._name = name

    def __iter__(self) -> Iterator[tuple[str, tarfile.TarInfo]]:
        with (
            errors_of_reading(self._name),
            tarfile.open(
                fileobj=self._stream,  # type: ignore[call-overload]
                mode="r:",
                tarinfo=SmallHeaders,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar,
        ):
            for member in tar:
                tar.members = []
                yield cleaned(member.name), member
            for _ in self._stream.pieces(None):  # what is cut off is damaged even behind the tar's end
                pass

    def chunks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """The bytes of the member that came last."""
        with errors_of_reading(self._name):
            self._stream.seek(member.offset_data)
            left = member.size
            for piece in self._stream.pieces(left):
                left -= len(piece)
                yield piece
            if left:
                raise tarfile.ReadError(f"{member.name[:100]!r} is cut off")

    def contents(self, member: tarfile.TarInfo, limit: int) -> bytes:
        """All its bytes, where they are at most `limit`."""
        if member.size > limit:
            raise ArtefactUnusable(
                f"{self._name}: {member.name[:100]!r} is too large",
                seen=f"{member.size} bytes",
                wanted=f"at most {limit}",
            )
        return b"".join(self.chunks(member))


def cleaned(name: str) -> str:
    """A member's or hard link's path as `Members` has it. ArtefactUnusable: it leads out of the layer."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise ArtefactUnusable("a layer has an unsafe path", seen=repr(name[:100]))
    return "/".join(parts)


class _Forward:
    """A stream as tarfile wants it, which only ever goes forward."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> int:
        if offset < self._at:
            raise tarfile.ReadError("a header points back")
        for _ in self.pieces(offset - self._at):
            pass
        return self._at

    def read(self, size: int) -> bytes:
        return b"".join(self.pieces(size))

    def pieces(self, size: int | None) -> Iterator[bytes]:
        """The next `size` bytes (None: all), or as many as there are."""
        while size is None or size > 0:
            try:
                piece: bytes = self._stream.read(STEP if size is None else min(size, STEP))
            except OSError as error:
                raise tarfile.ReadError(str(error)) from None
            if not piece:
                return
            self._at += len(piece)
            if size is not None:
                size -= len(piece)
            yield piece
