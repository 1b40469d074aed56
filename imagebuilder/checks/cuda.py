"""One CUDA major in one process, and one build of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.facts.record import Literal

_LOCAL = re.compile(r"cu(\d{2})(\d)")

MAJORS = Code(
    code="cuda.two-majors",
    severity="error",
    meaning="libraries of the set are built for different majors of the CUDA runtime",
    consequence="one of them does not find its runtime, or both are loaded and do not share memory",
    remedy="take every package in a build for one CUDA major",
)
BUILDS = Code(
    code="cuda.two-builds",
    severity="error",
    meaning="packages whose versions name a CUDA release name different ones",
    consequence="the resolver has swapped one of them for another build",
    remedy="bind the packages to one index in the stack, with the local version in the requirement",
)
RUNTIMES = Code(
    code="cuda.two-runtimes",
    severity="error",
    meaning="wheels of the set bring the CUDA runtime in two majors",
    consequence="packages of one process use different runtimes, which do not share memory and streams",
    remedy="releases that all want one CUDA major; evidence says who wants which",
)
LITERAL = Code(
    code="lib.hard-coded-major",
    severity="warning",
    meaning="Python code of a package loads a library by a name with another CUDA major than the set's",
    consequence="it is not found, or an unrelated one is, and what follows behaves as without CUDA",
    remedy="a build of the package for the set's CUDA major",
)


def run(subject: Subject) -> Iterator[Finding]:
    """By what libraries need, what versions say, and what Python code names."""
    wanted = _wanted(subject)
    main = main_major(subject)
    others = {major: by for major, by in wanted.items() if major != main}
    for major, by in sorted(others.items()) if main else ():
        for package in sorted(by):
            yield Finding(
                code=MAJORS.code,
                severity=MAJORS.severity,
                what=f"{package} is built for CUDA {major}, the set is for CUDA {main}",
                evidence=tuple(f"{path} needs {_runtime(subject, major)}" for path in by[package][:4]),
                fix=_other_build(subject, package, major, main),
                package=package,
                path=by[package][0],
            )
    yield from _runtimes(subject)
    yield from _builds(subject, main)
    yield from _literals(subject, main)


def _runtime(subject: Subject, major: str = "") -> str:
    """The name of the CUDA runtime's library."""
    return f"{subject.tables.toolchain['runtime']['library']}{major}"


def _major(subject: Subject, name: str) -> str:
    """The CUDA major, where this is the name of the runtime's library; else empty."""
    stem = _runtime(subject)
    major = name.removeprefix(stem)
    return major if name.startswith(stem) and major.isdigit() else ""


def _wanted(subject: Subject) -> dict[str, dict[str, list[str]]]:
    """CUDA major → package → libraries that need its runtime, where no alternative of them needs another."""
    found: dict[str, dict[str, list[str]]] = {}
    for loading in subject.loadings:
        elves = subject.facts[loading.wheel].elf
        named = [
            (v.path, {_major(subject, n) for n in elves[v.path].needed} - {""}) for v in loading.verdicts
        ]
        majors = {major: path for path, theirs in named for major in theirs}
        if len(majors) == 1 and all(theirs for _, theirs in named):
            ((major, path),) = majors.items()
            found.setdefault(major, {}).setdefault(loading.wheel, []).append(path)
    return found


def main_major(subject: Subject) -> str:
    """The set's CUDA major: of the runtime that packages with a `runtimes` row need, else the only one."""
    for runtime in subject.tables.runtimes:
        facts = subject.facts.get(runtime.package)
        for elf in facts.elf.values() if facts else ():
            for name in elf.needed:
                if major := _major(subject, name):
                    return major
    here = {_major(subject, name) for name in subject.environment.by_file_name} - {""}
    return here.pop() if len(here) == 1 else ""


