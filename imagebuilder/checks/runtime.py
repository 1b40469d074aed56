"""What the container runtime asks of the host before it starts the image, against the promised driver.

`NVIDIA_REQUIRE_*` holds alternatives separated by spaces, each of conditions joined by commas. Source: NVIDIA
Container Toolkit, "Docker specialized configurations: constraints, driver capabilities".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.values import Release

_CONDITION = re.compile(r"(cuda|driver)\s*(>=|<=|!=|=|<|>)\s*(\d+(?:\.\d+)*)")
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
            alternatives = [part.split(",") for part in text.split()]
            if not any(all(_holds(subject, driver, c) for c in part) for part in alternatives):
                yield Finding(
                    code=REFUSED.code,
                    severity=REFUSED.severity,
                    what=f"{name} asks for {alternatives[0][0]}, driver {driver} is promised",
                    evidence=(f"{name}={text[:200]}", f"this driver came with CUDA {_cuda(subject, driver)}"),
                    fix=REFUSED.remedy,
                    key=f"env.{name}" if name in dict(subject.stack.env) else "base",
                )
    capabilities = subject.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if capabilities and not {"compute", "all"} & {c.strip() for c in capabilities.split(",")}:
        yield Finding(
            code=CAPABILITIES.code,
            severity=CAPABILITIES.severity,
            what=f"NVIDIA_DRIVER_CAPABILITIES is {capabilities}, without compute",
            fix=CAPABILITIES.remedy,
            key="env.NVIDIA_DRIVER_CAPABILITIES",
        )


def _holds(subject: Subject, driver: Release, condition: str) -> bool:
    """Is it promised? A condition on a brand or an architecture is not: nobody here knows the host's."""
    match = _CONDITION.fullmatch(condition.strip())
    if match is None:
        return False
    have = driver if match[1] == "driver" else _cuda(subject, driver)
    return have is not None and _COMPARE[match[2]](have, Release(match[3]))


def _cuda(subject: Subject, driver: Release) -> Release | None:
    """The newest CUDA that came with this driver or an older one."""
    table = subject.tables.drivers.get("toolkit", {})
    return max((Release(cuda) for cuda, floor in table.items() if Release(floor) <= driver), default=None)


CHECK = Check(run=run, codes=(REFUSED, CAPABILITIES))
