"""Stack → Lock: uv decides versions, we decide files, and everything gets its size and sha256."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.http import Session, session
from imagebuilder.index.parallel import in_parallel
from imagebuilder.index.simple import Indexes, IndexFile
from imagebuilder.lock import uv
from imagebuilder.lock.edges import Edges, find_edges
from imagebuilder.lock.kept import Upgrade, kept_debs, kept_versions
from imagebuilder.lock.measure import Measured, measure
from imagebuilder.lock.metadata import Metadata, Reading
from imagebuilder.lock.model import Lock, LockedOverride, LockedPatch, PassedOver, Wheel
from imagebuilder.lock.passed_over import Chosen, find_passed_over
from imagebuilder.lock.patched import locked_patches
from imagebuilder.lock.pinned import DIRECT, Pinner
from imagebuilder.lock.question import make_question
from imagebuilder.lock.system import lock_base, lock_debs
from imagebuilder.lock.target import TargetFacts, target_facts
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack import resolution_hash, resolution_parts
from imagebuilder.stack.model import Stack

T = TypeVar("T")
R = TypeVar("R")


def lock_stack(
    stack: Stack,
    settings: Settings,
    cache: Cache,
    reporter: Reporter,
    *,
    previous: Lock | None = None,
    upgrade: Upgrade = None,
) -> Lock:
    """Resolve the stack to files.

    previous: versions that it has are kept where the stack still allows them. upgrade: True for none of
    them, or the names of packages that are to be looked for anew.
    Raises StackInvalid, Unresolvable, ArtefactUnusable, UsageProblem (an upgrade of what is not locked).
    """
    target = target_facts(stack)
    kept = kept_versions(previous, upgrade)
    http = session(settings)
    work = _Work(
        stack=stack,
        target=target,
        settings=settings,
        cache=cache,
        http=http,
        indexes=Indexes(stack.indexes, settings, cache, http),
        reading=Reading(cache=cache, http=http, reporter=reporter),
        reporter=reporter,
    )
    base = lock_base(stack, settings, cache, previous.base if previous and upgrade is not True else None)
    debs = kept_debs(stack, previous, upgrade)
    if debs is None:
        debs = lock_debs(stack, base, settings=settings, cache=cache, http=http, reporter=reporter)
    resolved = work.resolve(kept)
    return Lock(
        stack_name=stack.name,
        stack_hash=resolution_hash(stack),
        stack_parts=resolution_parts(stack),
        resolver=uv.resolver(),
        python=target.python,
        platform=target.platform,
        glibc=target.glibc,
        as_of=stack.resolve.as_of,
        wheels=resolved.wheels(stack.name),
        debs=debs,
        base=base,
        patches=work.patches(resolved),
        overrides=tuple(
            LockedOverride(requirement=str(o.requirement), reason=o.reason) for o in stack.overrides
        ),
        passed_over=work.passed_over(resolved, kept),
    )


@dataclass(frozen=True, kw_only=True)
class _Resolved:
    """Every package's file, measured, with its METADATA; sorted by name."""

    files: Mapping[NormalizedName, Measured]
    metadata: Mapping[NormalizedName, Metadata]
    edges: Edges

    def wheels(self, stack_name: str) -> tuple[Wheel, ...]:
        return tuple(
            locked_wheel(stack_name, name, found, self.metadata[name], self.edges)
            for name, found in self.files.items()
        )


