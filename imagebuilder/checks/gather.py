"""The rim of the checks: reads what they look at, from the cache, from files here or by ranges."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.checks import kept, registry
from imagebuilder.checks.gather_base import SeenBase, see_base
from imagebuilder.checks.gather_wheels import see_wheels
from imagebuilder.checks.model import Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.checks.system import assumed_packages, assumed_system
from imagebuilder.checks.tables import Tables, load_tables
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.debs import DebFacts, deb_facts, system_of
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.layer import LayerFacts
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.store import MOST_READERS, FactStore
from imagebuilder.index.parallel import in_parallel
from imagebuilder.lock.fetch import adopt_wheels, fetch
from imagebuilder.lock.model import DebPackage, Lock
from imagebuilder.lock.target import target_facts
from imagebuilder.plan.model import Plan
from imagebuilder.progress import Reporter, Silent
from imagebuilder.settings import Settings
from imagebuilder.stack.model import DebianBase, Stack


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
    read_base: bool = False,
    online: bool = False,
) -> list[Finding]:
    """The findings of a set, waivers applied; from the cache where the same set was checked before.

    folder: where the lock lies; wheels that were fetched beside it are read there. download: bring wheels
    whose facts are not known as whole files, since they are needed anyway. read_base: fetch an image base
    however large it is. online: ask the indexes whether every file is still there, and not yanked.
    """
    base = see_base(stack, lock, settings=settings, cache=cache, reporter=reporter, read=read_base)
    key = kept.key_of(stack, lock, previous, base.env, base.identity)
    found = None if online else kept.read(cache, key)
    if found is None:
        unknown = _unknown(lock, cache)
        if unknown.wheels and folder is not None:
            adopt_wheels(unknown, cache, folder)
        if unknown.wheels and download:
            fetch(unknown, stack, settings, cache, reporter)
        subject = gather(
            stack,
            lock,
            plan,
            settings=settings,
            cache=cache,
            reporter=reporter,
            previous=previous,
            base=base,
            online=online,
        )
        found = registry.run(subject)
        if not (subject.unread or subject.gone or (subject.system_is_assumed and lock.debs)):
            kept.write(cache, key, found)
    return registry.judged(stack, found)


def known_findings(stack: Stack, lock: Lock, *, settings: Settings, cache: Cache) -> list[Finding] | None:
    """What `check` found in this very set before, waivers applied; None where it has not looked yet."""
    base = see_base(stack, lock, settings=replace(settings, offline=True), cache=cache, reporter=Silent())
    found = kept.read(cache, kept.key_of(stack, lock, None, base.env, base.identity))
    return None if found is None else registry.judged(stack, found)


def read_wheels(
    stack: Stack, lock: Lock, *, settings: Settings, cache: Cache, reporter: Reporter
) -> tuple[dict[str, WheelFacts], dict[str, str], dict[str, str]]:
    """(facts by package, why a wheel could not be read, why it is no longer where it was)."""
    seen = see_wheels(stack, lock, settings=settings, cache=cache, reporter=reporter)
    return dict(sorted(seen.facts.items())), seen.unread, seen.gone


def gather(
    stack: Stack,
    lock: Lock,
    plan: Plan,
    *,
    settings: Settings,
    cache: Cache,
    reporter: Reporter,
    previous: Lock | None = None,
    base: SeenBase | None = None,
    online: bool = False,
) -> Subject:
    """Everything the checks need. A file that cannot be had is listed in `unread`, and not an error here.

    base: what was seen of it; looked at here where it was not. online: see `see_wheels`.
    """
    base = base or see_base(stack, lock, settings=settings, cache=cache, reporter=reporter)
    tables = load_tables()
    wheels = see_wheels(stack, lock, settings=settings, cache=cache, reporter=reporter, online=online)
    known = isinstance(stack.base, DebianBase) or base.layers
    packages = _debs(stack, lock, settings, cache, reporter) if known else None
    system = _system(stack, base, packages, tables)
    return Subject(
        stack=stack,
        lock=lock,
        plan=plan,
        target=target_facts(stack),
        tables=tables,
        facts=dict(sorted(wheels.facts.items())),
        unread=wheels.unread,
        gone=wheels.gone,
        yanked=wheels.yanked,
        misfits=wheels.misfits,
        system=system or assumed_system(stack, tables),
        system_is_assumed=system is None,
        base_env=base.env,
        base_depth=base.depth,
        base_unseen=base.unseen,
        previous=previous,
    )


def _unknown(lock: Lock, cache: Cache) -> Lock:
    """The lock with only the wheels of which neither facts nor the file are in the cache."""
    store = FactStore(cache)
    wheels = (w for w in lock.wheels if not cache.artefact(w.sha256) and not store.known(w.sha256))
    return replace(lock, wheels=tuple(wheels), debs=(), base=None)


def _system(
    stack: Stack, base: SeenBase, packages: Sequence[DebFacts] | None, tables: Tables
) -> SystemFacts | None:
    """What the base and the locked Debian packages bring; None where they were not read."""
    is_image = not isinstance(stack.base, DebianBase)
    if is_image and not base.layers:
        return None
    if packages is None or not (packages or is_image):
        return None
    if not is_image:
        return system_of(packages, stack.target.platform.triplet)
    layers = [LayerFacts(libraries=p.libraries, links=p.links) for p in packages]
    system = replace(base, layers=(*base.layers, *layers)).system(stack)
    there = {posixpath.basename(path) for path in (*system.libraries, *system.links)}
    assumed = {n: a for n, a in assumed_packages(stack, tables).items() if n not in there}
    return replace(system, assumed={} if packages else assumed)


def _debs(
    stack: Stack, lock: Lock, settings: Settings, cache: Cache, reporter: Reporter
) -> list[DebFacts] | None:
    files = {deb.sha256: path for deb in lock.debs if (path := cache.artefact(deb.sha256))}
    if len(files) < len({deb.sha256 for deb in lock.debs}):
        try:
            files = fetch(replace(lock, wheels=(), base=None), stack, settings, cache, reporter)
        except ArtefactUnusable as error:
            reporter.warn(f"the Debian packages cannot be read, so their libraries are assumed: {error.what}")
            return None

    def one(deb: DebPackage) -> DebFacts:
        return deb_facts(files[deb.sha256], deb.sha256, deb.name, cache)

    workers = min(MOST_READERS, settings.workers)
    return in_parallel(reporter, "reading the Debian packages", one, lock.debs, workers=workers)
