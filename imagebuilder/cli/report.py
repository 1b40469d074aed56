"""How progress looks: bars on a terminal, plain lines elsewhere, JSON lines for programs. All on stderr."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from imagebuilder.progress import Reporter, Silent, Task

STYLES = ("auto", "bars", "plain", "json", "none")
_PLAIN_INTERVAL = 10.0  # seconds between two lines about one piece of work


def reporter_for(style: str, stream: TextIO, *, quiet: bool = False, verbose: bool = False) -> Reporter:
    """The reporter for `--progress STYLE`; `auto` is bars on a terminal and plain lines elsewhere."""
    if quiet or style == "none":
        return Silent() if style == "none" else _Warnings(stream)
    if style == "json":
        return JsonLines(stream)
    if style == "bars" or (style == "auto" and stream.isatty()):
        return Bars(stream)
    return Plain(stream, every=0.0 if verbose else _PLAIN_INTERVAL)


def human(amount: float, unit: str = "B") -> str:
    """`1.72 GB` for bytes (powers of ten, as registries count), `12 layers` for others."""
    if unit != "B":
        return f"{amount:.0f} {unit}" + ("s" if amount != 1 else "")
    for prefix in ("", "k", "M", "G"):
        if amount < 1000:
            return f"{amount:.0f} B" if not prefix else f"{amount:.3g} {prefix}B"
        amount /= 1000
    return f"{amount:.3g} TB"


class _Warnings(Silent):
    """`--quiet`: only warnings."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def warn(self, text: str) -> None:
        """One line."""
        print(f"warning: {text}", file=self._stream, flush=True)


class _Task:
    """Counts, and tells its reporter at the beginning, when something moved, and at the end."""

    def __init__(self, label: str, total: int | None, unit: str, tell: Callable[[_Task, str], None]) -> None:
        self.label, self.total, self.unit, self.done = label, total, unit, 0
        self.failed = False
        self._tell = tell
        self._lock = threading.Lock()

    def advance(self, amount: int) -> None:
        """So many more units are done."""
        with self._lock:
            self.done += amount
        self._tell(self, "moved")

    def __enter__(self) -> _Task:
        self._tell(self, "begin")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.failed = kind is not None
        self._tell(self, "end")


class Plain:
    """A line when work begins to take long, and one when it ends, with its amount and rate."""

    def __init__(
        self, stream: TextIO, *, every: float = _PLAIN_INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._every, self._clock = stream, every, clock
        self._times: dict[int, tuple[float, float]] = {}  # task → (begun, last line)
        self._lock = threading.Lock()

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        """A task shown as lines."""
        return _Task(label, total, unit, self._tell)

    def note(self, text: str) -> None:
        """One line."""
        self._line(text)

    def warn(self, text: str) -> None:
        """One line."""
        self._line(f"warning: {text}")

    def _line(self, text: str) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    def _tell(self, task: _Task, event: str) -> None:
        now = self._clock()
        begun, last = self._times.setdefault(id(task), (now, now))
        if event == "moved" and now - last >= self._every > 0:
            self._times[id(task)] = (begun, now)
            share = f" of {human(task.total, task.unit)} ({task.done / task.total:.0%})" if task.total else ""
            self._line(f"{task.label}: {human(task.done, task.unit)}{share}{self._rate(task, now - begun)}")
        if event == "end":
            del self._times[id(task)]
            outcome = "failed" if task.failed else "done"
            amount = f", {human(task.done, task.unit)}" if task.done else ""
            self._line(f"{task.label}: {outcome}{amount}{self._rate(task, now - begun)}")

    @staticmethod
    def _rate(task: _Task, seconds: float) -> str:
        if task.unit != "B" or seconds < 1 or not task.done:
            return ""
        return f", {human(task.done / seconds)}/s"


class JsonLines:
    """One JSON object per event, for programs that watch us."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._lock = threading.Lock()
        self._last: dict[int, float] = {}

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        """A task shown as events `begin`, `moved` (twice a second at most) and `end`."""
        return _Task(label, total, unit, self._tell)

    def note(self, text: str) -> None:
        """An event `note`."""
        self._write({"event": "note", "text": text})

    def warn(self, text: str) -> None:
        """An event `warning`."""
        self._write({"event": "warning", "text": text})

    def _write(self, event: dict[str, Any]) -> None:
        with self._lock:
            print(json.dumps(event), file=self._stream, flush=True)

    def _tell(self, task: _Task, event: str) -> None:
        now = self._clock()
        if event == "moved" and now - self._last.get(id(task), 0.0) < 0.5:
            return
        self._last[id(task)] = now
        data = {
            "event": event,
            "label": task.label,
            "done": task.done,
            "total": task.total,
            "unit": task.unit,
        }
        if event == "end":
            self._last.pop(id(task), None)
            data["failed"] = task.failed
        self._write(data)


class Bars:
    """rich's progress bars: amount, rate and time left, one line per piece of work."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(file=stream)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._ids: dict[int, Any] = {}
        self._begun: dict[int, float] = {}
        self._lock = threading.Lock()

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        """A task shown as a bar."""
        return _Task(label, total, unit, self._tell)

    def note(self, text: str) -> None:
        """One line above the bars."""
        self._console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        """One line above the bars."""
        self._console.print(f"warning: {text}", highlight=False, markup=False)

    def _tell(self, task: _Task, event: str) -> None:
        key = id(task)
        if event == "begin":
            with self._lock:
                if not self._ids:
                    self._progress.start()
                self._ids[key] = self._progress.add_task(task.label, total=task.total, amount="")
                self._begun[key] = time.monotonic()
        elif event == "moved" and key in self._ids:
            seconds = max(time.monotonic() - self._begun[key], 0.001)
            rate = f" {human(task.done / seconds)}/s" if task.unit == "B" else ""
            self._progress.update(
                self._ids[key], completed=task.done, amount=human(task.done, task.unit) + rate
            )
        elif event == "end":
            with self._lock:
                self._progress.remove_task(self._ids.pop(key))
                self._begun.pop(key)
                if not self._ids:
                    self._progress.stop()
            if task.failed:
                self.note(f"{task.label}: failed")
