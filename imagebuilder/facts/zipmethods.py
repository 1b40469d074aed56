"""Unpacking what a zip member holds, by its method; never more bytes than it declares."""

from __future__ import annotations

import bz2
import lzma
import struct
from collections.abc import Iterable, Iterator

from imagebuilder.oci.inflate import STEP, InflateError, inflate

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
_LZMA_MEMORY = 256 << 20  # a hostile header may ask for 4 GB


def known(method: int) -> bool:
    """Whether `unpack` can: the methods of Python's zipfile, since pip unpacks with it."""
    return method in (STORED, DEFLATED, BZIP2, LZMA)


def unpack(method: int, chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The `size` bytes that the packed data in `chunks` hold, in pieces. InflateError where they do not."""
    if method == DEFLATED:
        return inflate(chunks, size)
    if method == STORED:
        return _stored(chunks, size)
    return _other(method, chunks, size)


def _stored(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    left = size
    for chunk in chunks:
        left -= len(chunk)
        yield chunk
    if left:
        raise InflateError(f"{size - left} bytes instead of the declared {size}")


def _other(method: int, chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    source = iter(chunks)
    stream: bz2.BZ2Decompressor | lzma.LZMADecompressor
    if method == BZIP2:
        stream, rest = bz2.BZ2Decompressor(), b""
    else:
        stream, rest = _lzma(source, size)
    left = size
    while not stream.eof:
        try:
            data = stream.decompress(rest, min(STEP, left + 1))
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise InflateError(f"damaged data ({error})") from None
        left -= len(data)
        if left < 0:
            raise InflateError(f"it unpacks to more than the declared {size} bytes")
        if data:
            yield data
        rest = b""
        if stream.needs_input and not stream.eof:
            rest = next(source, b"")
            if not rest:
                break
    if left:
        raise InflateError(f"{size - left} bytes instead of the declared {size}")


def _lzma(source: Iterator[bytes], size: int) -> tuple[lzma.LZMADecompressor, bytes]:
    """A decoder that has seen the header; zip's (APPNOTE §5.8.8) is rewritten as that of a .lzma file."""
    head = next(source, b"")
    if len(head) < 9 or head[2:4] != b"\x05\x00":
        raise InflateError("damaged LZMA header")
    stream = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_LZMA_MEMORY)
    return stream, head[4:9] + struct.pack("<q", size) + head[9:]
