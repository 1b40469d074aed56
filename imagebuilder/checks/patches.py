"""Do the stack's patches apply to the locked wheels, exactly?"""

from __future__ import annotations

from collections.abc import Iterator

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject

MISFIT = Code(
    code="stack.patch-does-not-apply",
    severity="error",
    meaning="a patch of the stack does not apply exactly to the locked wheel",
    consequence="the build stops at it",
    remedy="make the patch for the locked release, or lock the release it was made for",
)


def run(subject: Subject) -> Iterator[Finding]:
    """As the builders would apply them: in order, without fuzz or offset."""
    for package, misfit in sorted(subject.misfits.items()):
        seen = [f"seen: {misfit.seen}"] if misfit.seen else []
        wanted = [f"wanted: {misfit.wanted}"] if misfit.wanted else []
        yield Finding(
            code=MISFIT.code,
            severity=MISFIT.severity,
            what=misfit.what,
            evidence=(f"{package} {subject.version_of[package]} is locked", *seen, *wanted),
            fix=MISFIT.remedy,
            package=package,
        )


CHECK = Check(run=run, codes=(MISFIT,))
