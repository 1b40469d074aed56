"""What the loader finds in an image: libraries, links, search cache and compilers, layer by layer.

A layer is read once as a stream and its facts are kept by its digest; merging the layers of an image is pure.
"""

from __future__ import annotations

import posixpath
import re
import struct
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.debs import OwnedLibraries
from imagebuilder.facts.elf import ElfFacts, read_elf
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.record import decode_libraries, encode_libraries
from imagebuilder.facts.tools import TOOL, Tool, read_tool
from imagebuilder.oci.untar import Members, cleaned, open_layer
from imagebuilder.values import Digest

_KIND = "layer-facts-2"
_LIBRARY = re.compile(r"(?:^|/)(?:lib|ld-)[\w+.-]*\.so(?:\.[\w.]+)?$")
_PYTHON = re.compile(r"(?:^|/)bin/python3\.\d+$")
_UNREAD = re.compile(r"usr/share/|proc/|sys/")  # no loader looks there, and links are many
_CACHE = "etc/ld.so.cache"
_MOST_LIBRARY, _MOST_CACHE, _MOST_LINKS = 4 << 30, 16 << 20, 40
_MAGIC = b"glibc-ld.so.cache1.1"


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """One layer. Paths are absolute; `links` leads from a path to what the link says.

    hidden: paths of lower layers that it removes, with all that is below; emptied: folders whose lower
    contents it hides. cache: what its /etc/ld.so.cache says, by library name; None where it has none.
    """

    libraries: Mapping[str, ElfFacts] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    cache: Mapping[str, str] | None = None
    tools: tuple[Tool, ...] = ()


def known_layer(digest: Digest, cache: Cache) -> LayerFacts | None:
    """Facts of the layer with this digest, if it was read before."""
    record = cache.read_record(_KIND, digest.hex)
    return _decode(record) if record else None


def layer_facts(path: Path, digest: Digest, cache: Cache) -> LayerFacts:
    """Facts of a layer blob, from the cache or read now. Raises ArtefactUnusable."""
    found = known_layer(digest, cache)
    if found is None:
        cache.write_record(_KIND, digest.hex, _encode(_read(path)))
        found = known_layer(digest, cache)
        assert found is not None, "it was just written"
    return found


