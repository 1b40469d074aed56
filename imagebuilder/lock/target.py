"""What a stack's target means to wheels: glibc, compatibility tags, marker environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from packaging import tags
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag

from imagebuilder.errors import Problem, StackInvalid
from imagebuilder.stack.grammar import nearest
from imagebuilder.stack.model import DebianBase, ImageBase, Stack
from imagebuilder.values import Platform, Release

_DEBIAN = ("bullseye", "bookworm", "trixie")
# glibc by the distribution that a base image names in its tag, or that a Debian base is.
# Source: each distribution's own libc6/glibc package.
_GLIBC = {
    "bullseye": "2.31",
    "bookworm": "2.36",
    "trixie": "2.41",
    "focal": "2.31",
    "jammy": "2.35",
    "noble": "2.39",
    "ubuntu20.04": "2.31",
    "ubuntu22.04": "2.35",
    "ubuntu24.04": "2.39",
    "ubi8": "2.28",
    "ubi9": "2.34",
    "rockylinux8": "2.28",
    "rockylinux9": "2.34",
}

# Which manylinux names an old glibc also has, and where numbering begins (PEP 600; glibc 2.17 on aarch64).
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST = {"x86_64": 5, "aarch64": 17}

# The targets that uv knows (`uv help pip compile`, 0.11 to 0.13); it takes no other number.
_UV_MANYLINUX = (17, 28, *range(31, 41))


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """Interpreter and platform that wheels are chosen for: CPython `python` on Linux with `glibc`."""

    python: Release
    platform: Platform
    glibc: Release

    @property
    def uv_platform(self) -> str:
        """The `--python-platform` for uv: the newest that it knows and the target has."""
        minor = self.glibc.parts[1]
        known = [n for n in _UV_MANYLINUX if n <= minor]
        return f"{self.platform.machine}-manylinux_2_{max(known, default=_UV_MANYLINUX[0])}"

    @cached_property
    def tag_ranks(self) -> dict[Tag, int]:
        """Every tag that installs here, with its rank: 0 is the most specific, as pip orders them."""
        ranks: dict[Tag, int] = {}
        for tag in self._tags():
            ranks.setdefault(tag, len(ranks))
        return ranks

    def _tags(self) -> Iterator[Tag]:
        version = self.python.parts[:2]
        interpreter = f"cp{version[0]}{version[1]}"
        platforms = list(manylinux_platforms(self.platform.machine, self.glibc.parts[1]))
        yield from tags.cpython_tags(python_version=version, abis=[interpreter], platforms=platforms)
        yield from tags.compatible_tags(python_version=version, interpreter=interpreter, platforms=platforms)

    @cached_property
    def markers(self) -> dict[str, str]:
        """The marker environment (PEP 508). Kernel and its build are not known: empty."""
        parts = self.python.parts
        full = self.python.text if len(parts) > 2 else f"{self.python.text}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.platform.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": f"{parts[0]}.{parts[1]}",
            "sys_platform": "linux",
        }

    def needs(self, requirement: Requirement, extras: frozenset[str] = frozenset()) -> bool:
        """Whether a Requires-Dist counts here, with these extras of its own package in use."""
        return requirement.marker is None or self.holds(requirement.marker, extras)

    def holds(self, marker: Marker, extras: frozenset[str] = frozenset()) -> bool:
        """Whether a marker holds for no extra or for one of these."""
        return any(marker.evaluate({**self.markers, "extra": extra}) for extra in ("", *sorted(extras)))


def manylinux_platforms(machine: str, glibc_minor: int) -> Iterator[str]:
    """Platform tags in pip's order: `linux_MACHINE`, then from the newest that this glibc (2.MINOR) runs."""
    yield f"linux_{machine}"
    for minor in range(glibc_minor, _OLDEST[machine] - 1, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{machine}"


def target_facts(stack: Stack) -> TargetFacts:
    """The stack's target, its glibc taken from the base where the stack does not say it.

    Raises StackInvalid where neither says it.
    """
    glibc = stack.target.glibc or _glibc_of_base(stack)
    if glibc is None and isinstance(stack.base, DebianBase):
        problem = Problem(
            key="base.debian.suite",
            message=f"{stack.base.suite!r} is not a suite of Debian that is known here",
            hint=nearest(stack.base.suite, _DEBIAN)
            + '; for another one, run `ldd --version` there and write under [target]: glibc = "2.41"',
        )
        raise StackInvalid(str(stack.path or stack.name), [problem])
    if glibc is None or len(glibc.parts) < 2 or glibc.parts[0] != 2:
        key = "target.glibc"
        message = (
            "this base does not say which glibc it has"
            if glibc is None
            else f"{glibc} is not a glibc release such as 2.36"
        )
        hint = f'run `ldd --version` in the base, then write under [target]: glibc = "{glibc or "2.39"}"'
        raise StackInvalid(str(stack.path or stack.name), [Problem(key=key, message=message, hint=hint)])
    return TargetFacts(python=stack.target.python, platform=stack.target.platform, glibc=glibc)


def _glibc_of_base(stack: Stack) -> Release | None:
    if isinstance(stack.base, DebianBase):
        text = _GLIBC.get(stack.base.suite)
        return Release(text) if text else None
    if isinstance(stack.base, ImageBase):
        ref = stack.base.ref
        words = re.split(r"[-_/]", f"{ref.repository}-{ref.tag or ''}")
        for word in [*words, f"{ref.repository.rpartition('/')[2]}{(ref.tag or '').split('-')[0]}"]:
            if word in _GLIBC:
                return Release(_GLIBC[word])
    return None
