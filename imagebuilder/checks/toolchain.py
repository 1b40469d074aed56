"""Compilers that run inside the image: do they know the target's GPUs, and do the lists they read parse?"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.facts.tools import Tool
from imagebuilder.stack.model import ImageBase
from imagebuilder.values import GpuArch, Release

PTXAS = Code(
    code="toolchain.ptxas-too-old",
    severity="error",
    meaning="the ptxas that a package uses at run time does not know a GPU of the target",
    consequence="compiling a kernel fails: `ptxas fatal: Value 'sm_…' is not defined for option 'gpu-name'`",
    remedy="point the package to a newer ptxas in the image, by its variable",
    tables=("toolchain",),
)
ABSENT = Code(
    code="toolchain.not-in-image",
    severity="error",
    meaning="a variable leads to a compiler that is in no wheel and, as far as is known, not in the base",
    consequence="compiling at run time fails: the file is not there",
    remedy="a wheel or a base that has it, or another path",
    tables=("toolchain",),
)
NVCC = Code(
    code="toolchain.nvcc-too-old",
    severity="error",
    meaning="a package compiles for a GPU of the target with an nvcc that is too old for it",
    consequence="its kernels are not compiled: `No supported CUDA architectures found`",
    remedy="a newer nvcc, found first through CUDA_HOME and PATH",
    tables=("toolchain",),
)
NO_NVCC = Code(
    code="toolchain.no-nvcc",
    severity="warning",
    meaning="a package compiles kernels at run time, and no nvcc is in the image",
    consequence="what is not precompiled for the target's GPU is not available",
    remedy="a devel base, or wheels that bring nvcc, and CUDA_HOME or PATH that leads to it",
    tables=("toolchain",),
)
TOKEN = Code(
    code="toolchain.arch-list",
    severity="error",
    meaning="a list of architectures in a variable has a token that its reader does not understand",
    consequence="every build at run time stops with an error",
    remedy="correct the token",
    tables=("toolchain",),
)


def run(subject: Subject) -> Iterator[Finding]:
    """Variables, tools in wheels, and what is known of the base."""
    yield from _lists(subject)
    for row in subject.tables.toolchain.get("bundled", ()):
        if row["package"] in subject.facts:
            yield from _bundled(subject, row)
    for row in subject.tables.toolchain.get("nvcc", ()):
        if row["package"] in subject.version_of:
            yield from _nvcc(subject, row)


def cuda_home(subject: Subject) -> tuple[str, str]:
    """The folder of the toolkit that packages compile with (empty: none), and what leads there."""
    row = subject.tables.toolchain["home"]
    for variable in row["variables"]:
        if subject.env.get(variable):
            return subject.env[variable].rstrip("/"), f"{variable} = {subject.env[variable]}"
    named = ", ".join(f"{variable} is not set" for variable in row["variables"])
    for folder in (p.rstrip("/") for p in subject.env.get("PATH", "").split(":")):
        if folder and _release_at(subject, f"{folder}/nvcc"):
            return posixpath.dirname(folder), f"the first nvcc on PATH is in {folder}; {named}"
    if _release_at(subject, f"{row['default']}/bin/nvcc"):
        return row["default"], f"it lies where it is looked for by default; {named}"
    return "", f"{named}, and none is on PATH or in {row['default']}"


def home_key(subject: Subject) -> str:
    """The key of the stack file by which the toolkit is chosen: the variable that is set, else the first."""
    variables = subject.tables.toolchain["home"]["variables"]
    return f"env.{next((v for v in variables if subject.env.get(v)), variables[0])}"


def _release_at(subject: Subject, path: str) -> str | None:
    """CUDA release of the compiler at this path."""
    tool = subject.tool_at(path)
    return tool.release if tool else _base_release(subject, path)


def _bundled(subject: Subject, row: Mapping[str, Any]) -> Iterator[Finding]:
    path, variable = subject.env.get(row["variable"]), row["variable"]
    own = [
        t for t in subject.facts[row["package"]].tools if t.path.rsplit("/", 1)[-1].startswith(row["tool"])
    ]
    tool = subject.tool_at(path) if path else None
    if tool:
        used, where = [tool], f"{variable} = {path}"
    elif path:
        release = _base_release(subject, path)
        if release is None:
            tools = sorted(_absolute(subject, t.path) for f in subject.facts.values() for t in f.tools)
            yield Finding(
                code=ABSENT.code,
                severity=ABSENT.severity,
                what=f"{variable} leads to {path}, which nothing brings",
                evidence=(f"compilers in wheels: {', '.join(tools[:3]) or 'none'}",),
                fix=ABSENT.remedy,
                key=f"env.{variable}",
            )
            return
        used, where = (
            [Tool(path=path, release=release, names=_names(subject, release))],
            f"base: CUDA {release}",
        )
    else:
        used, where = own, f"in the wheel of {row['package']}"
    for gpu in subject.stack.target.gpus if used else ():
        if not any(_knows(subject, tool.release, tool.names, gpu) for tool in used):
            yield Finding(
                code=PTXAS.code,
                severity=PTXAS.severity,
                what=f"the {row['tool']} that {row['package']} uses does not know {gpu}",
                evidence=(where, *(f"{t.path}: release {t.release}" for t in used)),
                fix=_better(subject, row["tool"], variable, gpu),
                package=row["package"],
                path=used[0].path if used[0] in own else "",
                key=f"env.{variable}",
            )


def _better(subject: Subject, tool: str, variable: str, gpu: GpuArch) -> str:
    """The advice: the newest of the image's compilers that knows this GPU."""
    knowing = {
        path: there.release
        for path, there in subject.tools.items()
        if posixpath.basename(path) == tool and _knows(subject, there.release, there.names, gpu)
    }
    for row in subject.tables.toolchain.get("base", ()):
        path = f"{row['folder']}/{tool}"
        release = _base_release(subject, path)
        if release and _knows(subject, release, _names(subject, release), gpu):
            knowing.setdefault(path, release)
    if not knowing:
        return f"no {tool} in the image knows {gpu}: bring one, and set {variable} to it"
    best = max(knowing, key=lambda path: (Release(knowing[path]), path))
    return f"{variable} = {best!r}, which is of release {knowing[best]} and knows {gpu}"


