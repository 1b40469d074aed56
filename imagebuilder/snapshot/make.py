"""An environment → its stack file, patches, extra files and lock; all of it in memory until it is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from imagebuilder.cache import Cache
from imagebuilder.errors import StackInvalid, Unresolvable, UsageProblem
from imagebuilder.facts.tables import table
from imagebuilder.files import new_file
from imagebuilder.index.debian import Archive
from imagebuilder.index.debian_packages import DebFile, installed
from imagebuilder.index.http import Session, session
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.edges import Edges, find_edges
from imagebuilder.lock.fresh import check_fresh
from imagebuilder.lock.model import Lock, LockedOverride, LockedPatch
from imagebuilder.lock.pylock import format_lock, parse_lock
from imagebuilder.lock.resolve import locked_wheel
from imagebuilder.lock.system import lock_base, lock_debs
from imagebuilder.lock.target import TargetFacts, target_facts
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.snapshot.added import find_added
from imagebuilder.snapshot.debs import Roots, automatic, find_debs
from imagebuilder.snapshot.guess import VendorIndex, guess_indexes
from imagebuilder.snapshot.installed import find_installed
from imagebuilder.snapshot.model import Environment, Package
from imagebuilder.snapshot.report import Report, Withheld
from imagebuilder.snapshot.settle import Settling
from imagebuilder.snapshot.stackfile import Draft, Wishes, find_overrides, render
from imagebuilder.snapshot.system import (
    PLAIN_PACKAGES,
    choose_base,
    choose_glibc,
    os_release,
)
from imagebuilder.snapshot.wheels import Finder
from imagebuilder.stack import lock_path, parse_stack, resolution_hash, resolution_parts
from imagebuilder.stack.model import Base, DebianBase, Index, Stack, Target
from imagebuilder.values import Release

RESOLVER = "snapshot"
_STATUS, _EXTENDED = "var/lib/dpkg/status", "var/lib/apt/extended_states"
_RELEASES = ("etc/os-release", "usr/lib/os-release")
_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Means:
    """What making a snapshot works with."""

    settings: Settings
    cache: Cache
    reporter: Reporter
    http: Session

    @classmethod
    def of(cls, settings: Settings, cache: Cache, reporter: Reporter) -> Means:
        """With a session of its own."""
        return cls(settings=settings, cache=cache, reporter=reporter, http=session(settings))


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot that can be written: files by path relative to the stack file's folder, in the order of
    writing.
    """

    stack: Stack
    lock: Lock
    files: Mapping[str, bytes]
    report: Report


def take_snapshot(environment: Environment, wishes: Wishes, means: Means) -> Snapshot:
    """Find the wheel of everything that is installed, and make stack and lock of it. Writes nothing.

    Raises UsageProblem (no base is known), Unresolvable (nothing can be locked), ArtefactUnusable (an index
    or the archive does not answer).
    """
    data = environment.files.read(
        [*_RELEASES, _STATUS, _EXTENDED] if environment.whole else _RELEASES, _LIMIT
    )
    system = os_release(next((data[p] for p in _RELEASES if p in data), b""))
    base = choose_base(environment, system, wishes.base)
    glibc = choose_glibc(base, environment, wishes.glibc)
    target = target_facts(_bare_stack(environment, wishes, base, glibc))
    packages, indexes, debians = _settle(environment, wishes, target, means)
    if not any(p.candidate for p in packages):
        raise Unresolvable(
            f"no package of {environment.label} can be locked",
            seen="; ".join(f"{p.name}: {p.problem}" for p in packages[:3]) or "nothing is installed in it",
            wanted="at least one package that is a wheel of an index",
        )
    below = _below(base, data, environment, wishes, means)
    edges, overrides = _edges(packages, debians, target)
    draft = Draft(
        environment=environment,
        wishes=wishes,
        base=below.base,
        glibc=glibc,
        packages=packages,
        added=find_added(environment, packages),
        indexes=indexes,
        overrides=overrides,
        system=below.names,
    )
    stack, files, withheld = _stack_of(draft)
    lock = _lock_of(stack, draft, edges, target, means)
    report = Report.of(
        draft,
        lock,
        debians=debians,
        needed=_needed(edges, debians),
        roots=below.roots,
        unknown=below.unknown,
        before=below.there,
        withheld=withheld,
    )
    lock_name = lock_path(Path(f"{stack.name}.toml"), stack.name).name
    lock_text = format_lock(lock)
    check_fresh(stack, parse_lock(lock_text))
    return Snapshot(stack=stack, lock=lock, files={**files, lock_name: lock_text.encode()}, report=report)


