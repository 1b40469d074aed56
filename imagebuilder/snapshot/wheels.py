"""The wheels of an index that may be the installed one, and what is in each: read by ranges, never as a
whole.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.wheel import Wheel
from imagebuilder.index.http import Denied, NotFound, Session, Unreachable
from imagebuilder.index.simple import Indexes, IndexFile
from imagebuilder.lock.choose import best_wheel, rank, why_unfit
from imagebuilder.lock.measure import Measured, measure
from imagebuilder.lock.metadata import Reading, metadata_from
from imagebuilder.lock.model import DEFAULT_INDEX
from imagebuilder.lock.pinned import DIRECT
from imagebuilder.lock.target import TargetFacts
from imagebuilder.progress import Reporter
from imagebuilder.snapshot.guess import indexed_version
from imagebuilder.snapshot.installed import digest_of_row
from imagebuilder.snapshot.model import Candidate, Installed, Listing
from imagebuilder.snapshot.places import places_of
from imagebuilder.stack.model import Index
from imagebuilder.values import Digest

_KIND = "wheel-listing"
_FIELDS = ("name", "version", "requires_dist")


@dataclass(kw_only=True)
class Answers:
    """What looking for the wheels of one distribution brought, beside candidates: why there are none.

    listed: files of that version. silent: index → what is wrong with it.
    """

    listed: list[IndexFile] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    versions: set[Version] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)


class Finder:
    """Looks for wheels. May be used by several threads."""

    def __init__(
        self,
        indexes: Indexes,
        target: TargetFacts,
        *,
        cache: Cache,
        http: Session,
        reporter: Reporter,
        prefix: str,
    ) -> None:
        self._indexes, self._target = indexes, target
        self._cache, self._http, self._reporter = cache, http, reporter
        self.reading = Reading(cache=cache, http=http, reporter=reporter)
        self._prefix = prefix
        self._down: dict[str, str] = {}
        self._lock = threading.Lock()

    def candidates(
        self, installed: Installed, indexes: Sequence[Index], answers: Answers
    ) -> Iterator[Candidate]:
        """The wheels of the installed version that install on the target, the likeliest first.

        Each is only read when it is asked for. Raises ArtefactUnusable where the default index does not
        answer.
        """
        for file in self._files(installed, indexes, answers):
            measured = measure(file, self._indexes, self._cache, self._http, self._reporter)
            listing = self.listing(measured)
            yield Candidate(
                measured=measured,
                listing=listing,
                places=places_of(listing, installed, self._prefix, self._target.python),
            )

    def why_none(self, installed: Installed, answers: Answers) -> str:
        """Why no file of an index could be the installed one."""
        version = indexed_version(installed.version)
        if answers.listed:
            unfit = why_unfit(answers.listed, self._target)
            return f"{installed.name} {version}: {unfit}" if unfit else ""
        if answers.silent:
            return "; ".join(f"the index {name} {why}" for name, why in sorted(answers.silent.items()))
        if answers.versions:
            newest = ", ".join(str(v) for v in sorted(answers.versions)[-3:])
            return f"{installed.name} {version} is not (or no longer) on the index, which has {newest}"
        return f"no index in reach knows {installed.name}"

    def listing(self, measured: Measured) -> Listing:
        """What is in the wheel, from the cache where it was read before."""
        key = measured.sha256.hex
        stored = self._cache.read_record(_KIND, key)
        if stored is None:
            with self.reading.opened(measured.file) as wheel:
                stored = zlib.compress(json.dumps(_listed(wheel), separators=(",", ":")).encode(), 1)
            self._cache.write_record(_KIND, key, stored)
        found = json.loads(zlib.decompress(stored))
        return Listing(
            dist_info=found["dist-info"],
            members=found["members"],
            metadata=metadata_from(found["metadata"], measured.file.filename),
            scripts=frozenset(found["scripts"]),
        )

    def _files(self, installed: Installed, indexes: Sequence[Index], answers: Answers) -> Iterator[IndexFile]:
        version = Version(indexed_version(installed.version))
        if direct := _direct(installed):
            yield direct
        for index in indexes:
            everything = self._project(installed.name, index.name, answers)
            answers.versions |= {f.version for f in everything}
            mine = [f for f in everything if f.version == version]
            answers.listed += mine
            yield from sorted(
                (f for f in mine if f.is_wheel and rank(f.filename, self._target) is not None),
                key=lambda f: self._likelihood(f, installed, mine),
            )

    def _likelihood(
        self, file: IndexFile, installed: Installed, files: list[IndexFile]
    ) -> tuple[object, ...]:
        """Sort key: a wheel whose tags are those inside, then what an installer takes here."""
        tags = frozenset(map(str, parse_wheel_filename(file.filename)[3]))
        best = best_wheel(files, file.version, self._target)
        return tags != installed.tags, best != file, file.filename

    def _project(self, name: str, index: str, answers: Answers) -> list[IndexFile]:
        with self._lock:
            down = self._down.get(index)
        if down is None:
            try:
                return self._indexes.project(name, index)
            except NotFound:
                answers.unknown.append(index)
                return []
            except (Unreachable, Denied, ArtefactUnusable) as error:
                if index == DEFAULT_INDEX:
                    raise
                down = f"cannot be asked: {error.what}"
                if isinstance(error, Unreachable | Denied):
                    with self._lock:
                        self._down[index] = down
        answers.silent[index] = down
        return []


def _direct(installed: Installed) -> IndexFile | None:
    """The file that it was installed from, where that is a wheel at an address of the web."""
    origin = installed.origin
    if origin is None or origin.kind != "wheel" or "***@" in origin.url or "?" in origin.url:
        return None
    parts = urlsplit(origin.url)
    if parts.scheme != "https":
        return None
    filename = PurePosixPath(unquote(parts.path)).name
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    if name != installed.name:
        return None
    return IndexFile(
        name=name,
        version=version,
        filename=filename,
        url=parts._replace(fragment="").geturl(),
        sha256=Digest.from_hex(origin.sha256) if origin.sha256 else None,
        size=None,
        requires_python=None,
        yanked=None,
        upload_time=None,
        index=DIRECT,
    )


def _listed(wheel: Wheel) -> dict[str, object]:
    rows = {row[0]: digest_of_row(row) for row in wheel.record() if row}
    raw = wheel.metadata()
    return {
        "dist-info": wheel.dist_info,
        "members": {member.path: rows.get(member.path, "") for member in wheel.files},
        "metadata": {key: raw.get(key) for key in _FIELDS},
        "scripts": sorted(
            e.name for e in wheel.entry_points() if e.group in ("console_scripts", "gui_scripts")
        ),
    }


def contents(reading: Reading, file: IndexFile, members: Sequence[str], limit: int) -> Mapping[str, bytes]:
    """The bytes of some files of a wheel; one that is larger than `limit` is left out."""
    with reading.opened(file) as wheel:
        found = {path: wheel.member(path) for path in members}
        return {
            path: wheel.read(member, limit)
            for path, member in found.items()
            if member is not None and member.size <= limit
        }
