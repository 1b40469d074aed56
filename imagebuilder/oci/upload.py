"""Bringing blobs and manifests into a registry. Source: opencontainers/distribution-spec 1.1, "Push".

A blob goes in one streamed PUT. A broken one goes on where it broke if the registry says that it kept the
bytes, and takes the rest; else it is begun again. Chunks are not sent: some registries ignore Content-Range,
some drop later chunks. Whatever was put together, the registry checks its digest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

from imagebuilder.errors import ArtefactUnusable, PushFailed
from imagebuilder.oci.auth import pull_scope, push_scope
from imagebuilder.oci.problems import Errand, Interrupted, misbehaves
from imagebuilder.oci.transport import Stream, Transport
from imagebuilder.values import Digest

TRIES = 5
LONGEST_PAUSE = 60.0  # seconds
_PIECE = 1 << 18

Body = bytes | Stream | Callable[[], Stream]
"""What is sent: bytes, a stream, or what gives a stream once it is known that the blob must be sent."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A manifest that a registry took. listed: it said that it keeps it among its subject's referrers."""

    digest: Digest
    listed: bool


class FileBody:
    """A file of `size` bytes that is sent, from byte `start` on each time.

    advance: hears of bytes sent (below zero: they are sent again). check: called before every piece; what it
    raises ends the upload. sent: where the latest try came to.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        advance: Callable[[int], None] = lambda amount: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.sent = self.start = 0
        self._path = path
        self._size = size
        self._advance = advance
        self._check = check

    @property
    def end(self) -> int:
        """Where it ends: the file's size."""
        return self._size

    def __len__(self) -> int:
        return self._size - self.start

    def __iter__(self) -> Iterator[bytes]:
        self._advance(self.start - self.sent)
        self.sent = self.start
        with self._path.open("rb") as file:
            file.seek(self.start)
            while self.sent < self._size and (piece := file.read(min(_PIECE, self._size - self.sent))):
                self._check()
                yield piece
                self.sent += len(piece)
                self._advance(len(piece))
        if self.sent < self._size:
            raise ArtefactUnusable(
                f"{self._path} is too short", seen=f"{self.sent} bytes", wanted=f"{self._size} bytes"
            )


