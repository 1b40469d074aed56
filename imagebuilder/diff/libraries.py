"""What the libraries of moved packages gained and lost: GPU code, and dynamic symbols. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from imagebuilder.diff.model import AbiMove, GpuMove, Package, PackageMove
from imagebuilder.facts.elf import ElfFacts
from imagebuilder.facts.exports import symbol_hash

GpuCode = Callable[[Package], Mapping[str, tuple[str, ...]] | None]
"""The GPU architectures in each library of a locked wheel; None where nobody has looked yet."""

Elf = Callable[[Package], Mapping[str, ElfFacts] | None]
"""Each library of a locked wheel, by its path; None where nobody has looked yet."""

_SO_VERSION = re.compile(r"(\.cpython-\d+-[^.]+|\.abi3)?(\.|-)?(?:(?<=[.-])[0-9a-f]{8})?\.so(\.\d+)*$")
_VERSION = re.compile(r"(.*?)[._]?(\d[\w.]*)")
_NAMED = 5
_State = Literal["changed", "removed", "added"]
_STATES: tuple[_State, ...] = ("changed", "removed", "added")
_Loser = tuple[str, AbiMove]
"""A package of the old side, and what happened to its library."""
_NOTHING = ElfFacts(machine="")


def stable_name(path: str) -> str:
    """A library's name that survives a new version: without folder and soname's version."""
    return _SO_VERSION.sub(".so", path.rpartition("/")[2])


def compare_gpu(moves: Iterable[PackageMove], gpu_code: GpuCode) -> tuple[tuple[GpuMove, ...], str]:
    """What was gained and lost, and the packages that could not be looked into."""
    found: list[GpuMove] = []
    unread: list[str] = []
    for move in moves:
        if move.kind != "wheel":
            continue
        sides = [gpu_code(p) if p is not None else {} for p in (move.old, move.new)]
        if None in sides:
            unread += [move.name] if _is_known(move) else []
            continue
        before, after = (_architectures(side or {}) for side in sides)
        for library in sorted(before.keys() | after.keys()):
            one, other = before.get(library, set()), after.get(library, set())
            if one != other:
                found.append(
                    GpuMove(
                        package=move.name,
                        library=library,
                        gained=tuple(sorted(other - one)),
                        lost=tuple(sorted(one - other)),
                    )
                )
    return tuple(found), listed(unread)


def compare_abi(
    moves: Sequence[PackageMove], old: Sequence[Package], elf: Elf
) -> tuple[tuple[AbiMove, ...], str]:
    """Libraries whose symbols differ, those whose lost symbols others used first; and what was not read.

    old: every package of the old side, whose references say what is used. A symbol that went to another
    library of its package counts as lost, but not as one that others miss.
    """
    found: list[AbiMove] = []
    gone: dict[str, dict[str, _Loser]] = {}
    unread: list[str] = []
    for move in moves:
        if move.kind != "wheel":
            continue
        sides = [elf(p) if p is not None else {} for p in (move.old, move.new)]
        if None in sides:
            unread += [move.name] if _is_known(move) else []
            continue
        there = {name for facts in (sides[1] or {}).values() for name in facts.names()}
        for before, library in _libraries(move.name, sides[0] or {}, sides[1] or {}):
            found.append(library)
            lost = {name for name in library.lost if name.encode(errors="replace") not in there}
            if before is not None and move.old is not None:
                soname = (sides[0] or {})[before].soname or before.rpartition("/")[2]
                gone.setdefault(soname, {}).update(dict.fromkeys(lost, (move.old.name, library)))
    users = _users(gone, old, elf)
    used = (replace(m, used=users.get((m.package, m.library), {})) for m in found)
    order = sorted(used, key=lambda m: (-len(m.used), _STATES.index(m.state), m.package, m.library))
    return tuple(order), listed(unread)


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_known(move: PackageMove) -> bool:
    """Whether a side knows the wheel: what was found in an image cannot be looked up."""
    return any(p is not None and p.sha256 is not None for p in (move.old, move.new))


def _architectures(code: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """By stable names; cubins all together."""
    found: dict[str, set[str]] = {}
    for path, architectures in code.items():
        name = "*.cubin" if path.endswith(".cubin") else stable_name(path)
        found.setdefault(name, set()).update(architectures)
    return found


# ---------------------------------------------------------------- dynamic symbols


def _libraries(
    package: str, old: Mapping[str, ElfFacts], new: Mapping[str, ElfFacts]
) -> Iterator[tuple[str | None, AbiMove]]:
    """(path on the old side, what happened) of every library that differs."""
    for before, after in _pairs(old, new):
        one = old[before] if before is not None else _NOTHING
        other = new[after] if after is not None else _NOTHING
        state: _State = "added" if before is None else "removed" if after is None else "changed"
        move = _library(package, after or before or "", state, one, other)
        if state != "changed" or not move.empty:
            yield before, move


def _pairs(old: Iterable[str], new: Iterable[str]) -> list[tuple[str | None, str | None]]:
    """Which library became which: the same path, else the same path but for a version, else the same name.

    A name that several have is not guessed.
    """
    left, right = sorted(old), sorted(new)
    pairs: list[tuple[str | None, str | None]] = []
    keys: tuple[Callable[[str], str], ...] = (
        lambda path: path,
        lambda path: f"{path.rpartition('/')[0]}/{stable_name(path)}",
        stable_name,
    )
    for key in keys:
        ones, others = Counter(map(key, left)), Counter(map(key, right))
        by_key = {key(path): path for path in right}
        for path in list(left):
            name = key(path)
            if ones[name] == others[name] == 1:
                pairs.append((path, by_key[name]))
                left.remove(path)
                right.remove(by_key[name])
    return [*pairs, *((path, None) for path in left), *((None, path) for path in right)]


def _library(package: str, library: str, state: _State, old: ElfFacts, new: ElfFacts) -> AbiMove:
    before, after = _names(old), _names(new)
    return AbiMove(
        package=package,
        library=library,
        state=state,
        gained=_texts(after - before),
        lost=_texts(before - after),
        moved=tuple(_moved(old, new, before & after)),
        defines_gained=_minus(new.version_defs, old.version_defs),
        defines_lost=_minus(old.version_defs, new.version_defs),
        needs=tuple(_needs(old, new)),
    )


def _names(elf: ElfFacts) -> set[bytes]:
    """What is exported, without the symbols that name its versions."""
    return set(elf.names()).difference(version.encode() for version in elf.version_defs)


def _needs(old: ElfFacts, new: ElfFacts) -> Iterator[tuple[str, str, str]]:
    """(kind, highest version before, and now) where these differ: what a system must at least have."""
    before, after = _highest(old), _highest(new)
    for kind in sorted(before.keys() | after.keys()):
        one, other = before.get(kind, ""), after.get(kind, "")
        if one != other:
            yield kind, one, other


def _highest(elf: ElfFacts) -> dict[str, str]:
    """`GLIBC` → `2.34`, `libcudart.so` → `12`."""
    found: dict[str, str] = {}
    for need in elf.version_needs:
        for version in need.versions:
            match = _VERSION.fullmatch(version)
            kind, number = (match[1], match[2]) if match else (version, "")
            if kind not in found or _numbers(found[kind]) < _numbers(number):
                found[kind] = number
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _moved(old: ElfFacts, new: ElfFacts, names: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
    """Names that both have, under other versions."""
    if not (old.exports.has_versions or new.exports.has_versions) or old.exports == new.exports:
        return
    for name in sorted(names):
        before, after = _versions_of(name, old), _versions_of(name, new)
        if before != after:
            yield _text(name), before, after


def _versions_of(name: bytes, elf: ElfFacts) -> str:
    if not elf.exports.has_versions:
        return ""
    return " ".join(
        version
        for version in elf.version_defs
        if elf.exports.has_versioned(symbol_hash(name + b"@" + version.encode()))
    )


def _users(
    gone: Mapping[str, Mapping[str, _Loser]], packages: Iterable[Package], elf: Elf
) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    """By package and library: its lost symbols that libraries of other packages take from it, with those.

    gone: by soname. A library takes a symbol from another if it names this as needed, and refers to it not
    weakly.
    """
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for user in packages if gone else ():
        for path, facts in (elf(user) or {}).items() if user.kind == "wheel" else ():
            needed = [soname for soname in facts.needed if soname in gone]
            for wanted in facts.wanted if needed else ():
                for soname in needed:
                    owner, move = gone[soname].get(wanted.name, (user.name, None))
                    meant = not wanted.weak and wanted.file in ("", soname)
                    if move is not None and meant and user.name != owner:
                        by = found.setdefault((move.package, move.library), {}).setdefault(wanted.name, {})
                        by[f"{user.name}: {path.rpartition('/')[2]}"] = None
    return {key: {name: tuple(by) for name, by in names.items()} for key, names in found.items()}


def _texts(names: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(map(_text, sorted(names)))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _minus(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(one) - set(other)))
