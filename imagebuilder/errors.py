"""One exception class per situation of the user; the exit code is on the class.

An error says what failed, on what, the value seen, the value wanted, and the next command to run.
Exit codes are part of the interface (docs/exit-codes.md) and unique per class that defines one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

MORE_FILES = "allow more open files at once: ulimit -n 1024"
"""The way out where a process may not open more of them."""


class ImagebuilderError(Exception):
    """Base of everything that imagebuilder reports to its user on purpose.

    what: one sentence, without a full stop, naming what failed and on what.
    seen / wanted: the two values that disagree, where there are such.
    hint: the next command to run, or the edit to make.
    """

    exit_code: ClassVar[int]
    default_hint: ClassVar[str] = ""

    def __init__(self, what: str, *, seen: str = "", wanted: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.seen = seen
        self.wanted = wanted
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.seen:
            lines.append(f"  seen:   {self.seen}")
        if self.wanted:
            lines.append(f"  wanted: {self.wanted}")
        if self.hint:
            lines.append(f"  next:   {self.hint}")
        return "\n".join(lines)


class UsageProblem(ImagebuilderError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2
    default_hint = "imagebuilder --help"


class SectionMissing(UsageProblem):
    """The stack has no section that says how to do what is asked. section: its dotted name."""

    def __init__(self, stack: str, section: str, purpose: str) -> None:
        super().__init__(
            f"stack {stack} does not say {purpose}",
            wanted=f"a section [{section}] in the stack file",
            hint="add it: docs/20-stack.md has its keys, and `imagebuilder init demo` has an example",
        )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in a stack file. `key` is a dotted path such as `layer[1].requirements[0]`."""

    key: str
    message: str
    hint: str = ""


class StackInvalid(ImagebuilderError):
    """A stack file that cannot be used; carries every problem found, not only the first."""

    exit_code = 3

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) != 1 else "")
        super().__init__(f"{file}: {count} in the stack file")

    def __str__(self) -> str:
        lines = [self.what]
        for p in self.problems:
            lines.append(f"  {p.key}: {p.message}" + (f" ({p.hint})" if p.hint else ""))
        return "\n".join(lines)


class LockUnusable(ImagebuilderError):
    """There is no lock, or it was made from another stack file than the present one."""

    exit_code = 4


class ChecksFailed(ImagebuilderError):
    """A check found an error that is not waived."""

    exit_code = 5


class MachineLacks(ImagebuilderError):
    """This machine has not what the command needs: an engine, space, a permission, a program."""

    exit_code = 6
    default_hint = "imagebuilder doctor"


class BuildFailed(ImagebuilderError):
    """Building started and could not be finished."""

    exit_code = 7


class NotAccepted(ImagebuilderError):
    """An image did not pass its acceptance, or has none."""

    exit_code = 8


class PushFailed(ImagebuilderError):
    """A registry did not take the image."""

    exit_code = 9


class DeployFailed(ImagebuilderError):
    """A deployment could not be started or did not become healthy."""

    exit_code = 10


class DifferencesFound(ImagebuilderError):
    """`diff --exit-code` found differences."""

    exit_code = 11


class Unresolvable(ImagebuilderError):
    """No set of artefacts satisfies the stack."""

    exit_code = 12


class ArtefactUnusable(ImagebuilderError):
    """An artefact cannot be had, or is not what it should be (hash, size, structure, signature)."""

    exit_code = 13


class NotReproducible(ImagebuilderError):
    """`verify` got other bytes."""

    exit_code = 14
