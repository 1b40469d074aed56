"""Downloads into the cache: parallel, resumed, hashed while they stream, verified before they have a name.

What decides whether a file is the right one is its sha256 alone. ETag (If-Range) only saves resuming a file
that has changed; a file that was resumed and has the wrong hash is fetched once more from its start.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3

from imagebuilder.cache import Cache, Cancelled, Incoming
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.http import ATTEMPTS, Pause, Session, failure
from imagebuilder.progress import Reporter, Task
from imagebuilder.settings import Settings, redact
from imagebuilder.values import Digest

_CHUNK = 1 << 18
_PROGRESS = 1 << 20
"""Bytes after which a broken connection counts as a new trouble, not as one more attempt."""
_REPLACED = "the file on the index was replaced, or something between it and here changes files"
_NETWORK = (requests.RequestException, ConnectionError, TimeoutError)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to have in the cache.

    url_lookup is called from a worker thread, and only when the file is not there: it may ask an index.
    size: bytes, None where nobody said. name: for people.
    """

    name: str
    digest: Digest
    size: int | None
    url_lookup: Callable[[], str]


def fetch_all(
    wanted: Sequence[Wanted],
    cache: Cache,
    settings: Settings,
    reporter: Reporter,
    *,
    pause: Pause | None = None,
) -> dict[Digest, Path]:
    """All of them in the cache, by digest. What is there is not asked for.

    The first error stops the others and is raised: ArtefactUnusable (of `http`: NotFound, Denied,
    Unreachable; or wrong bytes) or MachineLacks (disk). Interrupted, it leaves what can be resumed, never a
    wrong file. pause: instead of sleeping between attempts.
    """
    found = {w.digest: path for w in wanted if (path := cache.artefact(w.digest))}
    missing = list({w.digest: w for w in wanted if w.digest not in found}.values())
    if not missing:
        return found
    missing.sort(key=lambda w: -(w.size or 0))  # the longest first: they decide when all is done
    sizes = [w.size for w in missing]
    known = sum(size for size in sizes if size)
    cache.require_space(known - cache.partial_bytes(w.digest for w in missing))
    noun = "file" if len(missing) == 1 else "files"
    with (
        reporter.task(f"downloading {len(missing)} {noun}", total=None if None in sizes else known) as task,
        Session(settings, pause=pause) as http,
    ):
        paths = _Run(cache, http, task).all(missing)
    return found | {item.digest: path for item, path in zip(missing, paths, strict=True)}


class _Stopped(Exception):
    """Another download failed, or the user interrupted."""


