"""Bringing a blob from a registry into the cache: streamed, resumed where it broke, never over its size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from imagebuilder.cache import Incoming
from imagebuilder.oci.auth import pull_scope
from imagebuilder.oci.descriptor import Descriptor
from imagebuilder.oci.problems import Errand, misbehaves
from imagebuilder.oci.transport import Broken, Transport, read_chunks

TRIES = 5
"""How often a download is begun that gets no byte further."""
MAX_RESUMES = 100

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, kw_only=True)
class Download:
    """One blob on its way. advance: hears of bytes gained (below zero: lost again)."""

    source: Transport
    repository: str
    wanted: Descriptor
    errand: Errand
    incoming: Incoming
    advance: Callable[[int], None]

    def run(self) -> None:
        """Until all bytes are there; the cache verifies them. ArtefactUnusable."""
        if self.incoming.size > self.wanted.size:
            self.incoming.restart()
        self.advance(self.incoming.size)
        fruitless, reason = 0, ""
        for _ in range(MAX_RESUMES):
            if self.incoming.size == self.wanted.size and not self._is_spoilt():
                return
            before = self.incoming.size
            try:
                self._continue()
                reason = "the answer ended early"
            except Broken as exc:
                reason = str(exc)
            if self.incoming.size == self.wanted.size:
                continue
            fruitless = 0 if self.incoming.size > before else fruitless + 1
            if fruitless >= TRIES:
                break
            self.source.http.back_off(fruitless)
        raise self.source.broken(self.errand, reason)

    def _is_spoilt(self) -> bool:
        """Whether what an earlier run had left was wrong; then it is forgotten."""
        if not self.incoming.resumed or self.incoming.digest == self.wanted.digest:
            return False
        self._restart()
        return True

    def _restart(self) -> None:
        self.advance(-self.incoming.size)
        self.incoming.restart()

    def _continue(self) -> None:
        """Appends what the registry sends of the missing bytes. Broken."""
        start = self.incoming.size
        response = self.source.request(
            "GET",
            f"v2/{self.repository}/blobs/{self.wanted.digest}",
            self.errand,
            scopes=(pull_scope(self.repository),),
            ok=(200, 206, 416) if start else (200, 206),
            # Both ends: go-containerregistry does not understand a range without its end.
            headers={"Range": f"bytes={start}-{self.wanted.size - 1}"} if start else {},
        )
        with response:
            if response.status_code == 416:
                self._restart()
                raise Broken("the registry does not give a part of it")
            part = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if start and not (response.status_code == 206 and part and int(part[1]) == start):
                self._restart()
                if response.status_code == 206:
                    raise Broken("the registry sent another part than it was asked for")
            for chunk in read_chunks(response):
                if self.incoming.size + len(chunk) > self.wanted.size:
                    self._restart()
                    raise misbehaves(
                        self.errand, self.source.host, "more bytes", wanted=f"{self.wanted.size} bytes"
                    )
                self.incoming.write(chunk)
                self.advance(len(chunk))
