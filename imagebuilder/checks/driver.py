"""Does the promised host driver carry this CUDA, and is nothing of the driver inside the image?"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from packaging.version import Version

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.facts.gpu import coverage
from imagebuilder.values import Release

FLOOR = Code(
    code="driver.too-old",
    severity="error",
    meaning="the driver that the stack promises is older than the floor of the CUDA major in the set",
    consequence="CUDA does not start: `driver version is insufficient for CUDA runtime version`",
    remedy="a newer driver on the hosts and in `target.driver`, or wheels for an older CUDA",
    tables=("drivers",),
)
TOOLKIT = Code(
    code="driver.older-than-toolkit",
    severity="warning",
    meaning="the promised driver carries this CUDA major, but is older than the release in the set",
    consequence="machine code runs (minor-version compatibility); newer driver features and newer PTX do not",
    remedy="a driver of the release's own floor",
    tables=("drivers",),
)
PTX = Code(
    code="driver.ptx-too-new",
    severity="error",
    meaning="a GPU of the target is served by PTX only, and the driver is older than the toolkit of that PTX",
    consequence="`the provided PTX was compiled with an unsupported toolchain`",
    remedy="a driver of the release's own floor, or a build with machine code",
    tables=("drivers",),
)
UNKNOWN = Code(
    code="driver.release-not-known",
    severity="warning",
    meaning="a CUDA release that the set or its base asks for is not in the table of drivers",
    consequence="whether the promised driver is new enough for it is not known here",
    remedy="look it up in that toolkit's release notes; raise `target.driver` if need be, or waive this",
    tables=("drivers",),
)
SHADOW = Code(
    code="lib.shadows-driver",
    severity="error",
    meaning="a library of the host's GPU driver is inside the image, on the loader's path",
    consequence="it is loaded instead of the host's, and does not fit the host's kernel module",
    remedy="remove it, or take its folder (often `stubs` or `compat`) off the search path",
    tables=("driver",),
)
COMPAT = Code(
    code="driver.compat-only-for-data-centres",
    severity="warning",
    meaning="the base brings forward compatibility (cuda-compat) for a driver newer than the promised one",
    consequence="where the host's driver is older, this library is taken, and CUDA fails with error 803 or "
    "804 on GPUs that are not for data centres",
    remedy="a driver of the release's own floor in `target.driver`, or a base without cuda-compat",
    tables=("drivers",),
)


def run(subject: Subject) -> Iterator[Finding]:
    """By the runtime's version in the lock."""
    yield from _shadows(subject)
    yield from _compat(subject)
    driver, release = subject.stack.target.driver, _runtime(subject)
    if driver is None or release is None:
        return
    package, version = release
    table = subject.tables.drivers
    major, short = (".".join(map(str, Version(version).release[:n])) for n in (1, 2))
    floor, own = table["major"].get(major), _own(table["toolkit"], Release(short))
    evidence = (f"{package} {version} is locked", f"target.driver = {driver}")
    if floor and driver < Release(floor):
        yield _finding(FLOOR, f"CUDA {major} needs a driver {floor} or newer, {driver} is promised", evidence)
    elif own and driver < own:
        yield _finding(
            TOOLKIT,
            f"CUDA {short} came with driver {own} or a newer one, {driver} is promised",
            (*evidence, f"floor {floor}"),
        )
        for gpu in subject.stack.target.gpus:
            for name, facts in sorted(subject.facts.items()):
                for path, code in facts.gpu.items():
                    if coverage(code.entries, gpu) == "ptx":
                        yield _finding(
                            PTX, f"{path} serves {gpu} by PTX only, which driver {driver} may not know",
                            evidence,
                            name, path,
                        )  # fmt: skip
    elif not floor or Release(short) > newest_toolkit(subject):
        yield _unknown(subject, short, evidence, floor)


def _unknown(subject: Subject, short: str, evidence: tuple[str, ...], floor: str | None) -> Finding:
    """A note where the floor of the major is known, since machine code runs from there on."""
    known = f"the newest release in data/drivers.toml is {newest_toolkit(subject)}"
    runs = (f"every release of this major runs machine code from driver {floor} on",) if floor else ()
    driver = subject.stack.target.driver
    what = f"which driver CUDA {short} needs is not known here, so {driver} may be too old for it"
    found = _finding(UNKNOWN, what, (*evidence, known, *runs))
    return replace(found, severity="note") if floor else found


