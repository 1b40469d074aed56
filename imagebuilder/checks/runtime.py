"""What the container runtime asks of the host before it starts the image, against the promised driver.

`NVIDIA_REQUIRE_*` holds alternatives separated by spaces, each of conditions joined by commas. Source: NVIDIA
Container Toolkit, "Docker specialized configurations: constraints, driver capabilities".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from imagebuilder.checks.driver import UNKNOWN, newest_toolkit
from imagebuilder.checks.model import Check, Code, Finding, some
from imagebuilder.checks.subject import Subject
from imagebuilder.values import Release

_CONDITION = re.compile(r"(cuda|driver)\s*(>=|<=|!=|=|<|>)\s*(\d+(?:\.\d+)*)")
_HOST = re.compile(r"(?:brand|arch)\s*(?:>=|<=|!=|=|<|>)\s*[\w.]+")
Answer = Literal["yes", "no", "unknown", "host"]
_COMPARE: dict[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, "<": operator.lt,
    ">": operator.gt,
}  # fmt: skip

REFUSED = Code(
    code="driver.image-refuses",
    severity="error",
    meaning="the image's environment asks for a newer driver or CUDA than the promised driver has",
    consequence="the container runtime refuses to start it: `unsatisfied condition: cuda>=…`",
    remedy="a newer driver on the hosts and in `target.driver`, or an older base",
    tables=("drivers",),
)
CAPABILITIES = Code(
    code="driver.capability-absent",
    severity="error",
    meaning="NVIDIA_DRIVER_CAPABILITIES leaves out `compute`, which CUDA needs",
    consequence="the runtime does not mount libcuda.so.1, and torch sees no GPU",
    remedy='NVIDIA_DRIVER_CAPABILITIES = "compute,utility"',
)


def run(subject: Subject) -> Iterator[Finding]:
    """By the environment of the base, where it is known, and of the stack."""
    if not subject.stack.target.gpus:
        return
    driver = subject.stack.target.driver
    ignored = subject.env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true")
    for name, text in sorted({} if ignored else subject.env.items()):
        if name.startswith("NVIDIA_REQUIRE_") and driver is not None and text.strip():
            yield from _required(subject, driver, name, text)
    capabilities = subject.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if capabilities and not {"compute", "all"} & {c.strip() for c in capabilities.split(",")}:
        yield Finding(
            code=CAPABILITIES.code,
            severity=CAPABILITIES.severity,
            what=f"NVIDIA_DRIVER_CAPABILITIES is {capabilities}, without compute",
            fix=CAPABILITIES.remedy,
            key="env.NVIDIA_DRIVER_CAPABILITIES",
        )


def _required(subject: Subject, driver: Release, name: str, text: str) -> Iterator[Finding]:
    """Nothing where one alternative is sure to hold; else what is known of the best of them."""
    alternatives = [part.split(",") for part in text.split()]
    held = [{_holds(subject, driver, c) for c in part} for part in alternatives]
    asked, cuda = alternatives[0][0], _cuda(subject, driver)
    evidence = (f"{name}={text[:200]}", f"this driver came with CUDA {cuda or '–'}")
    key = f"env.{name}" if name in dict(subject.stack.env) else "base"
    if {"yes"} in held:
        return
    if any(answers <= {"yes", "unknown"} for answers in held):
        known = f"the newest release in data/drivers.toml is {newest_toolkit(subject)}"
        what = f"{name} asks for {asked}; whether driver {driver} has it is not known here"
        yield _finding(UNKNOWN, what, (evidence[0], known), key)
        return
    found = _finding(REFUSED, f"{name} asks for {asked}, driver {driver} is promised", evidence, key)
    hosts = [p[0] for p, answers in zip(alternatives, held, strict=True) if answers <= {"yes", "host"}]
    if hosts:
        what = f"{name} asks for {asked}; driver {driver} is enough only on hosts of {some(hosts)}"
        found = replace(found, severity="warning", what=what)
    yield found


def _finding(code: Code, what: str, evidence: tuple[str, ...], key: str) -> Finding:
    return Finding(
        code=code.code, severity=code.severity, what=what, evidence=evidence, fix=code.remedy, key=key
    )


def _holds(subject: Subject, driver: Release, condition: str) -> Answer:
    """Is it promised? `host`: it is about the brand or architecture of a GPU, which nobody here knows."""
    match = _CONDITION.fullmatch(condition.strip())
    if match is None:
        return "host" if _HOST.fullmatch(condition.strip()) else "no"
    wanted, compare = Release(match[3]), _COMPARE[match[2]]
    if match[1] == "driver":
        return "yes" if compare(driver, wanted) else "no"
    table, newest = subject.tables.drivers["toolkit"], newest_toolkit(subject)
    have = _cuda(subject, driver)
    if have is None:
        return "no"
    if wanted > newest and driver.parts[0] > Release(table[str(newest)]).parts[0]:
        return "unknown"  # of a branch that may have come with a release newer than the table
    return "yes" if compare(have, wanted) else "no"


def _cuda(subject: Subject, driver: Release) -> Release | None:
    """The newest CUDA that came with this driver or an older one."""
    table = subject.tables.drivers.get("toolkit", {})
    return max((Release(cuda) for cuda, floor in table.items() if Release(floor) <= driver), default=None)


CHECK = Check(run=run, codes=(REFUSED, CAPABILITIES))
