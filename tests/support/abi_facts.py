"""Reads what scripts/abi_facts.py recorded, back into the values that the loader works on."""

from __future__ import annotations

import json
import lzma
import os
import zlib
from array import array
from functools import cache
from pathlib import Path
from typing import Any

from imagebuilder.facts.elf import ElfFacts, VersionNeed, Wanted
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.exports import Exports, symbol_hash
from imagebuilder.facts.record import Preload, WheelFacts

FILE = Path(
    os.environ.get("IMAGEBUILDER_ABI_TRUTH") or Path(__file__).parents[1] / "data" / "abi_truth.json.xz"
)


class Recorded:
    """The recorded wheels, this many rows of what really happened, and the system they ran on."""

    def __init__(self, file: Path) -> None:
        self._document: dict[str, Any] = json.loads(lzma.decompress(file.read_bytes()))
        self._hashes = [symbol_hash(key.encode()) for key in self._document["keys"]]
        self.rows: list[list[str]] = self._document["rows"]
        self.closures: dict[str, list[str]] = self._document["closures"]
        self._wheels: dict[str, WheelFacts] = {}

    def wheel(self, filename: str) -> WheelFacts:
        """One wheel by file name."""
        if filename not in self._wheels:
            data = self._document["wheels"][filename]
            self._wheels[filename] = WheelFacts(
                metadata=data["metadata"],
                tags=(),
                files={},
                elf={path: self._elf(elf) for path, elf in data["elf"].items()},
                gpu={},
                preloads=tuple(Preload(folder=f, pattern=p) for f, p in data["preloads"]),
            )
        return self._wheels[filename]

    def set_of(self, torch: str) -> dict[str, WheelFacts]:
        """A torch wheel and its vendor libraries, by package."""
        names = [torch, *self.closures[torch]]
        return {name.split("-")[0].replace("_", "-").lower(): self.wheel(name) for name in names}

    def system(self) -> SystemFacts:
        """Debian 12 with Python 3.11."""
        return SystemFacts(
            libraries={path: self._elf(elf) for path, elf in self._document["system"].items()},
            links={
                **self._document["links"],
                "/lib64/ld-linux-x86-64.so.2": "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            },
            program=self._document["program"],
        )

    def _elf(self, data: dict[str, Any]) -> ElfFacts:
        names, references = self._document["names"], self._document["references"]
        keys = self._document["keys"]
        return ElfFacts(
            machine="x86_64",
            soname=data["soname"],
            needed=tuple(data["needed"]),
            rpath=tuple(data["rpath"]),
            runpath=tuple(data["runpath"]),
            version_needs=tuple(VersionNeed(file=f, versions=tuple(v)) for f, v in data["version_needs"]),
            version_defs=tuple(data["version_defs"]),
            wanted=tuple(
                Wanted(
                    name=names[name],
                    version=references[reference][0],
                    file=references[reference][1],
                    weak=bool(flags & 1),
                    referenced=bool(flags & 2),
                )
                for name, reference, flags in data["wanted"]
            ),
            exports=Exports(
                plain=array("Q", sorted(self._hashes[i] for i in data["plain"])),
                versioned=array("Q", sorted(self._hashes[i] for i in data["versioned"])),
                has_versions=data["has_versions"],
            ),
            packed_names=zlib.compress("\n".join(sorted(keys[i] for i in data["plain"])).encode()),
        )


@cache
def recorded() -> Recorded:
    """Read once per process."""
    return Recorded(FILE)
