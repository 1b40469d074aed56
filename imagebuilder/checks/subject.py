"""Everything that checks look at, gathered beforehand; derived views are computed once."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagebuilder.checks.tables import Tables
from imagebuilder.facts.alternates import groups, importable
from imagebuilder.facts.environment import Environment, SystemFacts
from imagebuilder.facts.loader import Process
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.tools import Tool
from imagebuilder.facts.verdict import Verdict, judge
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.lock.target import TargetFacts
from imagebuilder.plan.model import Plan
from imagebuilder.stack.model import Stack

_BAD = {"loads": 0, "unknown": 1}


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Verdicts on libraries of one wheel that are alternatives to each other, the best one first."""

    wheel: str
    verdicts: tuple[Verdict, ...]

    @property
    def best(self) -> Verdict:
        """Of the alternative that fares best."""
        return self.verdicts[0]


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A patch that does not apply: what with its file and hunk, the line seen and the line wanted."""

    what: str
    seen: str
    wanted: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A stack, its lock and plan, and the facts of what the lock names.

    facts: by package; unread: why one is missing there; gone: files that are no longer where they were;
    yanked: the reason why an index withdrew one; misfits: patches that do not apply.
    system: what the loader finds outside site-packages; system_is_assumed: from a table, since the base was
    not read. base_env, base_depth: environment and number of layers of the base image, where they are known.
    base_unseen: why an image base was not read; empty where it was. previous: a lock to compare with.
    """

    stack: Stack
    lock: Lock
    plan: Plan
    target: TargetFacts
    tables: Tables
    facts: Mapping[str, WheelFacts] = field(default_factory=dict)
    system: SystemFacts = field(default_factory=SystemFacts)
    system_is_assumed: bool = True
    unread: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    yanked: Mapping[str, str] = field(default_factory=dict)
    misfits: Mapping[str, Misfit] = field(default_factory=dict)
    base_env: Mapping[str, str] = field(default_factory=dict)
    base_depth: int = 0
    base_unseen: str = ""
    previous: Lock | None = None

    @property
    def site(self) -> str:
        """Where site-packages lies in the image."""
        major, minor = self.target.python.parts[:2]
        return f"/opt/venv/lib/python{major}.{minor}/site-packages"

    @cached_property
    def env(self) -> Mapping[str, str]:
        """The image's environment variables: the base's, where they are known, and the stack's."""
        return {**self.base_env, **dict(self.stack.env)}

    @cached_property
    def version_of(self) -> dict[str, str]:
        """Locked versions by package."""
        return {wheel.name: wheel.version for wheel in self.lock.wheels}

    @cached_property
    def metadata(self) -> Mapping[str, RawMetadata]:
        """METADATA of every wheel that was read."""
        return {name: parse_email(facts.metadata)[0] for name, facts in self.facts.items()}

    @cached_property
    def environment(self) -> Environment:
        """What the loader sees in the image."""
        return Environment(
            self.facts,
            self.system,
            self.tables.driver,
            self.tables.runtimes,
            site=self.site,
            ld_library_path=tuple(p for p in self.env.get("LD_LIBRARY_PATH", "").split(":") if p),
        )

    @cached_property
    def in_base(self) -> dict[str, str]:
        """The folder of every library and link to one outside site-packages, by file name."""
        paths = sorted({*self.system.libraries, *(p for p in self.system.links if ".so" in p)}, reverse=True)
        return {posixpath.basename(path): posixpath.dirname(path) for path in paths}

    def tool_at(self, path: str) -> Tool | None:
        """The compiler that this path leads to, of a wheel or of a base that was read."""
        place = path if path in self.tools else self.system.links.get(path, path)
        return self.tools.get(place)

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The compilers of wheels and of a base that was read, by path in the image."""
        ours = {self.environment.absolute(t.path): t for f in self.facts.values() for t in f.tools}
        return {**self.system.tools, **ours}

    @cached_property
    def loadings(self) -> tuple[Loading, ...]:
        """Every library of every wheel that this Python may load, judged in a process that imported torch."""
        process = self.environment.start()
        return tuple(
            Loading(
                wheel=name,
                verdicts=tuple(sorted((self._judge(process, name, p) for p in group), key=self._badness)),
            )
            for name, facts in sorted(self.facts.items())
            for group in groups(
                [p for p in facts.elf if importable(p, self.target.python.parts)],
                self.tables.alternate_words,
            )
        )

    def _badness(self, verdict: Verdict) -> tuple[int, int, int]:
        """Of those that lack libraries, the best is the one for which the system's packages have them."""
        missing = [m.name for m in verdict.outcome.libraries]
        unknown = sum(name not in self.tables.sonames for name in missing)
        return _BAD.get(verdict.kind, 2), unknown, len(missing)

    def _judge(self, process: Process, name: str, path: str) -> Verdict:
        return judge(
            self.environment,
            process,
            name,
            path,
            layouts=self.tables.layouts,
            version_of=self.version_of,
        )

    def requirements_of(self, package: str, *, of_extras: bool = False) -> Iterator[Requirement]:
        """What a wheel's METADATA asks for, for the lock's target and the extras in use.

        of_extras: instead, what it asks for only under an extra that is called as the package asked for.
        """
        wheel = self.lock.by_name[package]
        for text in self.metadata[package].get("requires_dist", ()):
            try:
                requirement = Requirement(text)
                applies = self._applies(requirement, wheel.extras or ("",))
                if of_extras:
                    applies = not applies and self._applies(
                        requirement, (canonicalize_name(requirement.name),)
                    )
            except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
                continue  # no installer understands it
            if applies:
                yield requirement

    def _applies(self, requirement: Requirement, extras: Iterable[str]) -> bool:
        marker = requirement.marker
        return marker is None or any(marker.evaluate({**self.target.markers, "extra": e}) for e in extras)

    def named_in_stack(self) -> Iterator[tuple[str, Wheel]]:
        """(key of the stack file, locked wheel) for every requirement that the stack itself names."""
        for i, layer in enumerate(self.stack.layers):
            for j, requirement in enumerate(layer.requirements):
                wheel = self.lock.by_name.get(canonicalize_name(requirement.name))
                if wheel is not None:
                    yield f"layer[{i}].requirements[{j}]", wheel