def image_system(layers: Iterable[LayerFacts], triplet: str, python: str) -> SystemFacts:
    """The file system that the layers make, bottom first, as the loader sees it. python: such as `3.12`."""
    libraries: dict[str, LayerFacts] = {}
    links: dict[str, str] = {}
    tools: dict[str, Tool] = {}
    cache: Mapping[str, str] = {}
    for layer in layers:
        gone = _below(layer).fullmatch
        for path in [p for p in {**libraries, **links, **tools} if gone(p)]:
            libraries.pop(path, None)
            links.pop(path, None)
            tools.pop(path, None)
        for path in (*layer.libraries, *layer.links):
            libraries.pop(path, None)
            links.pop(path, None)
        libraries.update(dict.fromkeys(layer.libraries, layer))
        links.update(layer.links)
        tools.update({tool.path: tool for tool in layer.tools})
        cache = cache if layer.cache is None else layer.cache
    folders = Links(links)
    program = folders.resolve(f"/usr/bin/python{python}")
    return SystemFacts(
        libraries=OwnedLibraries(libraries),
        links=folders,
        cache=cache,
        default_dirs=(f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib"),
        lib=f"lib/{triplet}",
        program=program if program in libraries else "",
        tools=tools,
    )


class Links(Mapping[str, str]):
    """Symbolic links of a file system, of files and of folders: a path leads to where it really lies."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._folders: dict[str, str] = {"/": "/"}

    def resolve(self, path: str) -> str:
        """The path with every link followed, as far as they are known and no loop."""
        for _ in range(_MOST_LINKS):
            place = posixpath.join(self._folder(posixpath.dirname(path)), posixpath.basename(path))
            if place not in self._links:
                return place
            path = posixpath.normpath(posixpath.join(posixpath.dirname(place), self._links[place]))
        return path

    def _folder(self, folder: str) -> str:
        if folder not in self._folders:
            self._folders[folder] = folder  # a loop ends here
            self._folders[folder] = self.resolve(folder)
        return self._folders[folder]

    def __getitem__(self, path: str) -> str:
        place = self.resolve(path)
        if place == path:
            raise KeyError(path)
        return place

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)


def _below(layer: LayerFacts) -> re.Pattern[str]:
    hidden = [f"{re.escape(p)}(?:/.*)?" for p in layer.hidden]
    emptied = [f"{re.escape(p)}/.*" for p in layer.emptied]
    return re.compile("|".join([*hidden, *emptied]) or r"(?!)", re.DOTALL)


def _read(path: Path) -> LayerFacts:
    libraries: dict[str, ElfFacts] = {}
    links: dict[str, str] = {}
    hidden: list[str] = []
    emptied: list[str] = []
    tools: list[Tool] = []
    cache: Mapping[str, str] | None = None
    with open_layer(path) as members:
        for place, member in members:
            folder, name = posixpath.split(absolute := "/" + place)
            if name == ".wh..wh..opq":
                emptied.append(folder)
            elif name.startswith(".wh."):
                hidden.append(posixpath.join(folder, name[4:]))
            elif member.issym() and not _UNREAD.match(place):
                links[absolute] = member.linkname
            elif member.islnk() and _LIBRARY.search(place):
                links[absolute] = "/" + cleaned(member.linkname)  # two names of one file
            elif member.isreg() and place == _CACHE and member.size <= _MOST_CACHE:
                cache = parse_cache(members.contents(member, _MOST_CACHE))
            elif not member.isreg() or member.size > _MOST_LIBRARY:
                continue
            elif _LIBRARY.search(place) or _PYTHON.search(place):
                with _spooled(members, member) as file:
                    if (facts := _elf(file, place)) is not None:
                        libraries[absolute] = facts
            elif TOOL.search(place):
                with _spooled(members, member) as file:
                    tool = read_tool(file, absolute)
                    tools.extend([tool] if tool else [])
    return LayerFacts(
        libraries=libraries,
        links=links,
        hidden=tuple(hidden),
        emptied=tuple(emptied),
        cache=cache,
        tools=tuple(tools),
    )


@contextmanager
def _spooled(members: Members, member: tarfile.TarInfo) -> Iterator[IO[bytes]]:
    """A member's bytes in a file, where they can be read in any order."""
    with tempfile.TemporaryFile() as file:
        for chunk in members.chunks(member):
            file.write(chunk)
        yield file


def _elf(file: IO[bytes], place: str) -> ElfFacts | None:
    try:
        return read_elf(file, place)
    except ArtefactUnusable:
        return None  # the loader cannot use it either


def parse_cache(data: bytes) -> dict[str, str]:
    """Paths by library name in an ld.so.cache; empty where it is none. Source: glibc, dl-cache.h."""
    start = data.find(_MAGIC)
    if start < 0 or len(data) < start + 48:
        return {}
    (count,) = struct.unpack_from("<I", data, start + 20)
    found: dict[str, str] = {}
    for i in range(min(count, (len(data) - start - 48) // 24)):
        _, key, value, _, hardware = struct.unpack_from("<iIIIQ", data, start + 48 + 24 * i)
        name, place = _text(data, start + key), _text(data, start + value)
        if name and place.startswith("/") and not hardware:
            found.setdefault(name, place)
    return found


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at, at + 4096)
    return data[at:end].decode("utf-8", "replace") if 0 <= at < end else ""


def _encode(facts: LayerFacts) -> bytes:
    head = {
        "links": facts.links,
        "hidden": facts.hidden,
        "emptied": facts.emptied,
        "cache": facts.cache,
        "tools": [(t.path, t.release, t.names) for t in facts.tools],
    }
    return encode_libraries(facts.libraries, head)


def _decode(record: bytes) -> LayerFacts:
    libraries, head = decode_libraries(record)
    return LayerFacts(
        libraries=libraries,
        links=head["links"],
        hidden=tuple(head["hidden"]),
        emptied=tuple(head["emptied"]),
        cache=head["cache"],
        tools=tuple(Tool(path=p, release=r, names=tuple(n)) for p, r, n in head["tools"]),
    )
