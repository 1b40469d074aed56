"""Reads what scripts/record_check_facts.py recorded, back into the values that the checks look at."""

from __future__ import annotations

import json
import lzma
import zlib
from array import array
from functools import cache
from pathlib import Path
from typing import Any

from imagebuilder.facts.elf import ElfFacts, VersionNeed, Wanted
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.exports import Exports, symbol_hash
from imagebuilder.facts.gpu import GpuCode, GpuGroup
from imagebuilder.facts.record import FileFact, Literal, Preload, WheelFacts
from imagebuilder.facts.tools import Tool
from imagebuilder.values import GpuArch

FILE = Path(__file__).parents[1] / "data" / "check_facts.json.xz"
# Recorded for the question which of them a package can load with: ten releases, newest first.
TORCHES = tuple(
    f"torch-{release}-cp311-cp311-manylinux_2_28_x86_64.whl"
    for release in (
        "2.15.0", "2.14.1", "2.14.0", "2.13.0", "2.12.1", "2.12.0", "2.11.0", "2.10.0-3", "2.9.1", "2.9.0",
    )
)  # fmt: skip


class Recorded:
    """The recorded wheels by file name, and systems by the stack that has them."""

    def __init__(self, data: bytes) -> None:
        self._document: dict[str, Any] = json.loads(lzma.decompress(data))
        self._hashes = [symbol_hash(key.encode()) for key in self._document["keys"]]
        self._wheels: dict[str, WheelFacts] = {}

    @property
    def filenames(self) -> list[str]:
        """Of every recorded wheel."""
        return list(self._document["wheels"])

    def wheel(self, filename: str) -> WheelFacts:
        """One wheel by file name."""
        if filename not in self._wheels:
            data = self._document["wheels"][filename]
            self._wheels[filename] = WheelFacts(
                metadata=data["metadata"],
                tags=tuple(data.get("tags", ())),
                scripts=tuple(data.get("scripts", ())),
                files={p: FileFact(crc=crc, size=size) for p, (crc, size) in data.get("files", {}).items()},
                elf={path: self._elf(elf) for path, elf in data.get("elf", {}).items()},
                gpu={path: _gpu(groups) for path, groups in data.get("gpu", {}).items()},
                literals=tuple(Literal(path=p, line=n, text=t) for p, n, t in data.get("literals", ())),
                preloads=tuple(Preload(folder=f, pattern=p) for f, p in data.get("preloads", ())),
                tools=tuple(Tool(path=p, release=r, names=tuple(n)) for p, r, n in data.get("tools", ())),
                problems=tuple((p, t) for p, t in data.get("problems", ())),
            )
        return self._wheels[filename]

    def system(self, name: str) -> SystemFacts | None:
        """What the Debian packages of this stack bring; None where its base is an image."""
        data = self._document["systems"].get(name)
        if data is None:
            return None
        return SystemFacts(
            libraries={path: self._elf(elf) for path, elf in data["libraries"].items()},
            links=data["links"],
            default_dirs=tuple(data["default_dirs"]),
            lib=data["lib"],
            program=data["program"],
        )

    def _elf(self, data: dict[str, Any]) -> ElfFacts:
        names, references = self._document["names"], self._document["references"]
        keys = self._document["keys"]
        plain = data.get("plain", ())
        return ElfFacts(
            machine="x86_64",
            soname=data.get("soname", ""),
            needed=tuple(data.get("needed", ())),
            rpath=tuple(data.get("rpath", ())),
            runpath=tuple(data.get("runpath", ())),
            version_needs=tuple(
                VersionNeed(file=f, versions=tuple(v)) for f, v in data.get("version_needs", ())
            ),
            version_defs=tuple(data.get("version_defs", ())),
            wanted=tuple(
                Wanted(
                    name=names[name],
                    version=references[reference][0],
                    file=references[reference][1],
                    weak=bool(flags & 1),
                    referenced=bool(flags & 2),
                )
                for name, reference, flags in data.get("wanted", ())
            ),
            exports=Exports(
                plain=array("Q", sorted(self._hashes[i] for i in plain)),
                versioned=array("Q", sorted(self._hashes[i] for i in data.get("versioned", ()))),
                has_versions=data.get("has_versions", False),
            ),
            packed_names=zlib.compress("\n".join(sorted(keys[i] for i in plain)).encode()) if plain else b"",
        )


def _gpu(groups: list[tuple[str, int]]) -> GpuCode:
    return GpuCode(
        groups=tuple(
            GpuGroup(entries=tuple(GpuArch.parse(e) for e in entries.split()), count=count)
            for entries, count in groups
        )
    )


@cache
def recorded() -> Recorded:
    """Read once per process."""
    return Recorded(FILE.read_bytes())
