"""All checks, in the order in which they run; and what waivers do to what they find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from packaging.utils import canonicalize_name

from imagebuilder.checks import (
    acceptance,
    cuda,
    driver,
    glibc,
    gpu,
    image,
    jit,
    loading,
    patches,
    paths,
    requirements,
    runtime,
    serving,
    toolchain,
    versions,
)
from imagebuilder.checks.model import SEVERITIES, Check, Code, Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.stack.model import Stack, Waiver

CHECKS: tuple[Check, ...] = (
    loading.CHECK,
    cuda.CHECK,
    gpu.CHECK,
    glibc.CHECK,
    paths.CHECK,
    requirements.CHECK,
    versions.CHECK,
    driver.CHECK,
    runtime.CHECK,
    toolchain.CHECK,
    jit.CHECK,
    patches.CHECK,
    image.CHECK,
    serving.CHECK,
)

UNUSED = Code(
    code="stack.waiver-unused",
    severity="warning",
    meaning="a waiver of the stack matches no finding",
    consequence="it would hide the finding silently if it came back for another reason",
    remedy="remove it",
)
UNKNOWN = Code(
    code="stack.waiver-unknown-code",
    severity="error",
    meaning="a waiver names a code that no check has",
    consequence="it waives nothing",
    remedy="correct the code: `imagebuilder check --explain` lists them",
)
UNREAD = Code(
    code="stack.not-read",
    severity="warning",
    meaning="a locked wheel could not be read, so nothing about it was checked",
    consequence="what is wrong with it will show later",
    remedy="imagebuilder fetch, or run without --offline",
)
DAMAGED = Code(
    code="stack.damaged-library",
    severity="error",
    meaning="a library in a wheel is malformed",
    consequence="the loader refuses it, or worse",
    remedy="another file or release; tell whoever published it",
)


def codes() -> tuple[Code, ...]:
    """Every code there is, sorted."""
    own = (UNUSED, UNKNOWN, UNREAD, DAMAGED, *acceptance.CODES)
    return tuple(sorted((*own, *(c for check in CHECKS for c in check.codes)), key=lambda c: c.code))


def find(subject: Subject) -> list[Finding]:
    """Run every check, apply the stack's waivers; worst first, waived ones last."""
    return judged(subject.stack, run(subject))


def run(subject: Subject) -> list[Finding]:
    """What every check finds, waived or not, in no order."""
    return [*_reading(subject), *(f for check in CHECKS for f in check.run(subject))]


def judged(stack: Stack, found: Iterable[Finding]) -> list[Finding]:
    """The findings with the stack's waivers applied, and those about the waivers themselves; worst first."""
    waived, used = [], set[int]()
    for finding in found:
        match = next((i for i, w in enumerate(stack.waivers) if matches(w, finding)), None)
        if match is None:
            waived.append(finding)
        else:
            used.add(match)
            waived.append(replace(finding, waived=stack.waivers[match].reason))
    return sorted([*waived, *_waivers(stack, used)], key=_order)


def failing(findings: Iterable[Finding]) -> list[Finding]:
    """The errors that no waiver covers: these stop a build."""
    return [f for f in findings if f.severity == "error" and f.waived is None]


def matches(waiver: Waiver, finding: Finding) -> bool:
    """Is this finding what the waiver accepts?"""
    if waiver.code != finding.code:
        return False
    if waiver.package and canonicalize_name(waiver.package) not in (finding.package, finding.other):
        return False
    return not waiver.path or fnmatchcase(finding.path, waiver.path)


def _waivers(stack: Stack, used: set[int]) -> Iterator[Finding]:
    known = [c.code for c in codes()]
    elsewhere = [c.code for c in acceptance.CODES]
    for i, waiver in enumerate(stack.waivers):
        place = " ".join(p for p in (waiver.code, waiver.package, waiver.path) if p)
        if waiver.code not in known:
            near = get_close_matches(waiver.code, known, 1)
            yield Finding(
                code=UNKNOWN.code,
                severity=UNKNOWN.severity,
                what=f"there is no code {waiver.code}",
                fix=f"is it {near[0]}?" if near else UNKNOWN.remedy,
                key=f"waive[{i}].code",
            )
        elif i not in used and waiver.code not in elsewhere:
            yield Finding(
                code=UNUSED.code,
                severity=UNUSED.severity,
                what=f"the waiver of {place} matches nothing any more",
                evidence=(f"its reason: {waiver.reason}",),
                fix=UNUSED.remedy,
                key=f"waive[{i}]",
            )


def _reading(subject: Subject) -> Iterator[Finding]:
    for wheel in subject.lock.wheels:
        facts = subject.facts.get(wheel.name)
        if facts is None and wheel.name not in subject.gone:
            yield Finding(
                code=UNREAD.code,
                severity=UNREAD.severity,
                what=f"{wheel.filename} was not read",
                evidence=(subject.unread.get(wheel.name, "it was not looked for"),),
                fix=UNREAD.remedy,
                package=wheel.name,
            )
        for path, text in facts.problems if facts else ():
            yield Finding(
                code=DAMAGED.code,
                severity=DAMAGED.severity,
                what=text,
                fix=DAMAGED.remedy,
                package=wheel.name,
                path=path,
            )


def _order(finding: Finding) -> tuple[bool, int, str, str, str]:
    return (
        finding.waived is not None,
        SEVERITIES.index(finding.severity),
        finding.code,
        finding.place,
        finding.what,
    )
