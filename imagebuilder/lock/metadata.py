"""What a wheel's METADATA says, read once and kept by sha256: from the cache, or from afar by ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from packaging.requirements import InvalidRequirement, Requirement

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.download import Wanted, fetch_all
from imagebuilder.index.http import Session
from imagebuilder.index.ranged import RangedFile, RangesUnsupported
from imagebuilder.index.simple import IndexFile
from imagebuilder.progress import Reporter

if TYPE_CHECKING:
    from imagebuilder.facts.wheel import Wheel

_KIND = "wheel-metadata"


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The fields that resolution reads. unreadable: Requires-Dist lines that PEP 508 does not know."""

    name: str
    version: str
    requires: tuple[Requirement, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How wheels are read that lie on an index or in the cache."""

    cache: Cache
    http: Session
    reporter: Reporter

    def metadata(self, file: IndexFile) -> Metadata:
        """The METADATA of a wheel.

        What comes from afar is not the whole file, so its sha256 is not proven here: `lock.fetch` proves it.
        """
        stored = self.cache.read_record(_KIND, file.sha256.hex) if file.sha256 else None
        if stored is None:
            with self.opened(file) as wheel:
                raw = wheel.metadata()
            fields = {key: raw.get(key) for key in ("name", "version", "requires_dist")}
            stored = json.dumps(fields).encode()
            if file.sha256:
                self.cache.write_record(_KIND, file.sha256.hex, stored)
        return metadata_from(json.loads(stored), file.filename)

    def member_paths(self, file: IndexFile) -> frozenset[str]:
        """The paths of all files in a wheel."""
        with self.opened(file) as wheel:
            return frozenset(member.path for member in wheel.files)

    @contextmanager
    def opened(self, file: IndexFile) -> Iterator[Wheel]:
        """The wheel, where it lies. Its inner name is not compared with the file name: callers do."""
        from imagebuilder.facts.wheel import Wheel

        with self._bytes(file) as source, Wheel.open(source, label=file.filename) as wheel:
            yield wheel

    def _bytes(self, file: IndexFile) -> IO[bytes]:
        local = self.cache.artefact(file.sha256) if file.sha256 else None
        if local is None:
            try:
                return cast(IO[bytes], RangedFile(file.url, self.http, name=file.filename))
            except RangesUnsupported:
                if file.sha256 is None:
                    raise
            wanted = Wanted(
                name=file.filename, digest=file.sha256, size=file.size, url_lookup=lambda: file.url
            )
            settings = self.http.settings
            local = fetch_all([wanted], self.cache, settings, self.reporter)[file.sha256]
        return local.open("rb")


def metadata_from(fields: dict[str, object], filename: str) -> Metadata:
    """From `name`, `version` and `requires_dist`. ArtefactUnusable: one of the first two is missing."""
    name, version, lines = fields.get("name"), fields.get("version"), fields.get("requires_dist")
    if not isinstance(name, str) or not isinstance(version, str):
        raise ArtefactUnusable(f"{filename} has no usable METADATA", seen="no Name or no Version in it")
    requires: list[Requirement] = []
    unreadable: list[str] = []
    for line in lines if isinstance(lines, list) else []:
        try:
            requires.append(Requirement(line))
        except InvalidRequirement:
            unreadable.append(line)
    return Metadata(name=name, version=version, requires=tuple(requires), unreadable=tuple(unreadable))