def newest_toolkit(subject: Subject) -> Release:
    """The newest CUDA release whose driver is known."""
    return max(Release(release) for release in subject.tables.drivers["toolkit"])


def _runtime(subject: Subject) -> tuple[str, str] | None:
    """(package, version) of the locked CUDA runtime."""
    for package in subject.tables.drivers.get("runtime-packages", ()):
        if package in subject.version_of:
            return package, subject.version_of[package]
    return None


def _own(table: Mapping[str, str], release: Release) -> Release | None:
    """The driver that this CUDA release came with; for one newer than the table, that of the last in it."""
    earlier = [Release(c) for c in table if Release(c) <= release]
    return max((Release(table[str(c)]) for c in earlier if c.parts[0] == release.parts[0]), default=None)


def _shadows(subject: Subject) -> Iterator[Finding]:
    environment = subject.environment
    for assumed in subject.tables.driver:
        for path, through in _found(subject, assumed.soname).items():
            yield _finding(
                SHADOW, f"{assumed.soname} of the driver is in the image",
                (path, f"found through {through}"),
                environment.owner.get(path, ""), environment.relative(path),
            )  # fmt: skip
    for path in environment.files.ld_library_path:
        if {"stubs", "compat"} & set(path.split("/")):
            yield Finding(
                code=SHADOW.code,
                severity=SHADOW.severity,
                what=f"LD_LIBRARY_PATH leads to {path}, where libraries in the driver's place lie",
                evidence=(f"env.LD_LIBRARY_PATH has {path}",),
                fix=SHADOW.remedy,
                key="env.LD_LIBRARY_PATH",
            )


def _found(subject: Subject, soname: str) -> dict[str, str]:
    """Files with this soname, or its name, where the loader looks → how it gets there."""
    environment = subject.environment
    files = environment.files
    folders = {files.place(f): "LD_LIBRARY_PATH" for f in reversed(files.ld_library_path)}
    folders = {**{files.place(f): f for f in files.default_dirs}, **folders}
    folders = {**{files.place(f): f"the RPATH of {user}" for f, user in _rpaths(subject, soname)}, **folders}
    stem = soname.partition(".so")[0] + ".so"
    inside = [p for p in subject.system.libraries if posixpath.basename(p).startswith(stem)]
    here = [p for p in inside if soname in (posixpath.basename(p), subject.system.libraries[p].soname)]
    found = {
        path: folders[folder]
        for path in (*environment.siblings(soname), *here)
        if (folder := posixpath.dirname(path)) in folders
    }
    cached = files.resolve(files.cache.get(soname, ""))
    return {**found, **({cached: "/etc/ld.so.cache"} if cached and cached not in found else {})}


def _rpaths(subject: Subject, soname: str) -> Iterator[tuple[str, str]]:
    """(folder, library) for every folder in which a library that needs this one looks by itself."""
    for facts in subject.facts.values():
        for path, elf in facts.elf.items():
            origin = posixpath.dirname(subject.environment.absolute(path))
            for folder in (*elf.rpath, *elf.runpath) if soname in elf.needed else ():
                plain = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
                yield posixpath.normpath(plain), path


def _compat(subject: Subject) -> Iterator[Finding]:
    """A newer driver library in a `compat` folder: the container runtime puts it before the host's."""
    driver = subject.stack.target.driver
    for path in subject.system.libraries if driver else ():
        match = re.search(subject.tables.drivers["compat-library"], path)
        if match is None or driver is None or Release(match[1]) <= driver:
            continue
        able = subject.tables.drivers["compat-capabilities"]
        lost = [g for g in subject.stack.target.gpus if ".".join(map(str, g.capability)) not in able]
        if lost:
            yield Finding(
                code=COMPAT.code,
                severity=COMPAT.severity,
                what=f"the base has cuda-compat of driver {match[1]}, {driver} is promised for {lost[0]}",
                evidence=(path, f"capabilities of data-centre GPUs: {', '.join(able)}"),
                fix=COMPAT.remedy,
                key="target.driver",
            )


def _finding(code: Code, what: str, evidence: tuple[str, ...], package: str = "", path: str = "") -> Finding:
    return Finding(
        code=code.code,
        severity=code.severity,
        what=what,
        evidence=evidence,
        fix=code.remedy,
        package=package,
        path=path,
        key="" if package else "target.driver",
    )


CHECK = Check(run=run, codes=(FLOOR, TOOLKIT, PTX, UNKNOWN, SHADOW, COMPAT))
