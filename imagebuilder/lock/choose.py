"""One wheel per package: the file that an installer would take, and why others do not fit. Pure.

The order is pip's and uv's: the most specific compatibility tag, then the highest build tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from imagebuilder.index.simple import IndexFile
from imagebuilder.lock.target import TargetFacts
from imagebuilder.values import Release

_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")


def rank(filename: str, target: TargetFacts) -> tuple[int, tuple[int, str]] | None:
    """How well a wheel fits, as (tag rank, build tag); None where it does not install. Lower ranks win."""
    try:
        _, _, build, file_tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    ranks = [target.tag_ranks[tag] for tag in file_tags if tag in target.tag_ranks]
    if not ranks:
        return None
    return min(ranks), (build[0], build[1]) if build else (-1, "")


def best_wheel(files: Iterable[IndexFile], version: Version, target: TargetFacts) -> IndexFile | None:
    """The wheel of exactly this version (local part included) that fits best; None where none does."""
    best: tuple[tuple[int, int, str, str], IndexFile] | None = None
    for file in files:
        if not file.is_wheel or file.version != version:
            continue
        if not python_allows(file.requires_python, target.python):
            continue
        fit = rank(file.filename, target)
        if fit is None:
            continue
        tag, (number, suffix) = fit
        key = (-tag, number, suffix, file.filename)
        if best is None or key > best[0]:
            best = key, file
    return best[1] if best else None


def python_allows(requires_python: str | None, python: Release) -> bool:
    """Whether Requires-Python admits this interpreter; an unreadable one admits all, as in pip and uv."""
    if not requires_python:
        return True
    try:
        return SpecifierSet(requires_python).contains(python.text, prereleases=True)
    except InvalidSpecifier:
        return True


def uploaded_by(files: Iterable[IndexFile], as_of: datetime | None) -> list[IndexFile]:
    """The files that were there at `as_of`; one without an upload time counts as there."""
    return [f for f in files if as_of is None or f.upload_time is None or f.upload_time <= as_of]


def why_unfit(files: Iterable[IndexFile], target: TargetFacts) -> str | None:
    """Why no file of one version can be used for the target; None where one can."""
    present = list(files)
    wheels = [f for f in present if f.is_wheel]
    if not wheels:
        return "it has no wheel, only a source distribution"
    allowed = [f for f in wheels if python_allows(f.requires_python, target.python)]
    if not allowed:
        wanted = next(f.requires_python for f in wheels if f.requires_python)
        return f"it requires Python {wanted}"
    fitting = [f for f in allowed if rank(f.filename, target) is not None]
    if not fitting:
        return _why_no_tag([f.filename for f in allowed], target)
    if all(f.yanked is not None for f in fitting):
        return "it was yanked from the index"
    return None


def _why_no_tag(filenames: list[str], target: TargetFacts) -> str:
    glibc = [minor for name in filenames if (minor := _needed_glibc(name, target)) is not None]
    if glibc:
        return f"its wheels need glibc 2.{min(glibc)} or newer, the target has {target.glibc}"
    found = sorted({str(tag) for name in filenames for tag in _file_tags(name)})
    shown = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
    wanted = f"CPython {target.python} on {target.platform.machine}"
    return f"it has no wheel for {wanted} (there are: {shown})"


def _needed_glibc(filename: str, target: TargetFacts) -> int | None:
    """The glibc 2.MINOR that would make this wheel fit; None where glibc is not what is missing."""
    machine, minor = target.platform.machine, target.glibc.parts[1]
    found = [
        int(match[1])
        for tag in _file_tags(filename)
        if (match := _MANYLINUX.fullmatch(tag.platform))
        and match[2] == machine
        and Tag(tag.interpreter, tag.abi, f"linux_{machine}") in target.tag_ranks
    ]
    return min((n for n in found if n > minor), default=None)


def _file_tags(filename: str) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return frozenset()
