"""What the loader finds: libraries by path, links, folders, and libraries that are taken for granted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from imagebuilder.facts.elf import ElfFacts, Wanted
from imagebuilder.facts.exports import NO_EXPORTS, Exports, symbol_hash


@lru_cache(maxsize=1 << 16)
def hashes(name: str, version: str) -> tuple[int, int, int]:
    """Hashes of `name`, `name@VERSION` and `name@`; the last two only for a reference with a version."""
    encoded = name.encode()
    if not version:
        return symbol_hash(encoded), 0, 0
    exact = symbol_hash(encoded + b"@" + version.encode())
    return symbol_hash(encoded), exact, symbol_hash(encoded + b"@")


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """A library that nobody here has, but that will be there: the driver's, or one of an unread base.

    symbols: regular expression of the names it defines for references without a version; names: or some of
    them, as hashes. A reference with a version says itself whose it is. newest: for version families such as
    `GLIBC_`, the newest version it has. without: names that it does not define. provider: who brings it.
    """

    soname: str
    provider: str
    symbols: str = ".*"
    newest: tuple[tuple[str, tuple[int, ...]], ...] = ()
    without: frozenset[str] = frozenset()
    names: Exports = NO_EXPORTS

    def defines(self, wanted: Wanted) -> bool:
        """Would this library define what is wanted?"""
        if wanted.name in self.without:
            return False
        if wanted.version:
            return wanted.file == self.soname and self.has_version(wanted.version)
        known = self.names.has_plain(hashes(wanted.name, "")[0])
        return known or bool(re.match(self.symbols, wanted.name))

    def has_version(self, version: str) -> bool:
        """Is this symbol version old enough for it?"""
        for family, newest in self.newest:
            rest = version[len(family) :]
            if version.startswith(family) and re.fullmatch(r"\d+(\.\d+)*", rest):
                return tuple(map(int, rest.split("."))) <= newest
        return True


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """The files the loader sees. Paths are absolute; links lead from a path to another.

    libraries: facts by path. cache: what ld.so.cache says, by name. assumed: by soname. default_dirs: the
    loader's built-in folders. lib: what `$LIB` stands for.
    """

    libraries: Mapping[str, ElfFacts]
    links: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, Assumed] = field(default_factory=dict)
    cache: Mapping[str, str] = field(default_factory=dict)
    ld_library_path: tuple[str, ...] = ()
    default_dirs: tuple[str, ...] = ("/lib", "/usr/lib")
    lib: str = "lib"

    def place(self, folder: str) -> str:
        """Where a folder really lies, as far as links are known."""
        return self.links.get(folder, folder)

    def resolve(self, path: str) -> str | None:
        """The real file behind a path; None where there is no library."""
        for _ in range(40):
            if path in self.libraries:
                return path
            if path not in self.links:
                return None
            path = self.links[path]
        return None
