"""A member of a wheel as a file that can be read at any place, without unpacking it to disk.

What is packed can only be read forwards, so reading goes from front to back once. Going back is served from
what is remembered: the front, where headers and tables lie, and the last blocks; anything else is unpacked
again from the beginning, beside the reading that has got furthest. Memory: some 6 MB, and up to 32 MB of
the end where tables lie there, however large it is.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts import zipmethods
from imagebuilder.facts.elf import Seekable
from imagebuilder.oci.inflate import InflateError

_INPUT = 1 << 18  # read from the source at a time
_FRONT = 4 << 20  # bytes of the front that are remembered
_MOST_AGAIN = 8  # times its size: real libraries need half of it once, a hostile one could ask for days
_LAST = 2 << 20  # bytes before the place that reading has got to that are remembered
_MOST = 32 << 20  # bytes at the end that may be remembered, where they are asked for


def unwatched(at: int, data: bytes) -> None:
    """Looks at nothing."""


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


class Packed:
    """The `size` bytes that `source` holds packed by this zip method (`packed` bytes from `start` on).

    what: names it in errors. watch: is shown every byte once, in order, as far as reading gets. Raises
    ArtefactUnusable when the data are damaged, or are not `size` bytes.
    """

    def __init__(
        self,
        source: Seekable,
        *,
        method: int,
        start: int,
        packed: int,
        size: int,
        what: str,
        watch: Callable[[int, bytes], None] = unwatched,
    ) -> None:
        self._begin = partial(_unpacked, Stored(source, start, packed), method, packed, size, what)
        self._size, self._what, self._watch, self._at = size, what, watch, 0
        self._front: list[tuple[int, bytes]] = []
        self._last: deque[tuple[int, bytes]] = deque()
        self._late = size
        self._furthest = _Forward(self._begin())
        self._again: _Forward | None = None
        self._repeated = 0
        self._block_at, self._block = 0, b""

    def remember(self, *places: int) -> None:
        """What lies at and behind these places is wanted in any order, where it is not far from the end."""
        self._late = min((p for p in places if self._size - _MOST <= p), default=self._size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As io.IOBase.seek."""
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else self._size)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """As io.RawIOBase.read; never more than `size` bytes of the member in all."""
        left = max(self._size - self._at, 0)
        size = left if size < 0 else min(size, left)
        whole = io.BytesIO()  # a list of parts would hold a large table twice
        while size:
            if not self._block_at <= self._at < self._block_at + len(self._block):
                self._block_at, self._block = self._find(self._at)
            begin = self._at - self._block_at
            part = self._block[begin : begin + size]
            whole.write(part)
            self._at += len(part)
            size -= len(part)
        return whole.getvalue()

    def _find(self, place: int) -> tuple[int, bytes]:
        """The block that holds this place, and where it begins."""
        while place >= self._furthest.end:
            self._furthest.advance()
            block = self._furthest.at, self._furthest.block
            self._watch(*block)
            if self._furthest.at < _FRONT:
                self._front.append(block)
            self._last.append(block)
            while self._last[0][0] + len(self._last[0][1]) <= min(self._furthest.end - _LAST, self._late):
                self._last.popleft()
        for remembered in (self._front, list(self._last)):
            index = bisect_right(remembered, place, key=lambda block: block[0]) - 1
            if index >= 0 and place < remembered[index][0] + len(remembered[index][1]):
                return remembered[index]
        if self._again is None or place < self._again.at:
            self._again = _Forward(self._begin())
        while place >= self._again.end:
            self._again.advance()
            self._repeated += len(self._again.block)
            if self._repeated > _MOST_AGAIN * self._size:
                raise _bad(self._what, "tables that lead back again and again", "tables in order")
        return self._again.at, self._again.block


class _Forward:
    """One reading from the beginning: the block that it has got to, and where that begins and ends."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.at, self.end, self.block = 0, 0, b""

    def advance(self) -> None:
        self.block = next(self._blocks)
        self.at, self.end = self.end, self.end + len(self.block)


def _unpacked(source: Stored, method: int, packed: int, size: int, what: str) -> Iterator[bytes]:
    """The blocks from the beginning. No method: it would keep its member, and what that remembers, alive."""
    try:
        yield from zipmethods.unpack(method, _pieces(source, packed), size)
    except InflateError as error:
        raise _bad(what, str(error), f"{size} bytes") from None


def _pieces(source: Stored, packed: int) -> Iterator[bytes]:
    for at in range(0, packed, _INPUT):
        source.seek(at)
        yield source.read(_INPUT)


def _bad(what: str, seen: str, wanted: str) -> ArtefactUnusable:
    return ArtefactUnusable(f"{what} cannot be unpacked", seen=seen, wanted=wanted)
