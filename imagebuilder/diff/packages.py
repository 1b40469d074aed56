"""What happened to each package, and what that means. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from imagebuilder.diff.model import Move, Package, PackageMove

_CUDA_SUFFIX = re.compile(r"-cu\d+$")
_PARTS = ("major", "minor", "patch")
ORDER: tuple[Move, ...] = (
    "upgraded", "downgraded", "renamed", "rebuilt", "patched", "moved", "added", "removed",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Names:
    """Table of the field: other names of the same software, by the newer name."""

    renamed: Mapping[str, str]

    def stem(self, name: str) -> str:
        """What a package is called whatever CUDA it is built for: nvidia-nccl for nvidia-nccl-cu12."""
        return _CUDA_SUFFIX.sub("", self.renamed.get(name, name))


def compare(old: Sequence[Package], new: Sequence[Package], names: Names) -> tuple[PackageMove, ...]:
    """Every package that differs, in the order of ORDER and then by name; Debian's behind the wheels."""
    moves = [*_of_kind("wheel", old, new, names), *_of_kind("deb", old, new, names)]
    return tuple(sorted(moves, key=lambda m: (m.kind == "deb", ORDER.index(m.move), m.name)))


def _of_kind(
    kind: str, old: Sequence[Package], new: Sequence[Package], names: Names
) -> Iterator[PackageMove]:
    before = {p.name: p for p in old if p.kind == kind}
    after = {p.name: p for p in new if p.kind == kind}
    for name in before.keys() & after.keys():
        yield from _same_name(before[name], after[name])
    removed = [p for name, p in before.items() if name not in after]
    added = [p for name, p in after.items() if name not in before]
    pairs = _renamed(removed, added, names) if kind == "wheel" else []
    for one, other in pairs:
        move, notes = _version_move(one, other)
        words = (f"was {one.name}", *(["downgraded"] if move == "downgraded" else ()), *notes)
        yield PackageMove(kind="wheel", move="renamed", name=other.name, old=one, new=other, notes=words)
    paired = {p.name for pair in pairs for p in pair}
    for package in removed:
        if package.name not in paired:
            yield PackageMove(kind=package.kind, move="removed", name=package.name, old=package, new=None)
    for package in added:
        if package.name not in paired:
            yield PackageMove(
                kind=package.kind,
                move="added",
                name=package.name,
                old=None,
                new=package,
                notes=_nature(package),
            )


def _renamed(
    removed: Iterable[Package], added: Iterable[Package], names: Names
) -> list[tuple[Package, Package]]:
    """Pairs of the same software; a name that fits several others is left alone."""
    by_stem: dict[str, tuple[list[Package], list[Package]]] = {}
    for package in removed:
        by_stem.setdefault(names.stem(package.name), ([], []))[0].append(package)
    for package in added:
        by_stem.setdefault(names.stem(package.name), ([], []))[1].append(package)
    return [(old[0], new[0]) for old, new in by_stem.values() if len(old) == len(new) == 1]


def _same_name(old: Package, new: Package) -> Iterator[PackageMove]:
    move, notes = _version_move(old, new)
    index = _index_note(old, new)
    if move is not None:
        notes = (*notes, *([index] if index else []))
    elif _other_file(old, new):
        move, notes = "rebuilt", (_file_note(old, new), *([index] if index else []))
    elif old.patched != new.patched and None not in (old.patched, new.patched):
        move, notes = "patched", (_patch_note(old, new),)
    elif index:
        move, notes = "moved", (index,)
    else:
        return
    yield PackageMove(kind=new.kind, move=move, name=new.name, old=old, new=new, notes=notes)


def _version_move(old: Package, new: Package) -> tuple[Move | None, tuple[str, ...]]:
    """How the version moved, and what that means; (None, …) where it did not."""
    if old.version == new.version:
        return None, ()
    if new.kind == "deb":
        return ("upgraded" if _debian_newer(old.version, new.version) else "downgraded"), ()
    try:
        before, after = Version(old.version), Version(new.version)
    except InvalidVersion:
        return "rebuilt", ("a version that is none",)
    if before == after:  # 1.0 and 1.0.0
        return None, ()
    notes: list[str] = []
    if before.public == after.public:
        return "rebuilt", (f"another build: +{before.local or 'none'} → +{after.local or 'none'}",)
    notes.append(_step(before, after))
    if before.local != after.local and (before.local or after.local):
        notes.append(f"build +{before.local or 'none'} → +{after.local or 'none'}")
    if before.is_devrelease != after.is_devrelease:
        notes.append("stable → nightly" if after.is_devrelease else "nightly → stable")
    elif before.is_prerelease != after.is_prerelease:
        notes.append("stable → pre-release" if after.is_prerelease else "pre-release → stable")
    return ("upgraded" if after > before else "downgraded"), tuple(notes)


def _step(old: Version, new: Version) -> str:
    if old.epoch != new.epoch:
        return "epoch"
    width = max(len(old.release), len(new.release))
    before = old.release + (0,) * (width - len(old.release))
    after = new.release + (0,) * (width - len(new.release))
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            return _PARTS[min(number, 2)]
    return "post-release" if old.post != new.post else "pre-release"


def _nature(package: Package) -> tuple[str, ...]:
    if package.kind == "deb":
        return ()
    try:
        version = Version(package.version)
    except InvalidVersion:
        return ()
    return ("nightly",) if version.is_devrelease else ("pre-release",) if version.is_prerelease else ()


def _index_note(old: Package, new: Package) -> str:
    if old.index is None or new.index is None or old.index == new.index:
        return ""
    return f"index {old.index} → {new.index}"


def _other_file(old: Package, new: Package) -> bool:
    return old.sha256 is not None and new.sha256 is not None and old.sha256 != new.sha256


def _file_note(old: Package, new: Package) -> str:
    if old.filename != new.filename and old.filename and new.filename:
        return f"the same version, another file: {old.filename} → {new.filename}"
    assert old.sha256 is not None and new.sha256 is not None, "only known files are compared"
    return f"the same name, other bytes: {old.sha256.short} → {new.sha256.short}"


def _patch_note(old: Package, new: Package) -> str:
    if not old.patched:
        return "patched now"
    return "other patches" if new.patched else "not patched any more"


def _debian_newer(old: str, new: str) -> bool:
    from debian.debian_support import version_compare

    newer: bool = version_compare(new, old) > 0
    return newer
