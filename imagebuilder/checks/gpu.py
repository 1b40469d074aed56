"""Is there code for the target's GPUs, in every library that has any?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from imagebuilder.checks.arguments import keys_with
from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.facts.gpu import GpuCode, coverage
from imagebuilder.facts.record import FileFact
from imagebuilder.values import GpuArch

NO_CODE = Code(
    code="gpu.no-code",
    severity="error",
    meaning="no library of a package has code for a GPU of the target, neither machine code nor PTX",
    consequence="its kernels fail with `no kernel image is available for execution on the device`",
    remedy="a build that lists the architecture; `imagebuilder recon PACKAGE` shows which there are",
)
LIBRARY = Code(
    code="gpu.library-without-code",
    severity="warning",
    meaning="one library of a package has no code for a GPU of the target, while others of it do",
    consequence="what this library serves is not available on that GPU",
    remedy="do not choose what it serves",
    tables=("gpu_features",),
)
ARGUMENT = Code(
    code="acceptance.backend-without-code",
    severity="error",
    meaning="a server argument chooses what a library serves that has no code for the target's GPU",
    consequence="the server fails at its first request",
    remedy="another backend",
    tables=("gpu_features",),
)
PARTIAL = Code(
    code="gpu.partial-code",
    severity="note",
    meaning="a library has code for the target's GPU in some of its fat binaries only",
    consequence="the kernels of the others are not available there (often they serve other GPUs on purpose)",
    remedy="nothing, unless such a kernel is chosen",
)
PTX = Code(
    code="gpu.ptx-only",
    severity="warning",
    meaning="a library serves the target's GPU by PTX only",
    consequence="the driver compiles it at the first start (slow), and must know that PTX version",
    remedy="a build with machine code for the architecture, or a cache for compiled code",
)


def run(subject: Subject) -> Iterator[Finding]:
    """For each GPU of the target and each package with GPU code."""
    for gpu in subject.stack.target.gpus:
        for name, facts in sorted(subject.facts.items()):
            first: dict[FileFact, str] = {}  # of equal files, the first
            for path in facts.gpu:
                if path in facts.elf:
                    first.setdefault(facts.files[path], path)
            libraries = {path: facts.gpu[path] for path in first.values()}
            if libraries:
                yield from _package(subject, name, libraries, gpu)


def _package(subject: Subject, name: str, libraries: dict[str, GpuCode], gpu: GpuArch) -> Iterator[Finding]:
    without = {p: c for p, c in libraries.items() if coverage(c.entries, gpu) is None}
    if len(without) == len(libraries) and not any(_feature(subject, p) for p in without):
        entries = sorted({str(e) for c in libraries.values() for e in c.entries})
        yield Finding(
            code=NO_CODE.code,
            severity=NO_CODE.severity,
            what=f"{name} {subject.version_of.get(name, '')} has no code for {gpu}",
            evidence=(f"it has: {' '.join(entries)}", f"{len(libraries)} libraries with GPU code"),
            fix=NO_CODE.remedy,
            package=name,
        )
        return
    for path, code in sorted(libraries.items()):
        if path in without:
            yield from _library(subject, name, path, code, gpu)
            continue
        served = [coverage(group.entries, gpu) for group in code.groups for _ in range(group.count)]
        lost, by_ptx = served.count(None), served.count("ptx")
        if by_ptx and by_ptx + lost == len(served):
            yield Finding(
                code=PTX.code,
                severity=PTX.severity,
                what=f"{path} serves {gpu} by PTX only",
                evidence=(f"it has: {' '.join(map(str, code.entries))}",),
                fix=PTX.remedy,
                package=name,
                path=path,
            )
        elif lost:
            yield Finding(
                code=PARTIAL.code,
                severity=PARTIAL.severity,
                what=f"{lost} of {len(served)} fat binaries of {path} have no code for {gpu}",
                evidence=tuple(
                    f"{group.count} × {' '.join(map(str, group.entries))}"
                    for group in code.groups
                    if coverage(group.entries, gpu) is None
                )[:6],
                fix=PARTIAL.remedy,
                package=name,
                path=path,
            )


def _library(subject: Subject, name: str, path: str, code: GpuCode, gpu: GpuArch) -> Iterator[Finding]:
    evidence = (f"it has: {' '.join(map(str, code.entries))}",)
    feature = _feature(subject, path)
    yield Finding(
        code=LIBRARY.code,
        severity=LIBRARY.severity,
        what=f"{path} has no code for {gpu}"
        + (f": {feature['feature']} is not available" if feature else ""),
        evidence=evidence,
        fix=f"do not choose {feature['avoid']}" if feature else LIBRARY.remedy,
        package=name,
        path=path,
    )
    for chosen in feature["arguments"] if feature else ():
        keys = keys_with(subject.stack, chosen)
        if keys:
            yield Finding(
                code=ARGUMENT.code,
                severity=ARGUMENT.severity,
                what=f"{chosen.replace('=', ' ')} is asked for, but {path} has no code for {gpu}",
                evidence=(*evidence, *(f"{key} has it" for key in keys)),
                fix=f"another backend than that, in {', '.join(keys)}",
                package=name,
                path=path,
                key=keys[0],
            )


def _feature(subject: Subject, path: str) -> Mapping[str, Any] | None:
    return next((f for f in subject.tables.gpus.get("feature", ()) if fnmatchcase(path, f["library"])), None)


CHECK = Check(run=run, codes=(NO_CODE, LIBRARY, ARGUMENT, PARTIAL, PTX))