def write_snapshot(snapshot: Snapshot, folder: Path, *, force: bool = False) -> Path:
    """Write its files below a folder, the lock last; the stack file's path.

    UsageProblem where files with other bytes are in the way, unless `force`; then nothing is written.
    """
    changed = {p: data for p, data in snapshot.files.items() if _bytes_of(folder / p) != data}
    in_the_way = [str(folder / p) for p in changed if (folder / p).exists()]
    if in_the_way and not force:
        raise UsageProblem(
            "files are there already and would be overwritten",
            seen=", ".join(in_the_way[:5]),
            hint="use --force, or another --name",
        )
    for path, data in changed.items():
        with new_file(folder / path, hint="choose another place with --output") as file:
            file.write(data)
    return folder / f"{snapshot.stack.name}.toml"


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


# ---------------------------------------------------------------- packages


def _bare_stack(environment: Environment, wishes: Wishes, base: Base, glibc: Release | None) -> Stack:
    interpreter = environment.interpreter
    target = Target(
        platform=interpreter.platform,
        python=interpreter.python,
        gpus=wishes.gpus,
        glibc=glibc,
    )
    return Stack(name=wishes.name, target=target, base=base, layers=())


def _settle(
    environment: Environment, wishes: Wishes, target: TargetFacts, means: Means
) -> tuple[list[Package], dict[str, Index], list[Package]]:
    """(what becomes of each package, the indexes by name, the packages that are Debian's)."""
    found, debians = find_installed(environment)
    vendors = [VendorIndex.of(row) for row in table("indexes")["index"]]
    guesses = {item.name: guess_indexes(item, vendors, wishes.indexes) for item in found}
    indexes = {index.name: index for guess in guesses.values() for index in guess}
    finder = Finder(
        Indexes([i for i in indexes.values() if i.url], means.settings, means.cache, means.http),
        target,
        cache=means.cache,
        http=means.http,
        reporter=means.reporter,
        prefix=environment.interpreter.prefix,
    )
    settling = Settling(
        files=environment.files,
        finder=finder,
        indexes_of=lambda item: guesses[item.name],
        reporter=means.reporter,
        workers=means.settings.connections,
    )
    return (
        settling.settle(found),
        indexes,
        [Package(installed=item, state="debian") for item in debians],
    )


def _edges(
    packages: Sequence[Package], debians: Sequence[Package], target: TargetFacts
) -> tuple[Edges, list[tuple[str, str]]]:
    locked = {p.name: p.candidate for p in packages if p.candidate is not None}
    metadata = {name: candidate.listing.metadata for name, candidate in locked.items()}
    roots = [Requirement(name) for name in locked]
    edges = find_edges(roots, metadata, [], target)
    there = {p.name for p in (*packages, *debians)}
    return edges, find_overrides(packages, edges.extras, target, {str(name) for name in there})


def _needed(edges: Edges, debians: Sequence[Package]) -> list[tuple[str, str]]:
    """(a package that only Debian's Python has, the locked one that requires it)."""
    theirs = {p.name for p in debians}
    found: dict[str, str] = {}
    for by, text in edges.missing:
        name = canonicalize_name(Requirement(text).name)
        if name in theirs:
            found.setdefault(name, by)
    return sorted(found.items())


_NO_ROOTS = Roots(manual=(), recommended=())


@dataclass(frozen=True, kw_only=True)
class _Below:
    """What lies below the packages. names: Debian packages to ask for; there: those of the environment."""

    base: Base
    names: tuple[str, ...]
    roots: Roots = _NO_ROOTS
    unknown: tuple[DebFile, ...] = ()
    there: tuple[DebFile, ...] = ()


