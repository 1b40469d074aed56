"""Which Debian packages a stack needs: the closure of what it names, in the order of unpacking.

Simple on purpose, so that the answer can be foreseen: the newest version of each name, the first alternative
that can be had, Recommends ignored, no backtracking; what cannot be together is an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from imagebuilder.errors import Unresolvable
from imagebuilder.facts.image_tree import ImageTree
from imagebuilder.index.debian_packages import DebFile, installed
from imagebuilder.index.debian_relations import Relation, Relations
from imagebuilder.lock.model import DebPackage
from imagebuilder.values import Release

PREFERRED = frozenset({"usr-is-merged"})
"""Taken before other alternatives: /usr is merged here before anything is unpacked, so that the package which
would merge it (usrmerge, with all of Perl) has nothing to do. debootstrap decides likewise."""

_PYTHON = re.compile(r"python(\d+\.\d+)-minimal")
_HINT = "correct system.packages in the stack file"


class Offers(Protocol):
    """What an archive offers; `index.debian.PackageIndex` is one."""

    def named(self, name: str) -> list[DebFile]:
        """By name, newest version first."""

    def providers(self, name: str) -> list[DebFile]:
        """By what they Provide, the preferred one first."""

    def required(self) -> list[DebFile]:
        """What every system has."""

    def names(self) -> Iterator[str]:
        """All names."""


def resolve_closure(
    index: Offers, wanted: Sequence[str], *, essential: bool = True, present: Iterable[DebFile] = ()
) -> tuple[DebPackage, ...]:
    """The packages to unpack, in order: whatever a package needs comes before it.

    wanted: `name` or `name=version`. essential: also what is Essential or of Priority required; its closure
    then comes first, whatever else is wanted, as far as alternatives do not depend on that.
    present: packages that are there already (of a base image): never part of the answer, never changed.
    Raises Unresolvable, naming the chain of packages that led there.
    """
    closure = _Closure(index, present)
    roots = index.required() if essential else []
    for deb in roots:
        if deb.name not in closure.present:
            closure.select(deb, None)
    named = [closure.named(text) for text in wanted]
    for found in named:
        if found:
            closure.select(found, None)
    closure.complete()
    closure.refuse_conflicts()
    order = closure.in_order([*roots, *sorted((d for d in named if d), key=lambda deb: deb.name)])
    return tuple(
        DebPackage(
            name=deb.name,
            version=deb.version,
            architecture=deb.architecture,
            path=deb.path,
            size=deb.size,
            sha256=deb.sha256,
            pocket=deb.pocket,
        )
        for deb in order
    )


def debian_suite(tree: ImageTree) -> str:
    """The suite of Debian that a base image is. Raises Unresolvable for any other system."""
    release = (tree.read_file("etc/os-release") or b"").decode("utf-8", "replace")
    named = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    found = {key: named.get(key, "").strip("\"'") for key in ("ID", "VERSION_CODENAME")}
    if found["ID"] != "debian" or not found["VERSION_CODENAME"]:
        raise Unresolvable(
            'the base image is not Debian, whose packages [system] resolve = "lock" would take',
            seen=" ".join(filter(None, found.values())) or "no os-release",
            wanted="debian and its codename in /etc/os-release",
            hint='use resolve = "build" (apt inside the Docker build), or a debian base',
        )
    return found["VERSION_CODENAME"]


def check_python(closure: Iterable[DebPackage], python: Release, suite: str) -> None:
    """Unresolvable where a base of these packages has not the Python that the environment is made for."""
    wanted = ".".join(str(part) for part in python.parts[:2])
    there = {found[1] for deb in closure if (found := _PYTHON.fullmatch(deb.name))}
    if wanted not in there:
        others = sorted(there)
        raise Unresolvable(
            f"the image would have no Python {wanted}: [system] packages and Debian {suite} do not bring it",
            seen=f"Python {', '.join(others)}" if others else "no Python",
            wanted=f"Python {wanted}, as [target] says",
            hint=f'[target] python = "{others[0]}", or another suite'
            if others
            else 'add "python3" to [system] packages',
        )


def base_packages(tree: ImageTree) -> tuple[DebFile, ...]:
    """What a base image has installed, for `resolve_closure(present=…)`."""
    return installed(tree.read_file("var/lib/dpkg/status") or b"")


class _Closure:
    """The selection so far. `why`: the package that first needed it, for messages."""

    def __init__(self, index: Offers, present: Iterable[DebFile]) -> None:
        self.index = index
        self.present = {deb.name: deb for deb in present}
        self.selected: dict[str, DebFile] = {}
        self.why: dict[str, DebFile | None] = {}
        self.provided: dict[str, list[tuple[DebFile, str | None]]] = {}
        self._waiting: list[DebFile] = []
        for deb in self.present.values():
            self._provide(deb)

    def _provide(self, deb: DebFile) -> None:
        for group in deb.provides_groups:
            for virtual in group:
                self.provided.setdefault(virtual.name, []).append((deb, virtual.version or None))

    # ------------------------------------------------------------------ selecting

    def named(self, text: str) -> DebFile | None:
        """What the stack's `name` or `name=version` means; None: it is there already."""
        name, has_version, version = text.partition("=")
        there = self.present.get(name)
        if there and (not has_version or there.version == version):
            return None
        found = self.index.named(name)
        if there:
            raise Unresolvable(
                f"the base has another version of {name} than system.packages asks for",
                seen=there.version,
                wanted=version,
                hint=_HINT,
            )
        if has_version:
            exact = [deb for deb in found if deb.version == version]
            if found and not exact:
                raise Unresolvable(
                    f"Debian has no version {version} of {name}",
                    seen=", ".join(dict.fromkeys(deb.version for deb in found)),
                    hint=_HINT,
                )
            found = exact
        if found:
            return found[0]
        providers = [deb.name for deb in self.index.providers(name)] if not has_version else []
        near = providers or difflib.get_close_matches(name, self.index.names(), n=4, cutoff=0.75)
        kind = "is a virtual package" if providers else "is not a package of this Debian suite"
        raise Unresolvable(
            f"{name} {kind}", wanted=" or ".join(near) if near else "", hint=f"{_HINT}, or its base"
        )

    def select(self, deb: DebFile, needed_by: DebFile | None) -> None:
        """Takes a package; the same one twice is once."""
        before = self.selected.get(deb.name)
        if before:
            if before.version != deb.version:
                raise Unresolvable(
                    f"{deb.name} is needed in two versions",
                    seen=f"{before.version} and {deb.version}",
                    hint=_HINT,
                )
            return
        self.selected[deb.name] = deb
        self.why[deb.name] = needed_by
        self._provide(deb)
        self._waiting.append(deb)

    def complete(self) -> None:
        """Takes what the selected packages need, until nothing is missing."""
        for deb in self._waiting:  # grows while it is walked
            for group in (*deb.pre_depends_groups, *deb.depends_groups):
                if self._satisfier(group) is None:
                    self.select(self._first(group, deb), deb)

    def _satisfier(self, group: Sequence[Relation]) -> DebFile | None:
        """A package that is there or selected and satisfies one of the alternatives."""
        for relation in group:
            for deb, version in self._claimants(relation.name):
                if relation.holds(version):
                    return deb
        return None

    def _claimants(self, name: str) -> Iterator[tuple[DebFile, str | None]]:
        """Who is this package, or Provides it, and in which version."""
        real = self.selected.get(name) or self.present.get(name)
        if real:
            yield real, real.version
        yield from self.provided.get(name, ())

    def _first(self, group: Sequence[Relation], needed_by: DebFile) -> DebFile:
        for relation in sorted(group, key=lambda one: one.name not in PREFERRED):
            if relation.name in self.selected or relation.name in self.present:
                continue  # it is of a version that does not do, and there is one version only
            for deb in self.index.named(relation.name):
                if relation.holds(deb.version):
                    return deb
            for deb in self.index.providers(relation.name):
                versions = [
                    v.version or None for g in deb.provides_groups for v in g if v.name == relation.name
                ]
                if deb.name not in self.selected and any(relation.holds(version) for version in versions):
                    return deb
        seen = [
            f"{deb.name} {deb.version}"
            for relation in group
            for deb in ([self.present[relation.name]] if relation.name in self.present else [])
            or self.index.named(relation.name)[:1]
        ]
        raise Unresolvable(
            f"{self._chain(needed_by)} needs {' or '.join(map(str, group))}, which cannot be had",
            seen=", ".join(seen) or "no such package in this suite",
            hint=_HINT,
        )

    def _chain(self, deb: DebFile) -> str:
        chain: list[str] = []
        at: DebFile | None = deb
        while at:
            chain.append(at.name)
            at = self.why.get(at.name)
        return " → ".join(reversed(chain))

    # ------------------------------------------------------------------ checking and ordering

    def refuse_conflicts(self) -> None:
        """Unresolvable where two packages may not be together; what is there already is taken as it is."""
        for deb in (*self.selected.values(), *self.present.values()):
            for group in deb.conflicts_groups:
                for relation in group:
                    for other, version in self._claimants(relation.name):
                        both_there = deb.name in self.present and other.name in self.present
                        if other.name != deb.name and not both_there and relation.holds(version):
                            raise Unresolvable(
                                f"{self._chain(deb)} cannot be together with {self._chain(other)}",
                                seen=f"{other.name} {other.version}",
                                wanted=f"not {relation}",
                                hint=_HINT,
                            )

    def in_order(self, roots: Sequence[DebFile]) -> Iterator[DebFile]:
        """Depth first from the roots: Pre-Depends, then Depends, then the package itself.

        Depends may go in circles; then a package whose Pre-Depends are still to come waits for them.
        """
        done: set[str] = set()
        active: set[str] = set()

        def needs(deb: DebFile, groups: Relations) -> Iterator[DebFile]:
            for group in groups:
                found = self._satisfier(group)
                if found and found.name in self.selected and found.name != deb.name:
                    yield found

        def waits(deb: DebFile, seen: set[str]) -> bool:
            """Whether something that must be unpacked before it is in work now."""
            for found in needs(deb, deb.pre_depends_groups):
                if found.name in active or (
                    found.name not in seen | done and waits(found, seen | {found.name})
                ):
                    return True
            return False

        def visit(deb: DebFile) -> Iterator[DebFile]:
            if deb.name in done or deb.name in active:
                return
            active.add(deb.name)
            late: list[DebFile] = []
            for found in needs(deb, deb.pre_depends_groups):
                yield from visit(found)
            for found in needs(deb, deb.depends_groups):
                if waits(found, {found.name}):
                    late.append(found)
                else:
                    yield from visit(found)
            active.discard(deb.name)
            done.add(deb.name)
            yield deb
            for found in late:
                yield from visit(found)

        for root in roots:
            if root.name in self.selected:
                yield from visit(root)
