"""What the dynamic loader would do: a pure emulation of glibc's ld.so over facts, file by file.

Modelled: search order (already loaded, DT_RPATH of the object and its loaders, LD_LIBRARY_PATH, DT_RUNPATH,
cache, default folders), RTLD_LOCAL and RTLD_GLOBAL, the scope of a new object (global scope, then its own
breadth-first closure), symbol versions, weak and unreferenced symbols. Not modelled: constructors (see
`layouts`), hwcaps folders, LD_PRELOAD, audit. Sources: glibc elf/dl-load.c, dl-deps.c, dl-lookup.c,
dl-version.c, dl-object.c; ld.so(8).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from imagebuilder.facts.elf import ElfFacts, Wanted
from imagebuilder.facts.filesystem import Assumed, FileSystem, hashes

LD_PREFIX = "ld-linux"  # the loader itself is always loaded, under its own name


@dataclass(frozen=True, kw_only=True)
class MissingLibrary:
    """A needed library that the loader finds nowhere, and the file that needs it."""

    name: str
    wanted_by: str


@dataclass(frozen=True, kw_only=True)
class MissingSymbol:
    """An undefined symbol that nothing in its scope defines, and the file that refers to it."""

    symbol: Wanted
    wanted_by: str


@dataclass(frozen=True, kw_only=True)
class MissingVersion:
    """A symbol version that a library was to have and has not."""

    version: str
    library: str
    wanted_by: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of loading one file: everything that is missing, not only what the loader would say first.

    assumed: the libraries that were taken for granted. preloaded: those that had to be loaded before, because
    the file does not say where they lie.
    """

    path: str
    libraries: tuple[MissingLibrary, ...] = ()
    versions: tuple[MissingVersion, ...] = ()
    symbols: tuple[MissingSymbol, ...] = ()
    assumed: tuple[str, ...] = ()
    preloaded: tuple[str, ...] = ()

    @property
    def loads(self) -> bool:
        """Nothing is missing."""
        return not (self.libraries or self.versions or self.symbols)

    def _because(self, failed: Mapping[str, Outcome], absent: list[_Object]) -> Outcome:
        """The same, with each library that is there but does not load replaced by what it lacks itself."""
        libraries, versions, symbols = list[MissingLibrary](), list[MissingVersion](), list[MissingSymbol]()
        for missing in self.libraries:
            reason = failed.get(missing.name)
            libraries.extend(reason.libraries if reason else [missing])
            versions.extend(reason.versions if reason else ())
            symbols.extend(reason.symbols if reason else ())
        versions.extend(self.versions)
        symbols.extend(s for s in self.symbols if not any(o.defines(s.symbol) for o in absent))
        return replace(
            self,
            libraries=tuple(dict.fromkeys(libraries)),
            versions=tuple(dict.fromkeys(versions)),
            symbols=tuple(dict.fromkeys(symbols)),
        )


class _Object:
    """One loaded file, or an assumed library."""

    def __init__(self, path: str, facts: ElfFacts | None, loader: _Object | None, assumed: Assumed | None):
        self.path, self.facts, self.loader, self.assumed = path, facts, loader, assumed
        self.names = {path}
        self.needed: list[_Object] = []

    @property
    def soname(self) -> str:
        return self.facts.soname if self.facts else self.assumed.soname if self.assumed else ""

    def defines(self, wanted: Wanted) -> bool:
        """Would a reference bind to a definition in this file?"""
        if self.facts is None:
            return self.assumed is not None and self.assumed.defines(wanted)
        exports = self.facts.exports
        plain, exact, unversioned = hashes(wanted.name, wanted.version)
        if not wanted.version or not exports.has_versions:
            return exports.has_plain(plain)
        return exports.has_versioned(exact) or exports.has_versioned(unversioned)


