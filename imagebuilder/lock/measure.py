"""Size and sha256 of a file to be locked: as its index says, else found out here, and said so in the lock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from imagebuilder.cache import Cache
from imagebuilder.index.http import Session
from imagebuilder.index.ranged import RangedFile, RangesUnsupported
from imagebuilder.index.simple import Indexes, IndexFile
from imagebuilder.lock.model import HASH_COMPUTED, HASH_FROM_INDEX
from imagebuilder.progress import Reporter
from imagebuilder.values import Digest

_KIND = "computed-sha256"
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A file whose sha256 and size are known. origin: who says the sha256 (`lock.model`)."""

    file: IndexFile
    sha256: Digest
    size: int
    origin: str


def measure(file: IndexFile, indexes: Indexes, cache: Cache, http: Session, reporter: Reporter) -> Measured:
    """Sizes are asked for; a missing sha256 costs the whole download, which then is in the cache."""
    size = indexes.size_of(file)
    if file.sha256 is not None:
        return _measured(file, file.sha256, size, HASH_FROM_INDEX)
    key = json.dumps([file.url, size])
    known = cache.read_record(_KIND, key)
    digest = Digest(known.decode()) if known else None
    if digest is None or cache.artefact(digest) is None:
        digest, size = _download(file, size, cache, http, reporter)
        cache.write_record(_KIND, key, digest.text.encode())
    return _measured(file, digest, size, HASH_COMPUTED)


def _measured(file: IndexFile, sha256: Digest, size: int, origin: str) -> Measured:
    return Measured(file=replace(file, sha256=sha256, size=size), sha256=sha256, size=size, origin=origin)


def _download(
    file: IndexFile, size: int, cache: Cache, http: Session, reporter: Reporter
) -> tuple[Digest, int]:
    cache.require_space(size)
    hashing, seen = hashlib.sha256(), 0
    with (
        cache.temporary() as folder,
        reporter.task(f"{file.filename} (its index publishes no hash)", total=size) as task,
    ):
        path = folder / "wheel"
        with path.open("wb") as out:
            for chunk in _chunks(file, http):
                hashing.update(chunk)
                seen += out.write(chunk)
                task.advance(len(chunk))
        digest = Digest.from_hex(hashing.hexdigest())
        cache.adopt(path, digest, proven=True)
    return digest, seen


def _chunks(file: IndexFile, http: Session) -> Iterator[bytes]:
    """The file's bytes; by ranges, which survive a broken connection, where the server has them."""
    try:
        remote = RangedFile(file.url, http, name=file.filename)
    except RangesUnsupported:
        with http.ask(file.url, file.filename, headers={"Accept-Encoding": "identity"}) as response:
            yield from response.iter_content(_CHUNK)
        return
    with remote:
        while chunk := remote.read(_CHUNK):
            yield chunk
