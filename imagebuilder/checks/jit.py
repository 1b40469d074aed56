"""What is compiled at run time: do compiler and headers fit each other, and is the rest precompiled?"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from imagebuilder.checks.cuda import main_major
from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.checks.toolchain import cuda_home, home_key
from imagebuilder.values import Release

SKEW = Code(
    code="toolchain.header-skew",
    severity="error",
    meaning="nvcc and what it compiles with (headers, its back end) are of different releases",
    consequence="every compilation stops: `CUDA compiler and CUDA toolkit headers are incompatible`",
    remedy="lock one CUDA release of all of them, with overrides where pins are in the way",
    tables=("toolchain",),
)
MAJOR = Code(
    code="toolchain.nvcc-of-another-major",
    severity="error",
    meaning="the nvcc that packages compile with at run time is of another CUDA major than the set",
    consequence="torch refuses to compile extensions with it, and what it compiles needs another runtime",
    remedy="CUDA_HOME and PATH of a toolkit of the set's major, in a wheel or in the base",
    tables=("toolchain",),
)
PRECOMPILED = Code(
    code="gpu.not-precompiled",
    severity="warning",
    meaning="kernels for a GPU of the target are neither in the package nor in a companion of it",
    consequence="they are downloaded or compiled at the first request: without network or nvcc, it fails",
    remedy="add the companion in the same release",
    tables=("toolchain",),
)


def run(subject: Subject) -> Iterator[Finding]:
    """By the compiler that packages find, and by rows of the table."""
    yield from _skew(subject)
    for row in subject.tables.toolchain.get("precompiled", ()):
        majors = [g for g in subject.stack.target.gpus if g.capability[0] in row["capability-majors"]]
        there = [name for name in row["any-of"] if name in subject.version_of]
        if majors and not there and row["package"] in subject.version_of:
            version = subject.version_of[row["package"]]
            yield Finding(
                code=PRECOMPILED.code,
                severity=PRECOMPILED.severity,
                what=f"nothing brings {row['package']}'s kernels for {majors[0]}",
                evidence=(f"not locked: {', '.join(row['any-of'])}", row["source"]),
                fix=f"{row['any-of'][0]}=={version}",
                package=row["package"],
            )


def _skew(subject: Subject) -> Iterator[Finding]:
    home, said = cuda_home(subject)
    tool = subject.tool_at(f"{home}/bin/nvcc") if home else None
    if tool is None:
        return
    release, main = Release(tool.release), main_major(subject)
    where = f"{subject.environment.absolute(tool.path)}: release {tool.release}"
    if main and str(release.parts[0]) != main:
        yield Finding(
            code=MAJOR.code,
            severity=MAJOR.severity,
            what=f"nvcc is of CUDA {release.parts[0]}, the set is for CUDA {main}",
            evidence=(where, said),
            fix=MAJOR.remedy,
            key=home_key(subject),
        )
    owner = next((n for n, f in subject.facts.items() if tool in f.tools), "")
    if not owner:
        return  # the base's own headers lie beside its compiler
    for name in subject.tables.toolchain.get("together", ()):
        facts = subject.facts.get(name)
        beside = facts is not None and any(_below(subject, path, home) for path in facts.files)
        its = subject.version_of.get(name)
        if beside and its and Release(its).parts[:2] != release.parts[:2]:
            yield Finding(
                code=SKEW.code,
                severity=SKEW.severity,
                what=f"{owner} has nvcc {tool.release}, {name} is {its}",
                evidence=(where, f"{name} {its} lies below {home}"),
                fix=f"an [[override]] to {name} {'.'.join(map(str, release.parts[:2]))}.*",
                package=name,
                other=owner,
            )


def _below(subject: Subject, path: str, home: str) -> bool:
    return posixpath.normpath(subject.environment.absolute(path)).startswith(f"{home}/")


CHECK = Check(run=run, codes=(SKEW, MAJOR, PRECOMPILED))