class Process:
    """A running program, as far as the loader is concerned. `load` changes it only if the file loads."""

    def __init__(self, files: FileSystem, program: Assumed | None = None) -> None:
        """`program`: stands for the running program, where its file is not among `files`."""
        self._files = files
        self._objects: list[_Object] = []
        self._by_name: dict[str, _Object] = {}
        self._by_path: dict[str, _Object] = {}
        self._global: dict[int, _Object] = {}
        self._found_globally: dict[tuple[str, str], bool] = {}
        if program:
            obj = _Object(program.soname, None, None, program)
            self._objects.append(obj)
            self._global[id(obj)] = obj

    def is_loaded(self, name: str) -> bool:
        """Would a NEEDED entry of this name be satisfied by what is loaded already?"""
        return name in self._by_name

    def loaded(self) -> Iterator[str]:
        """Paths of all loaded files, in order."""
        return (o.path for o in self._objects)

    def clone(self) -> Process:
        """The same state, to try something."""
        other = Process(self._files)
        other._objects = list(self._objects)
        other._by_name, other._by_path = dict(self._by_name), dict(self._by_path)
        other._global = dict(self._global)
        other._found_globally = self._found_globally  # replaced, never emptied, when the scope grows
        return other

    def load(self, path: str, *, everywhere: bool = False, preloaded: tuple[str, ...] = ()) -> Outcome:
        """dlopen(path, RTLD_NOW), with RTLD_GLOBAL where `everywhere`."""
        trial = _Trial(self._files, self._by_name, self._by_path)
        root = trial.map(path)
        if root is None:
            return Outcome(path=path, libraries=(MissingLibrary(name=path, wanted_by=""),))
        closure = trial.closure(root)
        versions = tuple(v for o in trial.new for v in self._missing_versions(o, trial))
        symbols = tuple(
            s for o in reversed(trial.new) for s in self._missing_symbols(o, closure, trial.by_name)
        )
        absent = {m.name for m in trial.missing}
        symbols = tuple(s for s in symbols if s.symbol.file not in absent)
        outcome = Outcome(
            path=path,
            libraries=tuple(trial.missing),
            versions=versions,
            symbols=symbols,
            assumed=tuple(sorted({o.assumed.soname for o in closure if o.assumed})),
            preloaded=preloaded,
        )
        if outcome.loads:
            self._objects.extend(trial.new)
            self._by_name, self._by_path = trial.by_name, trial.by_path
            if everywhere:
                self._global.update((id(o), o) for o in closure)
                self._found_globally = {key: True for key, found in self._found_globally.items() if found}
        return outcome

    def load_with_siblings(
        self, path: str, find: Callable[[str], Iterable[str]], *, everywhere: bool = False
    ) -> Outcome:
        """As `load`, but a library that is found nowhere is first loaded from where `find(name)` says.

        Packages do this in Python: they load their own libraries by path before the extension that needs
        them. Tried on a copy, so that only a success changes this process.
        """
        trial = self.clone()
        outcome = trial._with_siblings(path, find, (), frozenset(), everywhere)
        if outcome.loads:
            self._objects, self._by_name, self._by_path = trial._objects, trial._by_name, trial._by_path
            self._global, self._found_globally = trial._global, trial._found_globally
        return outcome

    def _with_siblings(
        self,
        path: str,
        find: Callable[[str], Iterable[str]],
        done: tuple[str, ...],
        tried: frozenset[str],
        everywhere: bool,
    ) -> Outcome:
        outcome = self.load(path, everywhere=everywhere, preloaded=done)
        failed: dict[str, Outcome] = {}
        for missing in outcome.libraries:
            if missing.name in tried or self.is_loaded(missing.name):
                continue
            for candidate in find(missing.name):
                sibling = self._with_siblings(candidate, find, (), tried | {missing.name}, False)
                if sibling.loads:
                    failed.pop(missing.name, None)
                    done += (*sibling.preloaded, candidate)
                    break
                failed[missing.name] = sibling
        if done != outcome.preloaded:
            outcome = self._with_siblings(path, find, done, tried | set(failed), everywhere)
        absent = [_Object(o.path, self._files.libraries[o.path], None, None) for o in failed.values()]
        return outcome._because(failed, absent)

    def _missing_versions(self, obj: _Object, trial: _Trial) -> Iterator[MissingVersion]:
        if obj.facts is None:
            return
        for need in obj.facts.version_needs:
            provider = trial.by_name.get(need.file)
            if provider is None:
                continue
            for version in need.versions:
                if provider.assumed:
                    there = provider.assumed.has_version(version)
                else:
                    assert provider.facts is not None
                    there = not provider.facts.version_defs or version in provider.facts.version_defs
                if not there:
                    yield MissingVersion(version=version, library=need.file, wanted_by=obj.path)

    def _missing_symbols(
        self, obj: _Object, closure: list[_Object], by_name: Mapping[str, _Object]
    ) -> Iterator[MissingSymbol]:
        if obj.facts is None:
            return
        local = {id(o): o for o in closure if id(o) not in self._global}
        for wanted in obj.facts.wanted:
            if wanted.weak or not wanted.referenced:
                continue
            named = by_name.get(wanted.file)  # most often it is where the reference says: look there first
            if named and (id(named) in local or id(named) in self._global) and named.defines(wanted):
                continue
            key = (wanted.name, wanted.version)
            found = self._found_globally.get(key)
            if found is None:
                found = any(o.defines(wanted) for o in self._global.values())
                self._found_globally[key] = found
            if not found and not any(o.defines(wanted) for o in local.values()):
                yield MissingSymbol(symbol=wanted, wanted_by=obj.path)


