"""Facts by sha256: from the cache, else read from the file here, else by ranges from where the file lies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache as once
from typing import IO, cast

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.collect import collect, collect_front
from imagebuilder.facts.record import KIND, WheelFacts, decode, encode
from imagebuilder.facts.tables import runtimes
from imagebuilder.index.http import Session
from imagebuilder.index.ranged import RangedFile
from imagebuilder.values import Digest

FRONT_KIND = "facts-front-3"
MOST_READERS = 4
"""Threads that read facts at once: unpacking is outside the interpreter's lock, but not all of the work."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_APART = 5 << 20  # bytes; above what one request of a ranged file brings


class FactStore:
    """Reads facts of wheels once and keeps them. May be shared by threads; `http` only for remote files."""

    def __init__(self, cache: Cache, http: Session | None = None) -> None:
        _give_large_blocks_back()
        self.cache, self._http = cache, http
        self.received = 0
        """Bytes read over the network so far."""

    def known(self, digest: Digest | None) -> WheelFacts | None:
        """What the cache has of this wheel."""
        return self._record(KIND, digest.hex) if digest else None

    def wheel(
        self, digest: Digest | None, filename: str, address: Callable[[], str] | None = None
    ) -> WheelFacts | None:
        """Facts of this wheel; None where it is not in the cache and cannot be read from afar.

        Of a remote wheel, its libraries and metadata are read. digest: None where no index published one;
        then nothing is kept. Raises ArtefactUnusable.
        """
        facts = self.known(digest)
        if facts is not None:
            return facts
        path = self.cache.artefact(digest) if digest else None
        if path is not None:
            with path.open("rb") as file:
                facts = self._collect(file, filename)
        elif address is not None and self._http is not None:
            remote = RangedFile(address(), self._http, name=filename)
            facts = self._collect(cast("IO[bytes]", remote), filename)
            self.received += remote.received
        else:
            return None
        record = encode(facts)
        if digest:
            self.cache.write_record(KIND, digest.hex, record)
        return decode(record)  # of many wheels at once, only what is asked for may take memory

    def front(
        self,
        digest: Digest | None,
        filename: str,
        address: Callable[[], str],
        whole: frozenset[str] = frozenset(),
    ) -> WheelFacts:
        """What little reading tells (`collect_front`); all facts where the cache has them."""
        key = " ".join([digest.hex if digest else "", *sorted(whole)])
        facts = self.known(digest) or (self._record(FRONT_KIND, key) if digest else None)
        if facts is not None:
            return facts
        path = self.cache.artefact(digest) if digest else None
        if path is not None:
            with path.open("rb") as file:
                facts = collect_front(file, filename, whole=whole)
        elif self._http is not None:
            remote = RangedFile(address(), self._http, name=filename)
            facts = collect_front(cast("IO[bytes]", remote), filename, whole=whole)
            self.received += remote.received
        else:
            raise ArtefactUnusable(
                f"{filename} is not here", hint="run again without --offline, to read it by ranges"
            )
        if digest:
            self.cache.write_record(FRONT_KIND, key, encode(facts))
        return facts

    def _record(self, kind: str, key: str) -> WheelFacts | None:
        record = self.cache.read_record(kind, key)
        with suppress(ValueError):
            return decode(record) if record else None
        return None

    @staticmethod
    def _collect(source: IO[bytes], filename: str) -> WheelFacts:
        return collect(source, filename, [(r.module, r.function) for r in runtimes()])


@once
def _give_large_blocks_back() -> None:
    """Large blocks (tables, records) lie apart from the heap, and return to the system once they are free.

    glibc else puts blocks of up to 32 MB into the heap after the first of that size was freed, where a small
    one behind them keeps them. Other C libraries see to it themselves.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _APART)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _APART)
