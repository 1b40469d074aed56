"""A member of a wheel as a file that can be read at any place, without unpacking it.

Deflate can only be read forwards, so the state of the decompressor is remembered every few megabytes; going
back costs one step of inflating, not the whole member. Memory: at most `_STEPS` states of about 40 kB.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.elf import Seekable

_BLOCK = 1 << 18  # inflated at a time
_INPUT = 1 << 16  # read from the source at a time
_STEPS = 64
_SMALLEST_STEP = 4 << 20


class Stored:
    """`size` bytes of `source` from `start` on, as a file of their own."""

    def __init__(self, source: Seekable, start: int, size: int) -> None:
        self._source, self._start, self._size, self._at = source, start, size, 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As io.IOBase.seek."""
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else self._size)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """As io.RawIOBase.read."""
        left = max(self._size - self._at, 0)
        size = left if size < 0 else min(size, left)
        if not size:
            return b""
        self._source.seek(self._start + self._at)
        data = self._source.read(size)
        self._at += len(data)
        return data


class Deflated:
    """The `size` bytes that a raw deflate stream in `source` (`packed` bytes from `start` on) holds.

    what: names it in errors. watch: is shown every byte once, in order, as far as reading gets. Raises
    ArtefactUnusable when the stream is damaged, or ends before `size`.
    """

    def __init__(
        self,
        source: Seekable,
        *,
        start: int,
        packed: int,
        size: int,
        what: str,
        watch: Callable[[int, bytes], None] = lambda at, data: None,
    ) -> None:
        self._source = Stored(source, start, packed)
        self._watch, self._watched = watch, 0
        self._size, self._what, self._at = size, what, 0
        self._step = max(_SMALLEST_STEP, size // _STEPS)
        first: Any = zlib.decompressobj(-15)
        self._states: list[tuple[int, int, Any]] = [(0, 0, first)]  # output place, input place, decompressor
        self._block, self._block_at = b"", 0
        self._restore(0)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As io.IOBase.seek."""
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else self._size)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """As io.RawIOBase.read; never more than `size` bytes of the member in all."""
        left = max(self._size - self._at, 0)
        size = left if size < 0 else min(size, left)
        parts = []
        while size:
            self._load(self._at)
            begin = self._at - self._block_at
            part = self._block[begin : begin + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        return b"".join(parts)

    def _load(self, place: int) -> None:
        """Make the current block the one that holds this place."""
        end = self._block_at + len(self._block)
        if self._block_at <= place < end:
            return
        index = bisect_right(self._states, place, key=lambda s: s[0]) - 1
        if place < end or self._states[index][0] > end:
            self._restore(index)
        while not self._block_at <= place < self._block_at + len(self._block):
            self._advance()

    def _restore(self, index: int) -> None:
        output, taken, stream = self._states[index]
        self._stream = stream.copy()
        self._taken = taken
        self._block, self._block_at = b"", output

    def _advance(self) -> None:
        output = self._block_at + len(self._block)
        if output - self._states[-1][0] >= self._step:
            self._states.append((output, self._taken, self._stream.copy()))
        data = b""
        while not data:
            if self._stream.eof:
                raise self._bad(f"it ends after {output} bytes", f"{self._size} bytes")
            self._source.seek(self._taken)
            packed = self._source.read(_INPUT)
            try:
                data = self._stream.decompress(packed, _BLOCK)
            except zlib.error as error:
                raise self._bad(f"damaged deflate data ({error})", "a deflate stream") from None
            self._taken += len(packed) - len(self._stream.unconsumed_tail)
            if not data and not packed:
                raise self._bad(f"it ends after {output} bytes", f"{self._size} bytes")
        self._block, self._block_at = data, output
        if output == self._watched:
            self._watch(output, data)
            self._watched += len(data)

    def _bad(self, seen: str, wanted: str) -> ArtefactUnusable:
        return ArtefactUnusable(f"{self._what} cannot be unpacked", seen=seen, wanted=wanted)
