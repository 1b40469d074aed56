"""Inflating raw deflate data in bounded steps, with whatever library is fastest here.

Inflating has one right answer, so the library does not matter for the bytes: isal where it is installed,
else the interpreter's zlib. *Compressing* is another matter, see `encode`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import IO, Any

STEP = 1 << 18  # bytes of output at a time: they are still in the CPU's cache when they are hashed

Buffer = bytes | bytearray | memoryview


class InflateError(Exception):
    """The data are not one deflate stream of exactly the size that was declared; the text says why."""


def _fastest() -> ModuleType:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    module: ModuleType = isal_zlib
    return module


_library: ModuleType = _fastest()


def use_library(module: ModuleType) -> ModuleType:
    """Inflate with this module (it has zlib's interface) from now on; returns the one used before."""
    global _library
    before, _library = _library, module
    return before


def library_name() -> str:
    """`isal`, `zlib_ng` or `zlib`: what inflates here."""
    return _library.__name__.partition(".")[0]


def inflate(chunks: Iterable[Buffer], size: int) -> Iterator[bytes]:
    """The `size` bytes that these chunks of one raw deflate stream hold, in pieces of at most STEP.

    Never inflates more than one byte beyond `size`. InflateError when the stream is damaged, ends early,
    holds more or fewer bytes, or has anything behind it.
    """
    stream: Any = _library.decompressobj(-15)
    left = size
    for chunk in chunks:
        if stream.eof and len(chunk):
            raise InflateError(f"{len(chunk)} or more bytes follow the end of the deflate stream")
        rest: Buffer = chunk
        while True:
            limit = min(STEP, left + 1)
            try:
                data: bytes = stream.decompress(rest, limit)
            except Exception as error:  # each library has its own class for this
                raise InflateError(f"damaged deflate data ({error})") from None
            left -= len(data)
            if left < 0:
                raise InflateError(f"it inflates to more than the declared {size} bytes")
            if data:
                yield data
            if stream.eof or (len(data) < limit and not stream.unconsumed_tail):
                break
            rest = stream.unconsumed_tail
        if stream.unused_data:
            raise InflateError(f"{len(stream.unused_data)} bytes follow the end of the deflate stream")
    if not stream.eof:
        raise InflateError("the deflate stream ends early")
    if left:
        raise InflateError(f"it inflates to {size - left} bytes, not to the declared {size}")


def decompressed(file: IO[bytes]) -> Any:
    """The stream inside a layer's blob: tar as it is, in gzip, or in zstd. Reading it raises `damage()`."""
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        try:
            from isal import igzip

            return igzip.IGzipFile(fileobj=file)  # type: ignore[no-untyped-call]
        except ImportError:
            return gzip.GzipFile(fileobj=file)
    if magic == b"\x28\xb5\x2f\xfd":
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            file, read_across_frames=True
        )
    return file


@cache
def damage() -> tuple[type[Exception], ...]:
    """What `decompressed` raises for damaged data, besides OSError."""
    import zstandard

    found: list[Any] = [EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile]
    with suppress(ImportError):
        from isal import igzip_lib

        found.append(igzip_lib.IsalError)
    return tuple(found)