class _Run:
    """One `fetch_all`: what its workers share."""

    def __init__(self, cache: Cache, http: Session, task: Task) -> None:
        self._cache, self._http, self._task = cache, http, task
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._open: set[requests.Response] = set()

    def all(self, wanted: Sequence[Wanted]) -> list[Path]:
        workers = min(self._http.settings.connections, len(wanted))
        pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="download")
        try:
            futures = [pool.submit(self._one, item) for item in wanted]
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done() and (error := future.exception()):
                    raise error
            return [future.result() for future in futures]
        finally:  # also on KeyboardInterrupt: workers end at their next byte, partial files stay
            self._stop.set()
            self._http.give_up()
            self._hang_up()
            pool.shutdown(cancel_futures=True)

    def _hang_up(self) -> None:
        """End reads that wait for bytes."""
        with self._lock:
            for response in self._open:
                with contextlib.suppress(Exception):  # it may be ending by itself just now
                    response.raw.shutdown()

    def _one(self, wanted: Wanted) -> Path:
        try:
            with self._cache.put_artefact(wanted.digest, self._stop.is_set) as incoming:
                if incoming:
                    self._task.advance(incoming.size)
                    self._fill(wanted, incoming)
                else:
                    self._task.advance(wanted.size or 0)
        except Cancelled:
            raise _Stopped from None
        path = self._cache.artefact(wanted.digest)
        if path is None:
            raise ArtefactUnusable(f"{wanted.name} was removed from the cache while it was used")
        return path

    def _fill(self, wanted: Wanted, incoming: Incoming) -> None:
        """Bring the incoming file to its end and check it; a wrong one that was resumed begins once more."""
        url = ""
        for last in (False, True):
            if wanted.size is not None and incoming.size > wanted.size:
                self._restart(incoming)
            if wanted.size is None or incoming.size < wanted.size:
                url = url or wanted.url_lookup()
                self._transfer(url, wanted, incoming)
            if incoming.digest == wanted.digest:
                return
            seen, resumed = f"{incoming.digest}, {incoming.size} bytes", incoming.resumed
            self._restart(incoming)
            if last or not resumed:
                size = "any size" if wanted.size is None else f"{wanted.size} bytes"
                raise ArtefactUnusable(
                    f"{wanted.name} has not the sha256 that it should have",
                    seen=f"{seen} from {redact(url)}",
                    wanted=f"{wanted.digest}, {size}",
                    hint=_REPLACED,
                )

    def _restart(self, incoming: Incoming) -> None:
        self._task.advance(-incoming.size)
        incoming.restart()

    def _transfer(self, url: str, wanted: Wanted, incoming: Incoming) -> None:
        """Append what is missing, over as many connections as it takes while they bring anything new."""
        attempt, furthest = 0, incoming.size
        while True:
            try:
                self._connection(url, wanted, incoming)
                return
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                if self._stop.is_set():
                    raise _Stopped from None
                if isinstance(error, OSError) and not isinstance(error, _NETWORK):
                    raise  # the disk
                attempt = 0 if incoming.size - furthest >= _PROGRESS else attempt + 1
                furthest = max(furthest, incoming.size)
                if attempt >= ATTEMPTS:
                    raise failure(error, url, wanted.name) from None
                self._http.back_off(attempt)

    def _connection(self, url: str, wanted: Wanted, incoming: Incoming) -> None:
        """One request, and its body to the end of the file."""
        headers = {"Accept-Encoding": "identity"}
        if incoming.size:
            headers["Range"] = f"bytes={incoming.size}-"
            if incoming.validator:
                headers["If-Range"] = incoming.validator
        also = (416,) if incoming.size else ()
        response = self._http.ask(url, wanted.name, 200, 206, *also, headers=headers)
        with response, self._watched(response):
            if response.status_code == 416:  # it ends here, or before
                if response.headers.get("Content-Range") == f"bytes */{incoming.size}":
                    return
                self._restart(incoming)
                raise urllib3.exceptions.ProtocolError("the file is shorter than what is here")
            total = self._place(response, wanted, incoming)
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                if self._stop.is_set():
                    raise _Stopped
                incoming.write(chunk)
                self._task.advance(len(chunk))
                if total is not None and incoming.size > total:
                    raise _wrong_size(wanted, f"more than {total}", response.url)
        if total is not None and incoming.size < total:
            raise urllib3.exceptions.ProtocolError("the connection ended too early")

    def _place(self, response: requests.Response, wanted: Wanted, incoming: Incoming) -> int | None:
        """Put the incoming file to where the body begins; the size it must get, where anybody says."""
        length = response.headers.get("Content-Length", "")
        if response.status_code == 206:
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if not match or int(match[1]) != incoming.size:
                self._restart(incoming)
                raise urllib3.exceptions.ProtocolError("another range than asked for")
            total = int(match[2]) if match[2].isdigit() else None
            incoming.resumed = True
        else:
            self._restart(incoming)
            total = int(length) if length.isdigit() else None
        if wanted.size is not None and total not in (None, wanted.size):
            self._restart(incoming)
            raise _wrong_size(wanted, str(total), response.url)
        etag = response.headers.get("ETag", "")
        if etag.startswith('"'):  # a weak one (W/) may not be used with If-Range: RFC 9110, section 13.1.5
            incoming.validator = etag
        return wanted.size if wanted.size is not None else total

    @contextlib.contextmanager
    def _watched(self, response: requests.Response) -> Iterator[None]:
        with self._lock:
            self._open.add(response)
        try:
            if self._stop.is_set():
                raise _Stopped
            yield
        finally:
            with self._lock:
                self._open.discard(response)


def _wrong_size(wanted: Wanted, seen: str, url: str) -> ArtefactUnusable:
    return ArtefactUnusable(
        f"{wanted.name} has not the size that it should have",
        seen=f"{seen} bytes from {redact(url)}",
        wanted=f"{wanted.size} bytes" if wanted.size is not None else "what Content-Length says",
        hint=_REPLACED,
    )
