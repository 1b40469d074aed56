"""A remote file that can be read anywhere, over HTTP ranges: a wheel's METADATA without the wheel.

What is read is not verified by a hash (nobody has seen the whole file): whoever needs certainty downloads.
"""

from __future__ import annotations

import io
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass

import requests
import urllib3

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.http import ATTEMPTS, Denied, NotFound, Session, Unreachable, failure
from imagebuilder.settings import redact

BLOCK = 1 << 15
_LARGEST_REQUEST = 4 << 20
_MOST_KEPT = 6 << 20  # bytes: one of the largest requests, and what was read before it
_ANSWERS = (
    206,
    200,
    416,
    501,
)  # the last three: it cannot, and does as if nothing had been asked, or says so
_PLAIN = {"Accept-Encoding": "identity"}


class RangesUnsupported(ArtefactUnusable):
    """The server sends files only as a whole: download it."""


class FileChanged(ArtefactUnusable):
    """The server has another file there than a moment ago."""


REMOTE_FAULTS = (NotFound, Denied, Unreachable, RangesUnsupported, FileChanged)
"""What reading from afar raises: it says something about the server, and nothing about the artefact."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One answer: bytes from `start` to `end` (exclusive) of a file of `size` bytes."""

    start: int
    end: int
    size: int
    etag: str
    data: bytes


class RangedFile(io.RawIOBase):
    """A seekable, read-only binary file at an address; fits `zipfile.ZipFile`.

    The end is fetched first, with the request that also tells the size: archives have their directory there.
    Reading on doubles what is fetched at once, up to 4 MiB. `read_at` may be called from many threads; the
    position of `seek` and `read` is one, as with every file. `requests` and `received` (bytes) count traffic.
    Raises FileChanged when the remote file changes meanwhile, and what `http` raises.
    """

    def __init__(self, url: str, http: Session, *, name: str = "", tail: int = 2 * BLOCK) -> None:
        super().__init__()
        self.name = name or redact(url).rsplit("/", 1)[-1]
        self.requests = 0
        self.received = 0
        self._url, self._http = url, http
        self._position = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, bytes] = OrderedDict()  # what was fetched, by where it begins
        self._where: dict[int, int] = {}  # number of a block → where what holds it begins
        self._next, self._window = (
            -1,
            1,
        )  # block after the last fetched ones; blocks to fetch when it is wanted
        self._etag = ""
        self.size = -1
        self.size = self._fetch_tail(tail)

    # ------------------------------------------------------------------ as a file

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next `read`."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As with every file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("a position before the beginning of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end of the file."""
        left = max(0, self.size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self.read_at(self._position, wanted)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        """All that is left."""
        return self.read()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """As with every raw file."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, fewer only at the end of the file; from any thread."""
        end = min(offset + size, self.size)
        parts: list[bytes] = []
        while offset < end:
            start, data = self._holding(offset // BLOCK, -(-end // BLOCK) - offset // BLOCK)
            part = data[offset - start : end - start]
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ------------------------------------------------------------------ blocks

    def _holding(self, number: int, needed: int) -> tuple[int, bytes]:
        """What holds the block of that number, and where it begins; `needed`: blocks wanted from there on."""
        with self._lock:
            if number in self._where:
                start = self._where[number]
                self._kept.move_to_end(start)
                return start, self._kept[start]
            self._window = min(2 * self._window, _LARGEST_REQUEST // BLOCK) if number == self._next else 1
            count = min(max(needed, self._window), _LARGEST_REQUEST // BLOCK, -(-self.size // BLOCK) - number)
            while count > 1 and number + count - 1 in self._where:  # the tail, mostly
                count -= 1
            self._next = number + count
        start = number * BLOCK
        data = self._request(start, min((number + count) * BLOCK, self.size))
        with self._lock:
            self._keep(start, data)
        return start, data

    def _keep(self, start: int, data: bytes) -> None:
        self._forget(start)  # two threads may have asked for the same
        self._kept[start] = data
        self._where.update(dict.fromkeys(_blocks(start, data), start))
        while sum(map(len, self._kept.values())) > _MOST_KEPT:
            self._forget(next(iter(self._kept)))

    def _forget(self, start: int) -> None:
        for number in _blocks(start, self._kept.pop(start, b"")):
            if self._where.get(number) == start:
                del self._where[number]

    def _fetch_tail(self, tail: int) -> int:
        """Fetch the last bytes; the size of the file."""
        try:
            part = self._get(f"bytes=-{tail}", tail)
        except RangesUnsupported:  # some servers have ranges, but not from the end
            size = self._ask_size()
            part = self._get(f"bytes={max(0, size - tail)}-{size - 1}", tail)
        if part.end != part.size:
            raise RangesUnsupported(
                f"{self.name} cannot be read in parts", seen="another range than asked for"
            )
        self._etag = part.etag
        first = -(-part.start // BLOCK) * BLOCK
        self._keep(first, part.data[first - part.start :])
        return part.size

    def _ask_size(self) -> int:
        with self._http.ask(
            self._url, self.name, method="HEAD", headers=_PLAIN, allow_redirects=True
        ) as response:
            length = response.headers.get("Content-Length", "")
            ranges = response.headers.get("Accept-Ranges", "")
        self.requests += 1
        if ranges.lower() != "bytes" or not length.isdigit() or int(length) == 0:
            raise RangesUnsupported(
                f"{self.name} cannot be read in parts", seen="the server offers no ranges"
            )
        return int(length)

    def _request(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, whole, of the same file as before."""
        part = self._get(f"bytes={start}-{end - 1}", end - start)
        seen = (part.start, part.end, part.size, part.etag)
        wanted = (start, end, self.size, self._etag)
        if seen != wanted:
            form = "bytes {}-{} of {}, ETag {}"
            raise FileChanged(
                f"{self.name} changed while it was read",
                seen=form.format(*seen),
                wanted=form.format(*wanted),
                hint="run it again",
            )
        return part.data

    def _get(self, byte_range: str, most: int) -> _Part:
        """One range of at most so many bytes; asked again when the connection drops."""
        for attempt in range(ATTEMPTS):
            headers = {"Range": byte_range, **_PLAIN}
            with self._http.ask(self._url, self.name, *_ANSWERS, headers=headers) as response:
                self.requests += 1
                if response.status_code != 206:
                    seen = f"HTTP {response.status_code} for a Range"
                    raise RangesUnsupported(f"{self.name} cannot be read in parts", seen=seen)
                try:
                    return self._part(response, most)
                except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                    if attempt == ATTEMPTS - 1:
                        raise failure(error, self._url, self.name) from None
            self._http.back_off(attempt)
        raise AssertionError("unreachable")

    def _part(self, response: requests.Response, most: int) -> _Part:
        text = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", text)
        if not match or not 0 <= int(match[2]) - int(match[1]) < most or int(match[2]) >= int(match[3]):
            raise RangesUnsupported(f"{self.name} cannot be read in parts", seen=f"Content-Range: {text!r}")
        start, end = int(match[1]), int(match[2]) + 1
        data: bytes = response.raw.read(end - start, decode_content=False)
        self.received += len(data)
        if len(data) != end - start:
            raise urllib3.exceptions.ProtocolError("the connection ended too early")
        etag = response.headers.get("ETag", "")
        return _Part(start=start, end=end, size=int(match[3]), etag=etag, data=data)


def _blocks(start: int, data: bytes) -> range:
    """The numbers of the blocks that these data are, from a block's begin on."""
    return range(start // BLOCK, -(-(start + len(data)) // BLOCK))
