"""The rim of the checks that reads wheels: their facts, what their index says, whether patches apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, cast

from imagebuilder.cache import Cache
from imagebuilder.checks.subject import Misfit
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.patched import apply_patches
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.store import MOST_READERS, FactStore
from imagebuilder.facts.wheel import Wheel as OpenWheel
from imagebuilder.index.http import NotFound, Session, session
from imagebuilder.index.parallel import in_parallel
from imagebuilder.index.ranged import REMOTE_FAULTS, RangedFile
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack.model import Stack

_YANKED, _PATCHED = "yanked-1", "patches-apply-1"


@dataclass(frozen=True, kw_only=True)
class SeenWheels:
    """By package: facts; unread: why there are none; gone: why it is no longer where it was; yanked: the
    reason that its index gives; misfits: the patch that does not apply.
    """

    facts: dict[str, WheelFacts] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    yanked: dict[str, str] = field(default_factory=dict)
    misfits: dict[str, Misfit] = field(default_factory=dict)


def see_wheels(
    stack: Stack, lock: Lock, *, settings: Settings, cache: Cache, reporter: Reporter, online: bool = False
) -> SeenWheels:
    """Read every locked wheel, from the cache or by ranges. online: ask its index even if it is known."""
    with session(settings) as http:
        reader = _Reader(stack, lock, settings, cache, http)

        def one(wheel: Wheel) -> None:
            reader.read(wheel, online and not settings.offline)

        largest_first = sorted(lock.wheels, key=lambda w: -w.size)
        label = f"reading the wheels of {stack.name}"
        workers = min(MOST_READERS, settings.workers)
        in_parallel(reporter, label, one, largest_first, workers=workers, unit="wheel")
        if reader.store.received:
            reporter.note(f"read {reader.store.received / 1e6:.0f} MB of wheels by ranges")
        return reader.seen


class _Reader:
    """Shared by threads; each wheel is one thread's."""

    def __init__(self, stack: Stack, lock: Lock, settings: Settings, cache: Cache, http: Session) -> None:
        self._lock, self._cache, self._http, self._offline = lock, cache, http, settings.offline
        self._indexes = Indexes(stack.indexes, settings, cache, http)
        self._patches: Mapping[str, bytes] = {
            patch.digest.hex: patch.content for layer in stack.layers for patch in layer.patches
        }
        self.store = FactStore(cache, None if settings.offline else http)
        self.seen = SeenWheels()

    def read(self, wheel: Wheel, online: bool) -> None:
        """One wheel."""
        seen = self.seen
        try:
            if online and wheel.url is None:
                self._address(wheel)
            found = self.store.wheel(wheel.sha256, wheel.filename, lambda: self._address(wheel))
            if found is None:
                seen.unread[wheel.name] = "it is not here, and imagebuilder is offline"
                return
            seen.facts[wheel.name] = found
            self._try_patches(wheel)
        except NotFound as error:
            seen.gone[wheel.name] = error.seen or error.what
        except ArtefactUnusable as error:
            seen.unread[wheel.name] = f"{error.what}: {error.seen}" if error.seen else error.what
        if record := self._cache.read_record(_YANKED, f"{wheel.index} {wheel.sha256.hex}"):
            seen.yanked[wheel.name] = record.decode("utf-8", "replace")

    def _address(self, wheel: Wheel) -> str:
        if wheel.url:
            return wheel.url
        name, index = wheel.name, wheel.index or ""
        url = self._indexes.address_of(name, index, wheel.filename, wheel.sha256)
        said = next(f.yanked for f in self._indexes.project(name, index) if f.filename == wheel.filename)
        reason = b"" if said is None else said.strip().encode() or b"without a reason"
        self._indexes.forget(name, index)
        self._cache.write_record(_YANKED, f"{index} {wheel.sha256.hex}", reason)
        return url

    def _try_patches(self, wheel: Wheel) -> None:
        """Apply the wheel's patches to the files that they touch, once for the same wheel and patches."""
        locked = [p for p in self._lock.patches_of(wheel.name) if p.sha256.hex in self._patches]
        if not locked:
            return
        key = " ".join([wheel.sha256.hex, *(f"{p.path} {p.sha256.hex}" for p in locked)])
        record = self._cache.read_record(_PATCHED, key)
        if record is None:
            record = self._tried(wheel, [(p.path, self._patches[p.sha256.hex]) for p in locked])
            if record is None:
                return  # the wheel is not here, and cannot be read from afar
            self._cache.write_record(_PATCHED, key, record)
        if said := json.loads(record):
            self.seen.misfits[wheel.name] = Misfit(**said)

    def _tried(self, wheel: Wheel, patches: list[tuple[str, bytes]]) -> bytes | None:
        with ExitStack() as stack:
            path = self._cache.artefact(wheel.sha256)
            if path is None and self._offline:
                return None
            source = (
                stack.enter_context(path.open("rb"))
                if path
                else cast("IO[bytes]", RangedFile(self._address(wheel), self._http, name=wheel.filename))
            )
            opened = stack.enter_context(OpenWheel.open(source, wheel.filename))
            try:
                apply_patches(opened, patches)
            except REMOTE_FAULTS:
                raise
            except ArtefactUnusable as error:
                said = {"what": error.what, "seen": error.seen or "", "wanted": error.wanted or ""}
                return json.dumps(said).encode()
        return b"null"
