"""What a check finds, and what a check is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from imagebuilder.checks.subject import Subject

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
KINDS = (
    "abi", "lib", "gpu", "path", "toolchain", "cuda", "version", "require", "index", "driver", "image",
    "stack", "acceptance",
)  # fmt: skip
_CODE = re.compile(rf"(?:{'|'.join(KINDS)})\.[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Code:
    """A stable name for one kind of finding, as scripts and waivers use it, with its place in the catalogue.

    meaning: what is wrong. consequence: what happens if nothing is done. remedy: what helps.
    tables: the data files that decide it, besides the artefacts; empty: the artefacts alone.
    """

    code: str
    severity: Severity
    meaning: str
    consequence: str
    remedy: str
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ValueError(f"{self.code!r} is not a code such as abi.undefined-symbol")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found. what: one sentence. evidence: what it rests on, a line each. fix: what to do.

    place: where: a package and a path inside its wheel, or a key of the stack file. package, other (a second
    package that is part of it), path: what waivers are matched with. waived: the reason, where a waiver
    matches.
    """

    code: str
    severity: Severity
    what: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    package: str = ""
    path: str = ""
    other: str = ""
    key: str = ""
    waived: str | None = None

    @property
    def place(self) -> str:
        """`sgl-kernel: sgl_kernel/flash_ops.abi3.so`, `torch`, or `target.driver`."""
        return ": ".join(p for p in (self.package, self.path) if p) or self.key

    def as_json(self) -> dict[str, Any]:
        """For `check --json`."""
        return {
            "code": self.code,
            "severity": self.severity,
            "what": self.what,
            "evidence": list(self.evidence),
            "fix": self.fix,
            "place": self.place,
            "waived": self.waived,
        }


@dataclass(frozen=True, kw_only=True)
class Check:
    """A function that finds, and the codes of what it may find."""

    run: Callable[[Subject], Iterator[Finding]]
    codes: tuple[Code, ...]

    @property
    def name(self) -> str:
        """Of its module."""
        return self.run.__module__.rsplit(".", 1)[-1]


def some(words: Sequence[str]) -> str:
    """The first four, and how many more there are."""
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")
