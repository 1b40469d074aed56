"""How long work reports itself. Work gets a Reporter passed in; the CLI decides how it looks."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Task(Protocol):
    """One piece of work in progress, used as a context manager; leaving it ends the line."""

    def advance(self, amount: int) -> None:
        """So many more units (bytes, files, layers) are done. May be called from any thread."""

    def __enter__(self) -> Task: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Reporter(Protocol):
    """Where progress and remarks go; all of it to stderr, never to stdout."""

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        """Begin a piece of work. `total` in units; `unit` is `B` for bytes, else a noun."""

    def note(self, text: str) -> None:
        """Something the user may want to know: what was chosen and why."""

    def warn(self, text: str) -> None:
        """Something the user should know, although the work goes on."""


class _SilentTask:
    def advance(self, amount: int) -> None:
        pass

    def __enter__(self) -> _SilentTask:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Silent:
    """A Reporter that says nothing: for tests and library use."""

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        """A task that shows nothing."""
        return _SilentTask()

    def note(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""
