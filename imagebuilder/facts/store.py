"""Facts by sha256: from the cache, else read from the file here, else by ranges from where the file lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, cast

from imagebuilder.cache import Cache
from imagebuilder.facts.collect import collect
from imagebuilder.facts.record import KIND, WheelFacts, decode, encode
from imagebuilder.facts.tables import runtimes
from imagebuilder.index.http import Session
from imagebuilder.index.ranged import RangedFile
from imagebuilder.values import Digest


class FactStore:
    """Reads facts of wheels once and keeps them. May be shared by threads; `http` only for remote files."""

    def __init__(self, cache: Cache, http: Session | None = None) -> None:
        self._cache, self._http = cache, http
        self.received = 0
        """Bytes read over the network so far."""

    def known(self, digest: Digest) -> WheelFacts | None:
        """What the cache has of this wheel."""
        record = self._cache.read_record(KIND, digest.hex)
        if record is None:
            return None
        try:
            return decode(record)
        except ValueError:
            return None

    def wheel(
        self, digest: Digest, filename: str, address: Callable[[], str] | None = None
    ) -> WheelFacts | None:
        """Facts of this wheel; None where it is not in the cache and `address` is None.

        A remote wheel is read whole only as far as its libraries go. Raises ArtefactUnusable.
        """
        facts = self.known(digest)
        if facts is not None:
            return facts
        path = self._cache.artefact(digest)
        if path is not None:
            with path.open("rb") as file:
                facts = self._collect(file, filename)
        elif address is not None and self._http is not None:
            remote = RangedFile(address(), self._http, name=filename)
            facts = self._collect(cast("IO[bytes]", remote), filename)
            self.received += remote.received
        else:
            return None
        self._cache.write_record(KIND, digest.hex, encode(facts))
        return facts

    @staticmethod
    def _collect(source: IO[bytes], filename: str) -> WheelFacts:
        return collect(source, filename, [(r.module, r.function) for r in runtimes()])