def locked_wheel(
    stack_name: str, name: NormalizedName, found: Measured, metadata: Metadata, edges: Edges
) -> Wheel:
    """A measured file as a lock has it."""
    return Wheel(
        name=name,
        version=str(found.file.version),
        filename=found.file.filename,
        size=found.size,
        sha256=found.sha256,
        path=f"wheels/{stack_name}/{found.file.filename}",
        index=found.file.index if found.file.index != DIRECT else None,
        url=found.file.url if found.file.index == DIRECT else None,
        requires=edges.requires[name],
        extras=edges.extras[name],
        hash_origin=found.origin,
        upload_time=found.file.upload_time,
        metadata_version=_differing_version(found.file, metadata),
    )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What locking one stack works with."""

    stack: Stack
    target: TargetFacts
    settings: Settings
    cache: Cache
    http: Session
    indexes: Indexes
    reading: Reading
    reporter: Reporter

    def resolve(self, kept: Mapping[NormalizedName, str]) -> _Resolved:
        asked = make_question(self.stack, self.target, self.indexes, self.http, self.reporter, kept=kept)
        with self.reporter.task(f"resolving {self.stack.name} with uv", unit="resolution", total=1) as task:
            answers = uv.ask(asked.question, self.settings, self.reporter)
            task.advance(1)
        pins = self._parallel("finding files", Pinner(asked, self.indexes).pin, answers)
        measured = self._parallel("sizes and hashes", self._measure, pins)
        read = self._parallel("reading metadata", self._metadata, measured)
        names = [canonicalize_name(pin.name) for pin in pins]
        metadata = dict(zip(names, read, strict=True))
        edges = find_edges(
            [r for layer in self.stack.layers for r in layer.requirements],
            metadata,
            [o.requirement for o in self.stack.overrides],
            self.target,
        )
        for package, requirement in edges.missing:
            self.reporter.warn(f"{package} requires {requirement}, which the resolver left out")
        return _Resolved(files=dict(zip(names, measured, strict=True)), metadata=metadata, edges=edges)

    def _measure(self, file: IndexFile) -> Measured:
        return measure(file, self.indexes, self.cache, self.http, self.reporter)

    def _metadata(self, measured: Measured) -> Metadata:
        file, metadata = measured.file, self.reading.metadata(measured.file)
        if canonicalize_name(metadata.name) != file.name:
            raise ArtefactUnusable(
                f"{file.filename} is another package inside", seen=metadata.name, wanted=file.name
            )
        if (inside := _differing_version(file, metadata)) is not None:
            self.reporter.warn(f"{file.filename} says inside that its version is {inside}")
        for line in metadata.unreadable:
            self.reporter.warn(f"{file.filename} has a requirement that cannot be read: {line}")
        return metadata

    def patches(self, resolved: _Resolved) -> tuple[LockedPatch, ...]:
        def members(name: NormalizedName) -> frozenset[str]:
            found = resolved.files.get(name)  # none where a marker leaves the requirement out here
            return self.reading.member_paths(found.file) if found else frozenset()

        return locked_patches(self.stack, members)

    def passed_over(self, resolved: _Resolved, kept: Mapping[NormalizedName, str]) -> tuple[PassedOver, ...]:
        """For what the stack names itself: the newest version that was not taken, and why."""
        overrides = [("the stack overrides it as", o.requirement) for o in self.stack.overrides]
        overridden = frozenset(canonicalize_name(r.name) for _, r in overrides)
        own = [
            ("the stack asks for", r)
            for layer in self.stack.layers
            for r in layer.requirements
            if canonicalize_name(r.name) not in overridden
        ]
        versions = {name: found.file.version for name, found in resolved.files.items()}
        chosen = Chosen(
            versions=versions,
            asked=[*own, *overrides],
            overridden=overridden,
            metadata=resolved.metadata,
            kept=frozenset(n for n, v in kept.items() if n in versions and Version(v) == versions[n]),
            target=self.target,
            as_of=self.stack.resolve.as_of,
        )
        names = sorted(
            name
            for name in {canonicalize_name(r.name) for _, r in chosen.asked}
            if name in versions and resolved.files[name].file.index != DIRECT
        )

        def find(name: NormalizedName) -> tuple[PassedOver | None, str | None]:
            files = self.indexes.project(name, resolved.files[name].file.index)
            return find_passed_over(name, files, chosen, self._metadata_of)

        found = self._parallel("looking for newer versions", find, names)
        for name, (_, later) in zip(names, found, strict=True):
            if later is not None:
                self.reporter.note(f"{name} {later} is newer than [resolve] as-of and was not considered")
        return tuple(passed for passed, _ in found if passed is not None)

    def _metadata_of(self, file: IndexFile) -> Metadata | None:
        """METADATA of a wheel that is not locked; None where it cannot be read: then it explains nothing."""
        try:
            return self.reading.metadata(file)
        except ArtefactUnusable:
            return None

    def _parallel(self, label: str, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return in_parallel(self.reporter, label, work, items, workers=self.settings.connections)


def _differing_version(file: IndexFile, metadata: Metadata) -> str | None:
    """METADATA's version where it is another one than the file name's."""
    try:
        same = Version(metadata.version) == file.version
    except InvalidVersion:
        same = False
    return None if same else metadata.version