def _runtimes(subject: Subject) -> Iterator[Finding]:
    """By who brings a runtime, and who requires that; nothing needs to name it as needed."""
    owners: dict[str, set[str]] = {}
    for name, places in subject.environment.by_file_name.items():
        if major := _major(subject, name):
            owners.setdefault(major, set()).update(subject.environment.owner[p] for p in places)
    if len(owners) < 2:
        return
    evidence = []
    for major, names in sorted(owners.items()):
        for name in sorted(names):
            by = sorted(w.name for w in subject.lock.wheels if name in w.requires)
            evidence.append(
                f"CUDA {major}: {name} {subject.version_of[name]}, required by {', '.join(by) or '–'}"
            )
    first, *others = (min(names) for _, names in sorted(owners.items()))
    yield Finding(
        code=RUNTIMES.code,
        severity=RUNTIMES.severity,
        what=f"the set brings the CUDA runtime in {' and '.join(sorted(owners))}",
        evidence=tuple(evidence),
        fix=RUNTIMES.remedy,
        package=others[-1],
        other=first,
    )


def _other_build(subject: Subject, package: str, its: str, main: str) -> str:
    local = _LOCAL.match(Version(subject.version_of[package]).local or "")
    if local and local[1] == its:  # its version says it, so it was chosen on purpose
        swapped = " ".join(r.package for r in subject.tables.runtimes if r.package in subject.facts)
        return f"builds of the others for CUDA {its}: imagebuilder recon {swapped}"
    return f"a build of {package} for CUDA {main}: imagebuilder recon {package}"


def _builds(subject: Subject, main: str) -> Iterator[Finding]:
    builds: dict[str, list[str]] = {}
    for wheel in subject.lock.wheels:
        local = Version(wheel.version).local or ""
        if match := _LOCAL.match(local):
            builds.setdefault(f"{match[1]}.{match[2]}", []).append(f"{wheel.name} {wheel.version}")
    if len(builds) > 1:
        yield Finding(
            code=BUILDS.code,
            severity=BUILDS.severity,
            what=f"the set mixes builds for CUDA {' and '.join(sorted(builds))}",
            evidence=tuple(
                f"CUDA {release}: {', '.join(names)}" for release, names in sorted(builds.items())
            ),
            fix=BUILDS.remedy,
            package=sorted(builds.items(), key=lambda item: len(item[1]))[0][1][0].split()[0],
        )
    elif builds and main:
        yield from _swapped(subject, main, *builds.items())


def _swapped(subject: Subject, main: str, build: tuple[str, list[str]]) -> Iterator[Finding]:
    """A runtime whose version names no CUDA release, and that is not built for the one that others name."""
    release, names = build
    tag = f"cu{release.replace('.', '')}"
    for runtime in subject.tables.runtimes if release.partition(".")[0] != main else ():
        wheel = subject.lock.by_name.get(runtime.package)
        if wheel is not None and not Version(wheel.version).local:
            yield Finding(
                code=BUILDS.code,
                severity=BUILDS.severity,
                what=f"{wheel.name} {wheel.version} is built for CUDA {main}, others are for {release}",
                evidence=(
                    f"{wheel.filename} is from index {wheel.index}",
                    f"CUDA {release}: {', '.join(names)}",
                ),
                fix=f"{wheel.name}=={Version(wheel.version).public}+{tag}, bound to an index that has it: "
                f"imagebuilder recon {wheel.name} --stack {subject.stack.name}",
                package=wheel.name,
            )


def _literals(subject: Subject, main: str) -> Iterator[Finding]:
    for name, facts in sorted(subject.facts.items()) if main else ():
        right = _runtime(subject, main)
        by_file: dict[str, list[Literal]] = {}
        for literal in facts.literals:
            if _major(subject, literal.text) and literal.text not in subject.environment.by_file_name:
                by_file.setdefault(literal.path, []).append(literal)
        for path, found in by_file.items():
            if all(x.text != right for x in facts.literals):
                yield Finding(
                    code=LITERAL.code,
                    severity=LITERAL.severity,
                    what=f"{path} names {found[0].text}, the set is for CUDA {main}",
                    evidence=tuple(f"{path}:{x.line}: {x.text}" for x in found),
                    fix=LITERAL.remedy,
                    package=name,
                    path=path,
                )


CHECK = Check(run=run, codes=(MAJORS, RUNTIMES, BUILDS, LITERAL))
