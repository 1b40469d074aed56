"""Indexes on loopback that have real packages: names, versions, tags, pins, and what was recorded of them.

    indexes = RecordedIndexes(server, folder, cache)
    indexes.default.url                       # configured as the default index
    indexes.shipped("cu128-debian")           # every wheel of a shipped lock, as recorded
    indexes.put(index, facts, filename)       # any facts under any name

A wheel here has its real METADATA and nothing else in it; its facts, which say what is in the real one, lie
in the cache under its hash, as if somebody had checked it before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from imagebuilder.cache import Cache
from imagebuilder.facts.elf import ElfFacts
from imagebuilder.facts.record import KIND, WheelFacts, encode
from imagebuilder.values import Digest
from tests.support.check_cases import shipped
from tests.support.check_facts import recorded
from tests.support.http_server import Server, SimpleIndex
from tests.support.wheels import make_wheel

UPLOADED = "2025-12-01T00:00:00Z"
_MAJOR = {
    "libcudart.so.12": "libcudart.so.13", "libnvrtc.so.12": "libnvrtc.so.13",
    "libcublas.so.12": "libcublas.so.13",
    "libcublasLt.so.12": "libcublasLt.so.13", "libcufft.so.11": "libcufft.so.12",
    "libcusolver.so.11": "libcusolver.so.12", "libnvJitLink.so.12": "libnvJitLink.so.13",
    "libcupti.so.12": "libcupti.so.13",
}  # fmt: skip
_CUDA = re.compile(r"lib(?:cu|nv)\w+\.so")


class RecordedIndexes:
    """See the module."""

    def __init__(self, server: Server, folder: Path, cache: Path) -> None:
        self.server, self._folder, self._cache = server, folder, Cache(cache)
        self.default = server.index("/simple", form="json")
        self.filenames: list[str] = []

    def shipped(self, stack: str, *, but: tuple[str, ...] = ()) -> None:
        """The wheels of a shipped lock, on the default index."""
        for wheel in shipped(stack)[1].wheels:
            if wheel.name not in but:
                self.recorded(wheel.filename)

    def recorded(self, filename: str, **listed: Any) -> None:
        """One recorded wheel, on the default index."""
        self.put(self.default, recorded().wheel(filename), filename, upload_time=UPLOADED, **listed)

    def neighbours(self, filename: str) -> None:
        """What this wheel pins and nothing was recorded of: with the facts of another release."""
        for text in re.findall(r"(?m)^Requires-Dist: ([\w-]+==[\w.]+)", recorded().wheel(filename).metadata):
            name, _, version = text.partition("==")
            stem = name.replace("-", "_")
            there = [n for n in recorded().filenames if n.startswith(f"{stem}-") and "cp312" not in n]
            if there and not any(n.startswith(f"{stem}-{version}-") for n in self.filenames):
                like = there[-1]
                tag = like.split("-", 2)[2]
                self.put(
                    self.default, recorded().wheel(like), f"{stem}-{version}-{tag}", upload_time=UPLOADED
                )

    def put(
        self,
        index: SimpleIndex,
        facts: WheelFacts,
        filename: str,
        files: Mapping[str, bytes] | None = None,
        **listed: Any,
    ) -> None:
        """List a wheel with these facts."""
        name, version, _, _ = parse_wheel_filename(filename)
        stem = filename.split("-", maxsplit=1)[0]
        metadata = re.sub(r"(?m)^Version: .*$", f"Version: {version}", facts.metadata, count=1)
        contents: dict[str, Any] = {
            f"{stem}-{version}.dist-info/METADATA": metadata.encode(),
            **(files or {}),
        }
        path = make_wheel(self._folder, stem, str(version), contents, filename=filename)
        index.add(canonicalize_name(name), filename, path, **listed)
        self.filenames.append(filename)
        known = encode(replace(facts, metadata=metadata))
        self._cache.write_record(KIND, Digest.of(path.read_bytes()).hex, known)


def for_cuda_13(facts: WheelFacts, requires: Callable[[str], str] = lambda line: line) -> WheelFacts:
    """A recorded wheel of CUDA 12 as it is built for CUDA 13: other sonames, other requirements."""
    lines = [requires(line) for line in facts.metadata.splitlines()]
    elf = {path: _built_for_13(library) for path, library in facts.elf.items()}
    return replace(facts, metadata="\n".join(line for line in lines if line) + "\n", elf=elf)


def _built_for_13(elf: ElfFacts) -> ElfFacts:
    return replace(
        elf,
        needed=tuple(_MAJOR.get(name, name) for name in elf.needed),
        wanted=tuple(w for w in elf.wanted if not _CUDA.match(w.file)),
        version_needs=tuple(n for n in elf.version_needs if not _CUDA.match(n.file)),
    )
