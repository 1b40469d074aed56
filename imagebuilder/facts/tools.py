"""CUDA compilers inside wheels: their release, and the GPU names that they know. Read from their own text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuilder.facts.elf import Seekable

TOOL = re.compile(r"(?:^|/)bin/(?:ptxas|nvcc)(?:-\w+)?$")
_RELEASE = re.compile(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)")
_NAME = re.compile(rb"sm_\d{2,3}[af]?(?=\0)")  # linkers merge strings with equal ends: it may begin anywhere
_STEP, _OVERLAP = 1 << 20, 64


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A ptxas or nvcc: release as `12.8.93`, names as `sm_120a`, sorted.

    It has all names that it compiles for, and some that it only knows to have had.
    """

    path: str
    release: str
    names: tuple[str, ...]


def read_tool(file: Seekable, path: str) -> Tool | None:
    """What the program says of itself; None where it says no release."""
    release, names, before = "", set[str](), b""
    file.seek(0)
    while block := file.read(_STEP):
        window = before + block
        found = _RELEASE.search(window)
        release = release or (found[1].decode() if found else "")
        names.update(name.decode() for name in _NAME.findall(window))
        before = window[-_OVERLAP:]
    return Tool(path=path, release=release, names=tuple(sorted(names))) if release else None
