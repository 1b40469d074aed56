"""Libraries inside Debian packages: what the loader finds in an image that is made of them."""

from __future__ import annotations

import posixpath
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imagebuilder.cache import Cache
from imagebuilder.facts.elf import ElfFacts, read_elf
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.member import Stored
from imagebuilder.facts.record import decode_libraries, encode_libraries
from imagebuilder.index.debfile import clean, entries, locate, open_deb, unpacked
from imagebuilder.values import Digest

_KIND = "deb-facts-1"
_LIBRARY = re.compile(r"(?:usr/)?lib(?:64)?/(?:[\w.-]+/)?[\w.+-]+\.so(?:\.[\w.]+)?$")
_PYTHON = re.compile(r"usr/bin/python3\.\d+$")
_LIMIT = 4 << 30
_MOST = 256 << 20  # bytes of one library


@dataclass(frozen=True, kw_only=True)
class DebFacts:
    """Shared libraries of one package by absolute path (below /usr), and the links among them."""

    libraries: Mapping[str, ElfFacts]
    links: Mapping[str, str]


def deb_facts(path: Path, digest: Digest, name: str, cache: Cache) -> DebFacts:
    """Facts of a .deb, from the cache or read now. Raises ArtefactUnusable."""
    record = cache.read_record(_KIND, digest.hex)
    if record is None:
        libraries, links = _read(path, name)
        record = encode_libraries(libraries, {"links": links})
        cache.write_record(_KIND, digest.hex, record)
    found, head = decode_libraries(record)
    return DebFacts(libraries=found, links=head["links"])


def system_of(packages: Iterable[DebFacts], triplet: str) -> SystemFacts:
    """The file system that these packages make, as the loader sees it: /lib and /lib64 lead to /usr."""
    owners: dict[str, DebFacts] = {}
    links: dict[str, str] = {}
    for facts in packages:
        owners.update(dict.fromkeys(facts.libraries, facts))
        links.update(facts.links)
    for path in [*owners, *links]:
        if path.startswith("/usr/lib"):
            links.setdefault(path.removeprefix("/usr"), path)
    return SystemFacts(
        libraries=OwnedLibraries(owners),
        links=links,
        default_dirs=(f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib"),
        lib=f"lib/{triplet}",
        program=next((path for path in owners if _PYTHON.search(path)), ""),
    )


class HasLibraries(Protocol):
    """Facts of something that brings libraries: a package, a layer."""

    @property
    def libraries(self) -> Mapping[str, ElfFacts]:
        """By absolute path."""


class OwnedLibraries(Mapping[str, ElfFacts]):
    """Libraries of many packages or layers (path → whose it is), each decoded when it is asked for."""

    def __init__(self, owners: Mapping[str, HasLibraries]) -> None:
        self._owners = owners

    def __getitem__(self, path: str) -> ElfFacts:
        return self._owners[path].libraries[path]

    def __contains__(self, path: object) -> bool:
        return path in self._owners

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)


def _read(path: Path, name: str) -> tuple[dict[str, ElfFacts], dict[str, str]]:
    libraries: dict[str, ElfFacts] = {}
    links: dict[str, str] = {}
    with open_deb(path) as deb, tempfile.TemporaryFile() as spool:
        for chunk in unpacked(deb, locate(deb, name).data, name, _LIMIT):
            spool.write(chunk)
        for entry in entries(spool, spool.tell(), name):
            place = clean(entry.name, name)
            if not (_LIBRARY.search(place) or _PYTHON.search(place)):
                continue
            absolute = "/" + (place if place.startswith("usr/") else f"usr/{place}")
            if entry.issym():
                target = posixpath.normpath(posixpath.join(posixpath.dirname(absolute), entry.linkname))
                links[absolute] = target if target.startswith("/usr/") else f"/usr{target}"
            elif entry.isreg() and entry.size <= _MOST:
                facts = read_elf(Stored(spool, entry.offset_data, entry.size), place)
                if facts is not None:
                    libraries[absolute] = facts
    return libraries, links
