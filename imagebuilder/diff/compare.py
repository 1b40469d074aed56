"""Two sides → their differences. Pure: what must be looked up is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagebuilder.diff import packages
from imagebuilder.diff.findings import compare_findings
from imagebuilder.diff.libraries import Elf, GpuCode, compare_abi, compare_gpu
from imagebuilder.diff.model import (
    Diff,
    FileMove,
    Headline,
    LayerRow,
    LayerSharing,
    PackageMove,
    SettingMove,
    Side,
)
from imagebuilder.publish.layerscan import Entry
from imagebuilder.values import Digest

TARGET = "target"
_TARGET_LINES = (
    ("base", "base"), ("platform", "platform"), ("Python", "python"), ("glibc", "glibc"), ("GPUs", "gpus"),
    ("driver promised", "driver"), ("as of", "as-of"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Of the field. headline: (words, stem of a package). runtimes: packages that say which CUDA it is.

    major_floors, toolkit_floors: driver by CUDA major, and by release.
    """

    names: packages.Names
    headline: Sequence[tuple[str, str]]
    runtimes: Sequence[str]
    major_floors: Mapping[str, str]
    toolkit_floors: Mapping[str, str]


def compare(old: Side, new: Side, tables: Tables, gpu_code: GpuCode, elf: Elf | None = None) -> Diff:
    """Everything that differs, as far as both sides are known. elf: where dynamic symbols are asked for."""
    notes = [*(f"{old.label}: {note}" for note in old.notes), *(f"{new.label}: {note}" for note in new.notes)]
    moves: tuple[PackageMove, ...] | None = None
    if old.packages is not None and new.packages is not None:
        moves = packages.compare(old.packages, new.packages, tables.names)
    gpu, unread = compare_gpu(moves or (), gpu_code)
    if unread:
        notes.append(f"GPU code not compared, as its wheels were not read yet (check reads them): {unread}")
    abi = findings = None
    if elf is not None and moves is not None:
        abi, unread = compare_abi(moves, old.packages or (), elf)
        if unread:
            notes.append(f"dynamic symbols not compared, as their wheels could not be read: {unread}")
    if old.findings is not None and new.findings is not None:
        findings = compare_findings(old.findings, new.findings, moves or ())
    elif old.kind == new.kind == "stack" and moves is not None:
        unchecked = " and ".join(side.label for side in (old, new) if side.findings is None)
        notes.append(
            f"findings not compared, as check did not see {unchecked} as it is now (--findings runs it)"
        )
    layers = _layers(old.layers, new.layers)
    if layers is None and old.layers is not None and new.layers is not None:
        notes.append("layers of a plan and of an image from elsewhere cannot be compared")
    return Diff(
        old=old,
        new=new,
        headlines=tuple(_headlines(old, new, tables)),
        packages=moves,
        settings=tuple(_settings(old, new)),
        gpu=gpu,
        layers=layers,
        files=_files(old.files, new.files),
        abi=abi,
        findings=findings,
        notes=tuple(notes),
    )


# ---------------------------------------------------------------- the summary


def _headlines(old: Side, new: Side, tables: Tables) -> Iterator[Headline]:
    before, after = _facts(old, tables), _facts(new, tables)
    order = ("CUDA", "driver floor", *(words for words, _ in tables.headline), *(w for w, _ in _TARGET_LINES))
    for name in order:
        if name not in before and name not in after:
            continue
        yield Headline(name=name, old=before.get(name, ""), new=after.get(name, ""))


def _facts(side: Side, tables: Tables) -> dict[str, str]:
    target = side.settings.get(TARGET, {})
    facts: dict[str, str] = {}
    wheels = {p.name: p for p in side.packages or () if p.kind == "wheel"}
    for name in tables.runtimes:
        if name in wheels:
            version = wheels[name].version
            release = ".".join(version.split(".")[:2])
            floor = tables.major_floors.get(version.split(".")[0], "")
            own = tables.toolkit_floors.get(release, "")
            facts["CUDA"] = f"{release} ({version})"
            facts["driver floor"] = floor + (
                f" ({own} came with CUDA {release})" if own and own != floor else ""
            )
            break
    by_stem = {tables.names.stem(name): package for name, package in wheels.items()}
    for words, stem in tables.headline:
        if stem in by_stem:
            facts[words] = by_stem[stem].version
    for words, key in _TARGET_LINES:
        if value := target.get(key, ""):
            facts[words] = value
    return {name: value for name, value in facts.items() if value}


# ---------------------------------------------------------------- settings


def _settings(old: Side, new: Side) -> Iterator[SettingMove]:
    for section in dict.fromkeys((*old.settings, *new.settings)):
        if section not in old.settings or section not in new.settings:
            continue
        before, after = old.settings[section], new.settings[section]
        for name in dict.fromkeys((*before, *after)):
            one, other = before.get(name), after.get(name)
            unknown = None in (one, other) and (section == TARGET or _only_one_knows(section, old, new, one))
            if one != other and not unknown:
                yield SettingMove(section=section, name=name, old=one, new=other)


def _only_one_knows(section: str, old: Side, new: Side, one: str | None) -> bool:
    """Whether the side without a value may have one from its base image, which the other side knows."""
    without, other = (old, new) if one is None else (new, old)
    return section in without.partial and section not in other.partial


# ---------------------------------------------------------------- layers, files


def _layers(old: tuple[LayerRow, ...] | None, new: tuple[LayerRow, ...] | None) -> LayerSharing | None:
    if old is None or new is None:
        return None
    exact = all(layer.digest for layer in (*old, *new))
    if not exact:  # a plan knows its base image as a whole, so that is left out
        old, new = (tuple(layer for layer in side if not layer.base) for side in (old, new))

    def name(layer: LayerRow) -> Digest | None:
        return layer.digest if exact else layer.key

    if any(name(layer) is None for layer in (*old, *new)):
        return None
    there, wanted = Counter(map(name, old)), Counter(map(name, new))
    return LayerSharing(
        shared=tuple(layer for layer in new if name(layer) in there),
        pulled=tuple(layer for layer in new if name(layer) not in there),
        dropped=tuple(layer for layer in old if name(layer) not in wanted),
        exact=exact,
    )


def _files(old: Mapping[str, Entry] | None, new: Mapping[str, Entry] | None) -> tuple[FileMove, ...] | None:
    if old is None or new is None:
        return None
    moves: list[FileMove] = []
    parents: set[str] = set()
    for path in sorted(old.keys() | new.keys()):
        one, other = old.get(path), new.get(path)
        if one is None or other is None:
            row = one or other
            assert row is not None, "a path is in one of the two"
            move = FileMove(
                path=path, move="removed" if other is None else "added", owner=row.owner, old=one, new=other
            )
            moves.append(move)
            if row.kind != "directory":
                parents.update(_parents(path))
        elif aspects := tuple(a for a in ("kind", "content", "mode") if getattr(one, a) != getattr(other, a)):
            moves.append(
                FileMove(
                    path=path,
                    move="changed",
                    owner=other.owner or one.owner,
                    old=one,
                    new=other,
                    aspects=aspects,
                )
            )
    # A folder that came or went with its files is not told beside them.
    return tuple(m for m in moves if m.move == "changed" or m.path not in parents)


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