class Uploads:
    """Writes to the registry that `target` speaks to. Errors: PushFailed, MachineLacks, ArtefactUnusable."""

    def __init__(self, target: Transport) -> None:
        self._target = target

    def blob_exists(self, repository: str, digest: Digest) -> bool:
        """Whether the repository has the blob; one that lies elsewhere (a redirect) is there too."""
        with self._target.request(
            "HEAD",
            f"v2/{repository}/blobs/{digest}",
            Errand(thing=f"blob {digest} for {self._target.host}/{repository}", pushing=True),
            scopes=(push_scope(repository),),
            ok=(200, 302, 303, 307, 404),
            follow=False,
        ) as response:
            return response.status_code != 404

    def blob(self, repository: str, digest: Digest, body: Body, mount_from: Sequence[str]) -> str:
        """Brings a blob there: "exists", "mounted" or "pushed"."""
        errand = Errand(thing=f"blob {digest} for {self._target.host}/{repository}", pushing=True)
        broken: list[str] = []  # the address of an upload that broke

        def attempt() -> str:
            if self.blob_exists(repository, digest):
                return "exists"
            found = body() if callable(body) and broken else body
            if broken and isinstance(found, FileBody):
                if self._go_on(broken, repository, digest, found, errand):
                    return "pushed"
                found.start = 0
            url = self._begin(repository, digest, [r for r in mount_from if r != repository], errand)
            if url is None:
                return "mounted"
            broken[:] = [url]
            self._send(url, repository, digest, found() if callable(found) else found, errand)
            return "pushed"

        return self._persistently(attempt)

    def manifest(self, repository: str, data: bytes, media_type: str, reference: str) -> Stored:
        """Puts a manifest under a tag or under its digest."""
        digest = Digest.of(data)
        at = "@" if reference == digest.text else ":"
        errand = Errand(
            thing=f"the manifest of {self._target.host}/{repository}{at}{reference}", pushing=True
        )

        def attempt() -> Stored:
            with self._target.request(
                "PUT",
                f"v2/{repository}/manifests/{reference}",
                errand,
                scopes=(push_scope(repository),),
                ok=(200, 201, 202),
                headers={"Content-Type": media_type},
                body=data,
            ) as response:
                self._check_stored(response.headers.get("Docker-Content-Digest"), digest, errand)
                return Stored(digest=digest, listed="OCI-Subject" in response.headers)

        return self._persistently(attempt)

    def _begin(self, repository: str, digest: Digest, mount_from: list[str], errand: Errand) -> str | None:
        """The address of an upload; None: the registry linked the blob from another of its repositories."""
        for other in mount_from:
            query = urlencode({"mount": digest.text, "from": other})
            scopes = (push_scope(repository), pull_scope(other))
            try:
                status, url = self._post(repository, f"?{query}", scopes, errand)
            except Interrupted:
                raise
            except PushFailed:  # no right to read there, or no mounting: it can still be uploaded
                continue
            if status == 201:
                return None
            if other == mount_from[-1]:
                return url
        return self._post(repository, "", (push_scope(repository),), errand)[1]

    def _post(self, repository: str, query: str, scopes: tuple[str, ...], errand: Errand) -> tuple[int, str]:
        """(201 mounted or 202 begun, the upload's address)."""
        with self._target.request(
            "POST", f"v2/{repository}/blobs/uploads/{query}", errand, scopes=scopes, ok=(201, 202)
        ) as response:
            location = response.headers.get("Location", "")
            if response.status_code == 201:
                return 201, ""
            if not location:
                raise misbehaves(errand, self._target.host, "it names no address for the upload")
            return 202, self._target.absolute(location, response.url, errand)

    def _go_on(
        self, broken: list[str], repository: str, digest: Digest, body: FileBody, errand: Errand
    ) -> bool:
        """Send what the upload at this address lacks. False: nothing was kept, or the rest is not taken."""
        scopes = (push_scope(repository),)
        try:
            with self._target.request("GET", broken[0], errand, scopes=scopes, ok=(204,)) as told:
                kept = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", told.headers.get("Range", ""))
                location = told.headers.get("Location", broken[0])
                broken[0] = self._target.absolute(location, told.url, errand)
            body.start = int(kept[1]) + 1 if kept else 0
            if 1 < body.start <= body.end:  # "0-0" is what an upload without any byte says too
                self._send(broken[0], repository, digest, body, errand)
                return True
        except Interrupted:
            raise
        except PushFailed:
            pass
        broken.clear()
        return False

    def _send(self, url: str, repository: str, digest: Digest, body: bytes | Stream, errand: Errand) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(body, FileBody) and body.start and len(body):
            headers["Content-Range"] = f"{body.start}-{body.end - 1}"
        with self._target.request(
            "PUT",
            url + ("&" if urlsplit(url).query else "?") + f"digest={digest}",
            errand,
            scopes=(push_scope(repository),),
            ok=(201, 204),
            headers=headers,
            body=body if len(body) else b"",
        ) as response:
            self._check_stored(response.headers.get("Docker-Content-Digest"), digest, errand)

    def _check_stored(self, stored: str | None, digest: Digest, errand: Errand) -> None:
        if stored not in (None, digest.text):
            raise misbehaves(
                errand, self._target.host, f"it stored {str(stored)[:100]!r}", wanted=digest.text
            )

    def _persistently(self, attempt: Callable[[], T]) -> T:
        for tries in range(TRIES - 1):
            try:
                return attempt()
            except Interrupted as exc:
                if exc.wait is None:
                    self._target.http.back_off(tries)
                else:
                    self._target.http.pause(min(exc.wait, LONGEST_PAUSE))
        return attempt()
