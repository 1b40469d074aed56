"""Which C library the wheels need, by the symbol versions in them, not by their tags."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.values import Release

_GLIBC = re.compile(r"GLIBC_(\d+\.\d+(?:\.\d+)?)")
_TAG = re.compile(r"manylinux_(\d+)_(\d+)_|manylinux(1|2010|2014)_")
_LEGACY = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}

FLOOR = Code(
    code="abi.glibc-too-old",
    severity="error",
    meaning="libraries of a wheel need a newer C library than the target has",
    consequence="they fail to load: `version GLIBC_2.x not found`",
    remedy="a newer base, or a wheel that was built on an older one",
)
TAG = Code(
    code="version.tag-promises-too-much",
    severity="note",
    meaning="a wheel's tag promises an older C library than its libraries really need",
    consequence="on a system as old as the tag says, it installs and does not load",
    remedy="nothing here: the target has what is needed; do not trust the tag elsewhere",
)


def run(subject: Subject) -> Iterator[Finding]:
    """For each wheel the newest GLIBC version that one of its libraries needs."""
    target = subject.target.glibc
    for name, facts in sorted(subject.facts.items()):
        newest: tuple[Release, str] | None = None
        for path, elf in facts.elf.items():
            for need in elf.version_needs:
                for version in need.versions:
                    if (match := _GLIBC.fullmatch(version)) and (
                        newest is None or newest[0] < Release(match[1])
                    ):
                        newest = Release(match[1]), path
        if newest is None:
            continue
        needed, path = newest
        promised = _promised(subject.lock.by_name[name].filename)
        evidence = (f"{path} needs GLIBC_{needed}",)
        if target < needed:
            yield Finding(
                code=FLOOR.code,
                severity=FLOOR.severity,
                what=f"{name} needs glibc {needed}, the target has {target}",
                evidence=evidence,
                fix=FLOOR.remedy,
                package=name,
                path=path,
            )
        elif promised and promised < needed.parts:
            yield Finding(
                code=TAG.code,
                severity=TAG.severity,
                what=f"{name} is tagged for glibc {promised[0]}.{promised[1]} and needs {needed}",
                evidence=evidence,
                fix=TAG.remedy,
                package=name,
                path=path,
            )


def _promised(filename: str) -> tuple[int, ...] | None:
    """The oldest C library that the tags of a file name promise."""
    found = []
    for match in _TAG.finditer(filename):
        found.append((int(match[1]), int(match[2])) if match[1] else _LEGACY[match[3]])
    return min(found, default=None)


CHECK = Check(run=run, codes=(FLOOR, TAG))
