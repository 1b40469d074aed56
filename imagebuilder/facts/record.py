"""Facts of one wheel as values, and as a compact record for the cache.

A record is an index (JSON) followed by parts that are only unpacked when they are asked for, so that a
question about one library of a wheel does not cost the tables of all others.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from imagebuilder.facts.elf import ElfFacts, VersionNeed, Wanted
from imagebuilder.facts.exports import Exports
from imagebuilder.facts.gpu import GpuCode, GpuGroup
from imagebuilder.facts.tools import Tool
from imagebuilder.values import GpuArch

KIND = "facts-4"
"""Kind of the record in the cache; the number changes with the format or with what is read."""

_MAGIC = b"ibfacts2"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFact:
    """One file as it will lie in site-packages or, with a leading `../`, elsewhere in the environment."""

    crc: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Literal:
    """A library name with a version that stands literally in a Python file, such as libcudart.so.12."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Preload:
    """Libraries that a package's own Python code loads when it is imported: a glob below site-packages."""

    folder: str
    pattern: str


@dataclass(frozen=True, kw_only=True)
class WheelFacts:
    """What one wheel says about itself. `elf` and `gpu` have the paths of `files` as keys.

    metadata: METADATA as text. tags: as WHEEL lists them. scripts: names of console and GUI scripts.
    problems: what could not be read, by path.
    """

    metadata: str
    tags: tuple[str, ...]
    files: Mapping[str, FileFact]
    elf: Mapping[str, ElfFacts]
    gpu: Mapping[str, GpuCode]
    scripts: tuple[str, ...] = ()
    literals: tuple[Literal, ...] = ()
    preloads: tuple[Preload, ...] = ()
    tools: tuple[Tool, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


class LazyParts(Mapping[str, T], Generic[T]):
    """Parts of a record, decoded when first used."""

    def __init__(
        self, data: memoryview, places: Mapping[str, tuple[int, int]], decode: Callable[[bytes], T]
    ) -> None:
        self._data, self._places, self._decode = data, places, decode
        self._known: dict[str, T] = {}

    def __getitem__(self, key: str) -> T:
        if key not in self._known:
            start, size = self._places[key]
            self._known[key] = self._decode(zlib.decompress(self._data[start : start + size]))
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class LazyFiles(Mapping[str, FileFact]):
    """The files of a record, decoded when first used: of many wheels at once, they are most of the memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @cached_property
    def _files(self) -> dict[str, FileFact]:
        rows: dict[str, tuple[int, int]] = json.loads(zlib.decompress(self._data))
        return {path: FileFact(crc=crc, size=size) for path, (crc, size) in rows.items()}

    def __getitem__(self, key: str) -> FileFact:
        return self._files[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def encode_libraries(libraries: Mapping[str, ElfFacts], head: Mapping[str, Any]) -> bytes:
    """A record of libraries by path, and of what else is known, as JSON (`libraries` is taken)."""
    body, places = bytearray(), {}
    for path, elf in sorted(libraries.items()):
        part = zlib.compress(encode_elf(elf), 1)
        places[path] = (len(body), len(part))
        body.extend(part)
    packed = json.dumps({**head, "libraries": places}).encode()
    return struct.pack("<I", len(packed)) + packed + bytes(body)


def decode_libraries(record: bytes) -> tuple[LazyParts[ElfFacts], dict[str, Any]]:
    """(libraries, what else is known) of such a record."""
    (size,) = struct.unpack_from("<I", record)
    head: dict[str, Any] = json.loads(record[4 : 4 + size])
    places = {path: (start, length) for path, (start, length) in head.pop("libraries").items()}
    return LazyParts(memoryview(record)[4 + size :], places, decode_elf), head


def encode(facts: WheelFacts) -> bytes:
    """The record; equal facts give equal bytes for one zlib."""
    body = bytearray()

    def part(data: bytes) -> tuple[int, int]:
        packed = zlib.compress(data, 1)
        start = len(body)
        body.extend(packed)
        return start, len(packed)

    index = {
        "metadata": facts.metadata,
        "tags": facts.tags,
        "scripts": facts.scripts,
        "files": part(json.dumps({p: (f.crc, f.size) for p, f in facts.files.items()}).encode()),
        "elf": {path: part(encode_elf(elf)) for path, elf in sorted(facts.elf.items())},
        "gpu": {path: _gpu_to_json(code) for path, code in sorted(facts.gpu.items())},
        "literals": [(x.path, x.line, x.text) for x in facts.literals],
        "preloads": [(x.folder, x.pattern) for x in facts.preloads],
        "tools": [(t.path, t.release, t.names) for t in facts.tools],
        "problems": facts.problems,
    }
    head = zlib.compress(json.dumps(index).encode(), 1)
    return _MAGIC + struct.pack("<I", len(head)) + head + bytes(body)


def decode(data: bytes) -> WheelFacts:
    """The facts of a record; ValueError for anything that `encode` did not write."""
    if data[:8] != _MAGIC or len(data) < 12:
        raise ValueError("not a record of facts")
    (size,) = struct.unpack_from("<I", data, 8)
    try:
        index: dict[str, Any] = json.loads(zlib.decompress(data[12 : 12 + size]))
        body = memoryview(data)[12 + size :]
        start, length = index["files"]
        return WheelFacts(
            metadata=index["metadata"],
            tags=tuple(index["tags"]),
            scripts=tuple(index["scripts"]),
            files=LazyFiles(body[start : start + length]),
            elf=LazyParts(body, {path: tuple(place) for path, place in index["elf"].items()}, decode_elf),
            gpu={path: _gpu_from_json(code) for path, code in index["gpu"].items()},
            literals=tuple(Literal(path=p, line=n, text=t) for p, n, t in index["literals"]),
            preloads=tuple(Preload(folder=f, pattern=p) for f, p in index["preloads"]),
            tools=tuple(Tool(path=p, release=r, names=tuple(n)) for p, r, n in index["tools"]),
            problems=tuple((path, text) for path, text in index["problems"]),
        )
    except (KeyError, TypeError, zlib.error, struct.error) as error:
        raise ValueError(f"a damaged record of facts: {error}") from None


def encode_elf(elf: ElfFacts) -> bytes:
    """One library: a line of JSON with what has names, then the hashes of what it exports, then the names."""
    references = sorted({(w.version, w.file) for w in elf.wanted})
    number = {reference: i for i, reference in enumerate(references)}
    names = [w.name for w in elf.wanted]
    head = {
        "machine": elf.machine,
        "soname": elf.soname,
        "needed": elf.needed,
        "rpath": elf.rpath,
        "runpath": elf.runpath,
        "version_needs": [(n.file, n.versions) for n in elf.version_needs],
        "version_defs": elf.version_defs,
        "references": references,
        "wanted": names if any("\n" in name for name in names) else "\n".join(names),
        "of": [number[w.version, w.file] for w in elf.wanted],
        "flags": "".join(str(w.weak + 2 * w.referenced) for w in elf.wanted),
        "has_versions": elf.exports.has_versions,
        "counts": (len(elf.exports.plain), len(elf.exports.versioned)),
    }
    return (
        json.dumps(head).encode()
        + b"\n"
        + elf.exports.plain.tobytes()
        + elf.exports.versioned.tobytes()
        + elf.packed_names
    )


def decode_elf(data: bytes) -> ElfFacts:
    """What `encode_elf` wrote."""
    at = data.index(b"\n") + 1
    head: dict[str, Any] = json.loads(data[:at])
    plain_count, versioned_count = head["counts"]
    middle, end = at + 8 * plain_count, at + 8 * (plain_count + versioned_count)
    references = [tuple(reference) for reference in head["references"]]
    said = head["wanted"]  # a list where a hostile name has a line break in it
    names = said if isinstance(said, list) else said.split("\n") if head["of"] else []
    return ElfFacts(
        machine=head["machine"],
        soname=head["soname"],
        needed=tuple(head["needed"]),
        rpath=tuple(head["rpath"]),
        runpath=tuple(head["runpath"]),
        version_needs=tuple(VersionNeed(file=f, versions=tuple(v)) for f, v in head["version_needs"]),
        version_defs=tuple(head["version_defs"]),
        wanted=tuple(
            Wanted(
                name=name,
                version=references[of][0],
                file=references[of][1],
                weak=flag in "13",
                referenced=flag in "23",
            )
            for name, of, flag in zip(names, head["of"], head["flags"], strict=True)
        ),
        exports=Exports(
            plain=array("Q", data[at:middle]),
            versioned=array("Q", data[middle:end]),
            has_versions=head["has_versions"],
        ),
        packed_names=data[end:],
    )


def _gpu_to_json(code: GpuCode) -> dict[str, Any]:
    return {
        "groups": [(list(map(str, group.entries)), group.count) for group in code.groups],
        "compressed": code.compressed,
    }


def _gpu_from_json(data: dict[str, Any]) -> GpuCode:
    return GpuCode(
        groups=tuple(
            GpuGroup(entries=tuple(map(GpuArch.parse, entries)), count=count)
            for entries, count in data["groups"]
        ),
        compressed=tuple((method, count) for method, count in data["compressed"]),
    )