def _nvcc(subject: Subject, row: Mapping[str, Any]) -> Iterator[Finding]:
    if not any(g.capability[0] == row["capability-major"] for g in subject.stack.target.gpus):
        return
    home, said = cuda_home(subject)
    release = _release_at(subject, f"{home}/bin/nvcc") if home else None
    if release is None:
        yield Finding(
            code=NO_NVCC.code,
            severity=NO_NVCC.severity,
            what=f"{row['package']} compiles at run time, and there is no nvcc for it",
            evidence=(said, row["source"]),
            fix=NO_NVCC.remedy,
            package=row["package"],
        )
    elif Release(release) < Release(row["release"]):
        yield Finding(
            code=NVCC.code,
            severity=NVCC.severity,
            what=f"{row['package']} needs nvcc {row['release']} or newer here, it finds {release}",
            evidence=(said, row["source"]),
            fix=NVCC.remedy,
            package=row["package"],
            key=home_key(subject),
        )


def _lists(subject: Subject) -> Iterator[Finding]:
    for row in subject.tables.toolchain.get("list", ()):
        text = subject.env.get(row["variable"])
        if text is None:
            continue
        wrong = [
            t for t in re.split(row["separator"], text.strip()) if t and not re.fullmatch(row["token"], t)
        ]
        if wrong:
            yield Finding(
                code=TOKEN.code,
                severity=TOKEN.severity,
                what=f"{row['variable']} has {', '.join(wrong)}, which its reader does not understand",
                evidence=(f"{row['variable']} = {text}", row["source"]),
                fix=TOKEN.remedy,
                key=f"env.{row['variable']}",
            )


def _base_release(subject: Subject, path: str) -> str | None:
    """CUDA release of a compiler at this path in a base image that was not read, by the image's name."""
    base = subject.stack.base
    if isinstance(base, ImageBase) and subject.system_is_assumed:
        for row in subject.tables.toolchain.get("base", ()):
            match = re.search(row["pattern"], str(base.ref))
            if match and path.startswith(row["folder"] + "/"):
                return match[1]
    return None


def _knows(subject: Subject, release: str, names: Iterable[str], gpu: GpuArch) -> bool:
    """Whether a compiler of this release, which has these names, still compiles for the GPU."""
    table: Mapping[str, list[str]] = subject.tables.toolchain.get("gone", {})
    gone = {n for first, dropped in table.items() if Release(first) <= Release(release) for n in dropped}
    return any(name in names and name not in gone for name in _spellings(gpu))


def _names(subject: Subject, release: str) -> tuple[str, ...]:
    """Names that a ptxas of this release knows, of those that the table has; older ones are known to all.

    Of a GPU newer than all in the table, only a release that is newer than all may know the name.
    """
    table: Mapping[str, list[str]] = subject.tables.toolchain.get("first", {})
    new = {name for names in table.values() for name in names}
    known = [n for first, names in table.items() if Release(first) <= Release(release) for n in names]
    newest = max((GpuArch.parse(name).number for name in new), default=0)
    beyond = all(Release(first) < Release(release) for first in table)
    old = [str(g) for g in subject.stack.target.gpus if str(g) not in new and (g.number < newest or beyond)]
    return (*known, *old)


def _spellings(gpu: GpuArch) -> tuple[str, ...]:
    """How a compiler may be asked for this GPU."""
    return f"sm_{gpu.number}", f"sm_{gpu.number}a", f"sm_{gpu.number}f"


def _absolute(subject: Subject, path: str) -> str:
    return subject.environment.absolute(path)


CHECK = Check(run=run, codes=(PTXAS, ABSENT, NVCC, NO_NVCC, TOKEN))