class _Trial:
    """Maps one file and what it needs, on top of what is loaded."""

    def __init__(
        self, files: FileSystem, by_name: Mapping[str, _Object], by_path: Mapping[str, _Object]
    ) -> None:
        self._files = files
        self.by_name, self.by_path = dict(by_name), dict(by_path)
        self.new: list[_Object] = []
        self.missing: list[MissingLibrary] = []

    def map(self, path: str) -> _Object | None:
        """The object of a path (already loaded or new), with all it needs mapped breadth-first."""
        obj = self._open(path, None)
        if obj is None:
            return None
        waiting = list(self.new)
        while waiting:
            current = waiting.pop(0)
            for name in current.facts.needed if current.facts else ():
                found = self._find(name, current)
                if found is None:
                    if all(m.name != name for m in self.missing):
                        self.missing.append(MissingLibrary(name=name, wanted_by=current.path))
                    continue
                current.needed.append(found)
                if found in self.new and found not in waiting and not found.needed and found is not current:
                    waiting.append(found)
        return obj

    def closure(self, root: _Object) -> list[_Object]:
        """The object and everything it needs, breadth-first, each once."""
        order, seen = [root], {id(root)}
        for obj in order:
            for needed in obj.needed:
                if id(needed) not in seen:
                    seen.add(id(needed))
                    order.append(needed)
        return order

    def _find(self, name: str, loader: _Object) -> _Object | None:
        if name in self.by_name:
            return self.by_name[name]
        for path in self._candidates(name, loader):
            obj = self._open(path, loader)
            if obj is not None:
                self._name(obj, name)
                return obj
        assumed = self._files.assumed.get(name)
        if assumed is None:
            return None
        obj = _Object(f"({assumed.provider}) {name}", None, loader, assumed)
        self._add(obj)
        self._name(obj, name)
        return obj

    def _candidates(self, name: str, loader: _Object) -> Iterator[str]:
        if "/" in name:
            yield name
            return
        facts = loader.facts
        if facts and not facts.runpath:
            current: _Object | None = loader
            while current:
                if current.facts and not current.facts.runpath:
                    yield from self._in(current.facts.rpath, current, name)
                current = current.loader
        yield from (posixpath.join(folder, name) for folder in self._files.ld_library_path)
        if facts:
            yield from self._in(facts.runpath, loader, name)
        if name in self._files.cache:
            yield self._files.cache[name]
        yield from (posixpath.join(folder, name) for folder in self._files.default_dirs)

    def _in(self, folders: Iterable[str], obj: _Object, name: str) -> Iterator[str]:
        origin = posixpath.dirname(obj.path)
        for folder in folders:
            expanded = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            expanded = expanded.replace("${LIB}", self._files.lib).replace("$LIB", self._files.lib)
            if expanded.startswith("/"):
                yield posixpath.normpath(posixpath.join(expanded, name))

    def _open(self, path: str, loader: _Object | None) -> _Object | None:
        real = self._files.resolve(path)
        if real is None:
            return None
        if real in self.by_path:
            return self.by_path[real]
        obj = _Object(real, self._files.libraries[real], loader, None)
        self.by_path[real] = obj
        self._add(obj)
        return obj

    def _add(self, obj: _Object) -> None:
        self.new.append(obj)
        if obj.soname:
            self._name(obj, obj.soname)

    def _name(self, obj: _Object, name: str) -> None:
        obj.names.add(name)
        self.by_name.setdefault(name, obj)
