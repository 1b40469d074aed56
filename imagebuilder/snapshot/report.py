"""What a snapshot found, for people and for programs: nothing that the rebuilt environment lacks goes unsaid.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.index.debian_packages import DebFile
from imagebuilder.lock.model import Lock
from imagebuilder.snapshot.debs import Roots
from imagebuilder.snapshot.model import Change, Package
from imagebuilder.snapshot.places import compiled
from imagebuilder.snapshot.stackfile import Draft
from imagebuilder.stack.model import DebianBase

_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Withheld:
    """A setting of the image that the stack does not say, and why (never its value)."""

    key: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found. moved_debs: (name, version there, version locked). unknown_debs: (name, version).

    debians: Python packages that Debian packages brought; needed: (one of them, who requires it).
    """

    label: str
    python: str
    base: str
    packages: tuple[Package, ...]
    debians: tuple[Package, ...]
    needed: tuple[tuple[str, str], ...]
    added: tuple[Change, ...]
    overrides: tuple[tuple[str, str], ...]
    roots: Roots
    unknown_debs: tuple[tuple[str, str], ...]
    moved_debs: tuple[tuple[str, str, str], ...]
    debs: int
    withheld: tuple[Withheld, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        draft: Draft,
        lock: Lock,
        *,
        debians: Sequence[Package],
        needed: Sequence[tuple[str, str]],
        roots: Roots,
        unknown: Sequence[DebFile],
        before: Sequence[DebFile],
        withheld: tuple[Withheld, ...],
    ) -> Report:
        """From the draft and its lock. before: the Debian packages of the environment."""
        versions = {deb.name: deb.version for deb in before}
        moved = [
            (deb.name, versions[deb.name], deb.version)
            for deb in lock.debs
            if deb.name in versions and versions[deb.name] != deb.version
        ]
        base = draft.base
        if isinstance(base, DebianBase):
            text = f"Debian {base.suite}" + (" with security" if base.security else "")
        else:
            text = str(getattr(base, "ref", ""))
        return cls(
            label=draft.environment.label,
            python=str(draft.environment.interpreter.version),
            base=text,
            packages=tuple(draft.packages),
            debians=tuple(debians),
            needed=tuple(needed),
            added=tuple(draft.added),
            overrides=tuple(draft.overrides),
            roots=roots,
            unknown_debs=tuple((deb.name, deb.version) for deb in unknown),
            moved_debs=tuple(sorted(moved)),
            debs=len(lock.debs),
            withheld=withheld,
            notes=tuple(_notes(draft)),
        )

    def of_state(self, state: str) -> list[Package]:
        """The packages of one state."""
        return [p for p in self.packages if p.state == state]

    @property
    def lost(self) -> list[Change]:
        """Differences that the image will have, and that count."""
        return [c for p in self.packages for c in p.changes if c.lost] + [c for c in self.added if c.lost]

    @property
    def complete(self) -> bool:
        """Whether the stack rebuilds all of it."""
        return not (self.of_state("unlockable") or self.lost or self.unknown_debs or self.needed)

    def missing(self) -> str:
        """What is not in the stack, in a line; empty where nothing is."""
        parts = [
            (len(self.of_state("unlockable")), "package{s} cannot be locked"),
            (len(self.lost), "changed file{s} cannot be said in a stack"),
            (len(self.needed), "requirement{s} met by Debian's Python only"),
            (len(self.unknown_debs), "Debian package{s} not in Debian's archive"),
        ]
        return ", ".join(f"{n} {text.format(s='' if n == 1 else 's')}" for n, text in parts if n)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "environment": self.label,
            "python": self.python,
            "base": self.base,
            "complete": self.complete,
            "summary": {
                "packages": len(self.packages),
                "equal": len(self.of_state("equal")),
                "patched": len(self.of_state("patched")),
                "unlockable": len(self.of_state("unlockable")),
                "lost-changes": len(self.lost),
            },
            "packages": [p.as_json() for p in self.packages],
            "debian-python-packages": [
                {"name": p.name, "version": p.installed.version, "needed-by": dict(self.needed).get(p.name)}
                for p in self.debians
            ],
            "added": [{"path": c.path, "how": c.how, "why": c.why} for c in self.added],
            "overrides": [{"requirement": r, "reason": why} for r, why in self.overrides],
            "debian": {
                "packages": self.debs,
                "manual": list(self.roots.manual),
                "recommended": list(self.roots.recommended),
                "not-in-archive": [{"name": n, "version": v} for n, v in self.unknown_debs],
                "other-version": [
                    {"name": n, "installed": old, "locked": new} for n, old, new in self.moved_debs
                ],
            },
            "withheld": [{"key": w.key, "why": w.why} for w in self.withheld],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        equal, patched = len(self.of_state("equal")), len(self.of_state("patched"))
        yield f"{self.label}: Python {self.python}, to be rebuilt on {self.base}"
        line = (
            f"packages: {len(self.packages)} found, {equal} equal to a wheel of an index, {patched} patched"
        )
        yield f"{line}, {len(self.of_state('unlockable'))} that cannot be locked"
        yield from self._patched()
        yield from self._unlockable()
        yield from self._lost()
        yield from self._of_debian()
        if self.debs:
            yield f"Debian packages: {self.debs} locked" + (
                f", {len(self.moved_debs)} of them in another version than installed"
                if self.moved_debs
                else ""
            )
            yield from _short([f"  {n}: {old} → {new}" for n, old, new in self.moved_debs])
        yield from _short(
            [f"  {n} {v}: not in Debian's archive, and not in the stack" for n, v in self.unknown_debs]
        )
        for requirement, why in self.overrides:
            yield f"override {requirement}: {why}"
        for item in self.withheld:
            yield f"not taken over: {item.key}: {item.why}"
        for note in self.notes:
            yield f"note: {note}"

    def _patched(self) -> Iterator[str]:
        for package in self.of_state("patched"):
            yield f"  patched {package.name} {package.version}:"
            yield from _short([f"    {_change(c)}" for c in package.changes if not _silent(c)])
        files = [c for c in self.added if c.how == "file"]
        if files:
            yield f"  added by nobody's wheel, taken over as {len(files)} extra files:"
            yield from _short([f"    /{c.path}" for c in files])

    def _unlockable(self) -> Iterator[str]:
        for package in self.of_state("unlockable"):
            yield f"  cannot be locked: {package.name} {package.version}: {package.problem}"
            if package.fix:
                yield f"    {package.fix}"

    def _of_debian(self) -> Iterator[str]:
        if not self.debians:
            return
        names = ", ".join(f"{p.name} {p.installed.version}" for p in self.debians[:6])
        more = f" and {len(self.debians) - 6} more" if len(self.debians) > 6 else ""
        yield f"  of Debian packages, which the new environment does not see: {names}{more}"
        for name, by in self.needed:
            yield f"  {by} requires {name}, which only Debian's Python has: add it to a layer, and lock again"

    def _lost(self) -> Iterator[str]:
        yield from _short([f"  will differ: /{c.path}: {c.what}, and {c.why}" for c in self.lost])
        metadata = [c for p in self.packages for c in p.changes if c.what == "metadata"]
        yield from _short([f"  the image has the wheel's own {c.member}" for c in metadata])
        for package in self.packages:
            for note in package.notes:
                yield f"  {package.name} {package.version}: {note}"
            extra = [c for c in package.changes if c.what == "extra" and not compiled(c.path)]
            if extra:
                names = ", ".join(c.member for c in extra[:3])
                more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
                yield f"  {package.name} {package.version}: the image has {names}{more} besides"