def _below(
    base: Base, data: Mapping[str, bytes], environment: Environment, wishes: Wishes, means: Means
) -> _Below:
    if not environment.whole:
        return _Below(base=base, names=PLAIN_PACKAGES if isinstance(base, DebianBase) else ())
    there = installed(data.get(_STATUS, b""))
    found, roots, unknown = find_debs(
        base,
        there,
        automatic(data.get(_EXTENDED, b"")),
        lambda choice: _archive(choice, environment, wishes, means).packages(),
        means.reporter,
    )
    names = set(roots.all)
    if isinstance(found, DebianBase) and not any(name.startswith("python3") for name in names):
        names.add("python3")
    return _Below(base=found, names=tuple(sorted(names)), roots=roots, unknown=unknown, there=there)


def _archive(base: DebianBase, environment: Environment, wishes: Wishes, means: Means) -> Archive:
    return Archive(
        suite=base.suite,
        platform=environment.interpreter.platform,
        settings=means.settings,
        session=means.http,
        cache=means.cache,
        components=base.components,
        security=base.security,
        at=wishes.as_of,
        reporter=means.reporter,
    )


# ---------------------------------------------------------------- stack and lock


class _InMemory:
    """The folder of a stack file that is not written yet."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def glob(self, pattern: str) -> list[str]:
        """See `stack.grammar.Folder`."""
        return sorted(path for path in self._files if path == pattern or fnmatchcase(path, pattern))

    def read(self, path: str) -> bytes:
        """See `stack.grammar.Folder`."""
        return self._files[path]


def _stack_of(draft: Draft) -> tuple[Stack, dict[str, bytes], tuple[Withheld, ...]]:
    """(the stack, its files by path, what a stack file may not say: secrets above all)."""
    files = {draft.patch_path(p): p.patch for p in draft.locked if p.patch}
    files |= {source: change.data for _, source, change in draft.files()}
    name = f"{draft.wishes.name}.toml"
    withheld: dict[str, str] = {}
    for _ in range(8):
        remarks = [f"{p.name} is not in it: {p.problem}" for p in draft.packages if p.state == "unlockable"]
        text = render(draft, draft.document(withheld), remarks).encode()
        try:
            stack = parse_stack(text, file=name, folder=_InMemory(files))
        except StackInvalid as error:
            ours = [p for p in error.problems if not p.key.startswith(("env.", "image."))]
            new = {p.key: p.message for p in error.problems if p.key not in withheld}
            if ours or not new:
                raise
            withheld |= new
            continue
        return stack, {**files, name: text}, tuple(Withheld(key=k, why=why) for k, why in withheld.items())
    raise AssertionError("every turn leaves something out")


def _lock_of(stack: Stack, draft: Draft, edges: Edges, target: TargetFacts, means: Means) -> Lock:
    base = lock_base(stack, means.settings, means.cache, None)
    debs = lock_debs(
        stack, base, settings=means.settings, cache=means.cache, http=means.http, reporter=means.reporter
    )
    named: dict[str, NormalizedName] = {draft.patch_path(p): p.name for p in draft.locked}
    wheels = [
        locked_wheel(stack.name, p.name, p.candidate.measured, p.candidate.listing.metadata, edges)
        for p in draft.locked
        if p.candidate is not None
    ]
    return Lock(
        stack_name=stack.name,
        stack_hash=resolution_hash(stack),
        stack_parts=resolution_parts(stack),
        resolver=RESOLVER,
        python=target.python,
        platform=target.platform,
        glibc=target.glibc,
        as_of=stack.resolve.as_of,
        wheels=tuple(sorted(wheels, key=lambda w: w.name)),
        debs=debs,
        base=base,
        patches=tuple(
            LockedPatch(package=named[patch.path], path=patch.path, sha256=patch.digest)
            for layer in stack.layers
            for patch in layer.patches
        ),
        overrides=tuple(
            LockedOverride(requirement=str(o.requirement), reason=o.reason) for o in stack.overrides
        ),
    )


def with_name(wishes: Wishes, name: str) -> Wishes:
    """The same wishes under another name."""
    return replace(wishes, name=name)
