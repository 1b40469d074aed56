"""The rim of the checks: reads what they look at, from the cache, from files here or by ranges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.checks import kept, registry
from imagebuilder.checks.model import Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.checks.system import assumed_system
from imagebuilder.checks.tables import load_tables
from imagebuilder.errors import ArtefactUnusable, MachineLacks
from imagebuilder.facts.debs import deb_facts, system_of
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.store import FactStore
from imagebuilder.index.http import NotFound, Session, session
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.fetch import adopt_wheels, fetch
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.lock.target import target_facts
from imagebuilder.oci.base import read_base, resolve_base
from imagebuilder.plan.model import Plan
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack.model import OciBase, Stack

_WORKERS = 4  # reading facts is mostly inflating and hashing


def check(
    stack: Stack,
    lock: Lock,
    plan: Plan,
    *,
    settings: Settings,
    cache: Cache,
    reporter: Reporter,
    previous: Lock | None = None,
    folder: Path | None = None,
    download: bool = False,
) -> list[Finding]:
    """The findings of a set, waivers applied; from the cache where the same set was checked before.

    folder: where the lock lies; wheels that were fetched beside it are read there. download: bring wheels
    whose facts are not known as whole files, since they are needed anyway.
    """
    base_env = _base_env(stack, lock, settings, cache)
    key = kept.key_of(stack, lock, previous, base_env)
    found = kept.read(cache, key)
    if found is None:
        unknown = _unknown(lock, cache)
        if unknown.wheels and folder is not None:
            adopt_wheels(unknown, cache, folder)
        if unknown.wheels and download:
            fetch(unknown, stack, settings, cache, reporter)
        subject = gather(
            stack, lock, plan, settings=settings, cache=cache, reporter=reporter, previous=previous
        )
        subject = replace(subject, base_env=base_env)
        found = registry.run(subject)
        if not (subject.unread or subject.gone or (subject.system_is_assumed and lock.debs)):
            kept.write(cache, key, found)
    return registry.judged(stack, found)


def known_findings(stack: Stack, lock: Lock, *, settings: Settings, cache: Cache) -> list[Finding] | None:
    """What `check` found in this very set before, waivers applied; None where it has not looked yet."""
    found = kept.read(cache, kept.key_of(stack, lock, None, _base_env(stack, lock, settings, cache)))
    return None if found is None else registry.judged(stack, found)


def read_wheels(
    stack: Stack, lock: Lock, *, settings: Settings, cache: Cache, reporter: Reporter
) -> tuple[dict[str, WheelFacts], dict[str, str], dict[str, str]]:
    """(facts by package, why a wheel could not be read, why it is no longer where it was)."""
    with session(settings) as http:
        return _wheels(stack, lock, settings=settings, cache=cache, reporter=reporter, http=http)


def gather(
    stack: Stack,
    lock: Lock,
    plan: Plan,
    *,
    settings: Settings,
    cache: Cache,
    reporter: Reporter,
    previous: Lock | None = None,
) -> Subject:
    """Everything the checks need. A file that cannot be had is listed in `unread`, and not an error here."""
    tables = load_tables()
    facts, unread, gone = read_wheels(stack, lock, settings=settings, cache=cache, reporter=reporter)
    system = _system(stack, lock, settings, cache, reporter)
    return Subject(
        stack=stack,
        lock=lock,
        plan=plan,
        target=target_facts(stack),
        tables=tables,
        facts=facts,
        unread=unread,
        gone=gone,
        system=system or assumed_system(stack, tables),
        system_is_assumed=system is None,
        previous=previous,
    )


def _wheels(
    stack: Stack, lock: Lock, *, settings: Settings, cache: Cache, reporter: Reporter, http: Session
) -> tuple[dict[str, WheelFacts], dict[str, str], dict[str, str]]:
    indexes = Indexes(stack.indexes, settings, cache, http)
    store = FactStore(cache, None if settings.offline else http)
    facts: dict[str, WheelFacts] = {}
    unread: dict[str, str] = {}
    gone: dict[str, str] = {}

    def read(wheel: Wheel) -> None:
        def address() -> str:
            return wheel.url or indexes.address_of(
                wheel.name, wheel.index or "", wheel.filename, wheel.sha256
            )

        try:
            found = store.wheel(wheel.sha256, wheel.filename, address)
            if found is None:
                unread[wheel.name] = "it is not here, and imagebuilder is offline"
            else:
                facts[wheel.name] = found
        except NotFound as error:
            gone[wheel.name] = error.seen or error.what
        except ArtefactUnusable as error:
            unread[wheel.name] = f"{error.what}: {error.seen}" if error.seen else error.what
        task.advance(1)

    with (
        reporter.task(f"reading the wheels of {stack.name}", total=len(lock.wheels), unit="wheel") as task,
        ThreadPoolExecutor(_WORKERS) as pool,
    ):
        list(pool.map(read, sorted(lock.wheels, key=lambda w: -w.size)))
    if store.received:
        reporter.note(f"read {store.received / 1e6:.0f} MB of wheels by ranges")
    return dict(sorted(facts.items())), unread, gone


def _base_env(stack: Stack, lock: Lock, settings: Settings, cache: Cache) -> dict[str, str]:
    """Environment of the base image, from an OCI layout or from the cache; empty where it is in neither."""
    locked, base, platform = lock.base, stack.base, stack.target.platform
    try:
        if isinstance(base, OciBase) and stack.path is not None:
            return dict(read_base(stack.path.parent / base.path, platform, cache).image.config.env)
        if locked is not None and locked.ref is not None:
            pinned = replace(locked.ref, digest=locked.manifest or locked.index)
            offline = replace(settings, offline=True)
            return dict(resolve_base(pinned, platform, settings=offline, cache=cache).image.config.env)
    except (ArtefactUnusable, MachineLacks):
        pass  # not here: what is known of such a base by its name has to do
    return {}


def _unknown(lock: Lock, cache: Cache) -> Lock:
    """The lock with only the wheels of which neither facts nor the file are in the cache."""
    store = FactStore(cache)
    wheels = (w for w in lock.wheels if not cache.artefact(w.sha256) and not store.known(w.sha256))
    return replace(lock, wheels=tuple(wheels), debs=(), base=None)


def _system(
    stack: Stack, lock: Lock, settings: Settings, cache: Cache, reporter: Reporter
) -> SystemFacts | None:
    """What the locked Debian packages bring; None where the base is an image that was not read."""
    if not lock.debs or lock.base is not None:
        return None
    files = {deb.sha256: path for deb in lock.debs if (path := cache.artefact(deb.sha256))}
    if len(files) < len({deb.sha256 for deb in lock.debs}):
        try:
            files = fetch(replace(lock, wheels=(), base=None), stack, settings, cache, reporter)
        except ArtefactUnusable as error:
            reporter.warn(f"the Debian packages cannot be read, so their libraries are assumed: {error.what}")
            return None
    return system_of(
        (deb_facts(files[deb.sha256], deb.sha256, deb.name, cache) for deb in lock.debs),
        stack.target.platform.triplet,
    )
