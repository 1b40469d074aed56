"""What is different between two locks of one stack, for people and for `--dry-run`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from imagebuilder.lock.model import Lock, LockedBase, Wheel

Kind = Literal["added", "removed", "upgraded", "downgraded", "rebuilt", "moved", "changed"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference. what: `wheel`, `deb`, `base`, `override`, `patch` or a field of the lock.

    `rebuilt`: the same version, another file; `moved`: the same file from another index.
    """

    kind: Kind
    what: str
    name: str
    old: str = ""
    new: str = ""

    def __str__(self) -> str:
        if self.kind == "added":
            text = f"+ {self.name} {self.new}"
        elif self.kind == "removed":
            text = f"- {self.name} {self.old}"
        else:
            text = f"{_SIGNS[self.kind]} {self.name} {self.old} → {self.new}"
        return text if self.what == "wheel" else f"{text} ({self.what})"


_SIGNS = {"upgraded": "↑", "downgraded": "↓", "rebuilt": "~", "moved": "~", "changed": "~"}


def describe(old: Lock | None, new: Lock) -> tuple[Change, ...]:
    """Every difference, what an image is made of first; without an old lock, everything is added."""
    if old is None:
        return tuple(Change(kind="added", what="wheel", name=w.name, new=w.version) for w in new.wheels)
    return (
        *_wheels(old, new),
        *_debs(old, new),
        *_base(old.base, new.base),
        *_pairs("override", _overrides(old), _overrides(new)),
        *_pairs("patch", _patches(old), _patches(new)),
        *_fields(old, new),
    )


def _wheels(old: Lock, new: Lock) -> Iterator[Change]:
    for name in sorted(old.by_name.keys() | new.by_name.keys()):
        before, after = old.by_name.get(name), new.by_name.get(name)
        if before is None and after is not None:
            yield Change(kind="added", what="wheel", name=name, new=after.version)
        elif after is None and before is not None:
            yield Change(kind="removed", what="wheel", name=name, old=before.version)
        elif before is not None and after is not None and (change := _wheel(before, after)):
            yield change


def _wheel(old: Wheel, new: Wheel) -> Change | None:
    if old.version != new.version:
        kind: Kind = "upgraded" if Version(new.version) > Version(old.version) else "downgraded"
        return Change(kind=kind, what="wheel", name=new.name, old=old.version, new=new.version)
    if old.sha256 != new.sha256:
        before, after = old.filename, new.filename
        if before == after:
            before, after = f"{before} ({old.sha256.short})", f"{after} ({new.sha256.short})"
        return Change(kind="rebuilt", what="wheel", name=new.name, old=before, new=after)
    if (old.index, old.url) != (new.index, new.url):
        return Change(
            kind="moved",
            what="index",
            name=new.name,
            old=old.index or old.url or "",
            new=new.index or new.url or "",
        )
    return None


def _debs(old: Lock, new: Lock) -> Iterator[Change]:
    before = {(d.name, d.architecture): d for d in old.debs}
    after = {(d.name, d.architecture): d for d in new.debs}
    for key in sorted(before.keys() | after.keys()):
        b, a = before.get(key), after.get(key)
        if b is None and a is not None:
            yield Change(kind="added", what="deb", name=a.name, new=a.version)
        elif a is None and b is not None:
            yield Change(kind="removed", what="deb", name=b.name, old=b.version)
        elif a is not None and b is not None and a.version != b.version:
            yield Change(kind="changed", what="deb", name=a.name, old=b.version, new=a.version)
        elif a is not None and b is not None and a.sha256 != b.sha256:
            yield Change(kind="rebuilt", what="deb", name=a.name, old=b.sha256.short, new=a.sha256.short)


def _base(old: LockedBase | None, new: LockedBase | None) -> Iterator[Change]:
    before, after = _base_text(old), _base_text(new)
    if before != after:
        yield Change(kind="changed", what="base", name="base", old=before or "none", new=after or "none")


def _base_text(base: LockedBase | None) -> str:
    if base is None:
        return ""
    name = base.ref.name if base.ref else base.path
    return f"{name}@{base.index}"


def _overrides(lock: Lock) -> dict[str, str]:
    return {o.requirement: o.reason for o in lock.overrides}


def _patches(lock: Lock) -> dict[str, str]:
    return {f"{p.package}: {p.path}": p.sha256.short for p in lock.patches}


def _pairs(what: str, old: dict[str, str], new: dict[str, str]) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield Change(kind="added", what=what, name=name)
        elif name not in new:
            yield Change(kind="removed", what=what, name=name)
        elif old[name] != new[name]:
            yield Change(kind="changed", what=what, name=name, old=old[name], new=new[name])


def _fields(old: Lock, new: Lock) -> Iterator[Change]:
    for name in ("python", "platform", "glibc", "as_of", "resolver"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield Change(
                kind="changed", what=name.replace("_", "-"), name=name, old=str(before), new=str(after)
            )
