"""The installed environment as the loader will find it: wheels in site-packages, a system, a driver. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from imagebuilder.facts.elf import ElfFacts
from imagebuilder.facts.filesystem import Assumed, FileSystem
from imagebuilder.facts.loader import Outcome, Process
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.tools import Tool


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How importing a package loads libraries (data/runtimes.toml)."""

    package: str
    module: str
    function: str
    everywhere: tuple[str, ...]
    modules: tuple[str, ...]
    folders: tuple[str, ...]
    major_of: str


@dataclass(frozen=True, kw_only=True)
class SystemFacts:
    """Libraries outside site-packages. `owners`: the system package of a path, where known.

    program: the path of the Python interpreter among `libraries`, or "" where it is only assumed. tools:
    compilers by path.
    """

    libraries: Mapping[str, ElfFacts] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    cache: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, Assumed] = field(default_factory=dict)
    default_dirs: tuple[str, ...] = (
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib",
        "/usr/lib",
    )
    lib: str = "lib/x86_64-linux-gnu"
    program: str = ""
    tools: Mapping[str, Tool] = field(default_factory=dict)


PYTHON = Assumed(soname="(python)", provider="python", symbols=r"_?Py")


class Environment:
    """One set of wheels on one system.

    site: absolute path of site-packages. Members are named by their path relative to it.
    """

    def __init__(
        self,
        wheels: Mapping[str, WheelFacts],
        system: SystemFacts,
        driver: Iterable[Assumed],
        runtimes: Iterable[Runtime],
        *,
        site: str = "/opt/venv/lib/python3/site-packages",
        ld_library_path: tuple[str, ...] = (),
    ) -> None:
        self.wheels, self.site, self.system = wheels, site, system
        self._runtimes = [r for r in runtimes if r.package in wheels]
        self.owner: dict[str, str] = {}
        for name, facts in wheels.items():
            for path in facts.elf:
                self.owner[self.absolute(path)] = name
        self.files = FileSystem(
            libraries=_Libraries(self),
            links=system.links,
            assumed={**{a.soname: a for a in driver}, **system.assumed},
            cache=system.cache,
            ld_library_path=ld_library_path,
            default_dirs=system.default_dirs,
            lib=system.lib,
        )

    def absolute(self, path: str) -> str:
        """Where a path relative to site-packages lies."""
        return posixpath.normpath(posixpath.join(self.site, path))

    def relative(self, path: str) -> str:
        """The reverse, for showing; a system path stays as it is."""
        return path[len(self.site) + 1 :] if path.startswith(self.site + "/") else path

    @cached_property
    def by_file_name(self) -> Mapping[str, tuple[str, ...]]:
        """Absolute paths of all libraries in wheels, by file name and by soname."""
        found: dict[str, list[str]] = {}
        for path in self.owner:
            found.setdefault(posixpath.basename(path), []).append(path)
        return {name: tuple(sorted(paths)) for name, paths in found.items()}

    def siblings(self, name: str) -> Iterable[str]:
        """Where in site-packages a library of this name lies."""
        return self.by_file_name.get(name, ())

    def start(self) -> Process:
        """A Python process that has imported the packages of `runtimes`."""
        process = Process(self.files, program=PYTHON)
        if self.system.program:
            process = Process(self.files)
            process.load(self.system.program, everywhere=True)
        for runtime in self._runtimes:
            self._import(process, runtime)
        return process

    def _import(self, process: Process, runtime: Runtime) -> Iterable[Outcome]:
        facts = self.wheels[runtime.package]
        outcomes = [
            process.load(self.absolute(path), everywhere=True)
            for path in runtime.everywhere
            if path in facts.elf
        ]
        major = self._major(process, runtime.major_of)
        for preload in facts.preloads:
            for path in self._preload_paths(runtime, preload.folder, preload.pattern, major):
                process.load(path)
                break
        for pattern in runtime.modules:
            for path in facts.elf:
                if fnmatchcase(path, pattern):
                    outcomes.append(process.load(self.absolute(path)))
        return outcomes

    def _preload_paths(self, runtime: Runtime, folder: str, pattern: str, major: str) -> Iterator[str]:
        for template in runtime.folders:
            place = self.absolute(template.format(folder=folder, major=major))
            for path in sorted(self.owner):
                if posixpath.dirname(path) == place and fnmatchcase(posixpath.basename(path), pattern):
                    yield path

    @staticmethod
    def _major(process: Process, prefix: str) -> str:
        for path in process.loaded():
            name = posixpath.basename(path)
            match = re.fullmatch(re.escape(prefix) + r"(\d+).*", name)
            if match:
                return match[1]
        return ""


class _Libraries(Mapping[str, ElfFacts]):
    """Facts of every library by absolute path, decoded only when the loader opens it."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._system = environment, environment.system.libraries

    def __getitem__(self, path: str) -> ElfFacts:
        if path in self._system:
            return self._system[path]
        environment = self._environment
        facts = environment.wheels[environment.owner[path]]
        relative = posixpath.relpath(path, environment.site)
        return facts.elf[relative]

    def __contains__(self, path: object) -> bool:
        return path in self._system or path in self._environment.owner

    def __iter__(self) -> Iterator[str]:
        yield from self._system
        yield from self._environment.owner

    def __len__(self) -> int:
        return len(self._system) + len(self._environment.owner)