def _silent(change: Change) -> bool:
    return change.what in ("extra", "metadata") or change.lost


def _change(change: Change) -> str:
    how = {"patch": "in the patch", "file": "as an extra file"}.get(change.how, "")
    why = f" ({change.why})" if change.why else ""
    return f"{change.member}: {change.what}, {how}{why}"


def _short(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        indent = len(lines[0]) - len(lines[0].lstrip())
        yield f"{' ' * indent}and {len(lines) - _SHOWN} more (--json lists them)"


def _notes(draft: Draft) -> Iterator[str]:
    environment = draft.environment
    run = environment.run
    if environment.elsewhere:
        places = ", ".join(f"/{p}" for p in environment.elsewhere[:4])
        yield f"other environments are in it too, and not in this snapshot: {places} (--prefix)"
    if environment.beside:
        shown = ", ".join(f"/{folder} ({number})" for folder, number in environment.beside[:6])
        more = f" and {len(environment.beside) - 6} more folders" if len(environment.beside) > 6 else ""
        yield f"files that are of no package are not in it, but can be named as [[file]]: {shown}{more}"
    if run.volumes:
        yield f"its volumes are not taken over: {', '.join(run.volumes[:4])}"
    if run.healthcheck:
        yield "its health check is not taken over; [deploy] has one"
    if run.user and not run.user.partition(":")[0].isdigit() and run.user.partition(":")[0] != "root":
        yield f"it runs as {run.user}, a user that the new image has only if its base does"
    if not isinstance(draft.base, DebianBase) and draft.system:
        yield "the base is an image: of [system] packages, take out what the base has already"
