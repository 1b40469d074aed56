"""What `docker buildx build` says while it builds → our progress, and the lines that explain a failure.

Two forms: `rawjson` (newer buildx), one JSON object of BuildKit's SolveStatus a line, and `plain`, lines such
as `#7 [3/7] RUN …`, `#7 1.234 text`, `#7 CACHED`, `#7 DONE 1.2s`, `#7 ERROR: …`.
Source: BuildKit, client/graph.go and util/progress/progressui/printer.go.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuilder.progress import Reporter, Task

_LOG_LINES = 40
_UNSHOWN = ("[internal]", "building with ")
_LINE = re.compile(r"#(\d+) (.*)")
_LOG = re.compile(r"\d+\.\d+ (.*)")
_DONE = re.compile(r"DONE \d+\.\d+s")
_MOUNTS = re.compile(r"(--mount=\S+\s+|--\w+=\S+\s+)+")


@dataclass(kw_only=True)
class _Step:
    """One vertex of the build's graph. Only what reads, runs or writes for a while is shown."""

    name: str
    task: Task | None = None
    ended: bool = False
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))


class BuildProgress:
    """Reads the lines of one build. titles: of our steps, by the folder of the context that they read.

    cached, made: how many steps the engine had already, and how many it carried out.
    """

    def __init__(self, reporter: Reporter, titles: Mapping[str, str]) -> None:
        self._reporter = reporter
        self._titles = titles
        self._steps: dict[str, _Step] = {}
        self._other: deque[str] = deque(maxlen=_LOG_LINES)
        self._failed: _Step | None = None
        self.cached = 0
        self.made = 0

    def feed(self, line: str) -> None:
        """One line, of whichever form."""
        if line.startswith("{"):
            try:
                status = json.loads(line)
            except ValueError:
                self._other.append(line)
                return
            self._status(status)
            return
        match = _LINE.fullmatch(line)
        if match:
            self._plain(match[1], match[2])
        elif line.strip():
            self._other.append(line)

    def close(self) -> None:
        """Ends what the build left open."""
        for step in self._steps.values():
            self._end(step)

    @property
    def failed(self) -> str:
        """The step that failed, for people; nothing where none did."""
        return self._title(self._failed.name) if self._failed else ""

    @property
    def explanation(self) -> list[str]:
        """The last lines that the failed step wrote, else those of buildx itself."""
        return list(self._failed.log) if self._failed and self._failed.log else list(self._other)

    @property
    def text(self) -> str:
        """All that is known about the failure, to look for known causes in."""
        return "\n".join([*(self._failed.log if self._failed else ()), *self._other])

    # ---------------------------------------------------------------- the two forms

    def _plain(self, number: str, text: str) -> None:
        step = self._steps.get(number)
        if step is None:
            self._steps[number] = self._begin(text)
        elif _DONE.fullmatch(text):
            self._finish(step)
        elif text == "CACHED":
            self._finish(step, cached=True)
        elif text.startswith("ERROR: "):
            self._fail(step, text.removeprefix("ERROR: "))
        else:
            log = _LOG.fullmatch(text)
            step.log.append(log[1] if log else text)

    def _status(self, status: dict[str, Any]) -> None:
        for vertex in status.get("vertexes") or ():
            step = self._steps.get(vertex["digest"])
            if step is None:
                step = self._steps[vertex["digest"]] = self._begin(vertex.get("name", ""))
            if vertex.get("error"):
                self._fail(step, vertex["error"])
            elif vertex.get("completed") and not step.ended:
                self._finish(step, cached=bool(vertex.get("cached")))
        for log in status.get("logs") or ():
            step = self._steps.get(log["vertex"])
            if step is not None:
                text = base64.b64decode(log.get("data") or "").decode(errors="replace")
                step.log.extend(line for line in text.splitlines() if line.strip())

    # ---------------------------------------------------------------- steps

    def _begin(self, name: str) -> _Step:
        step = _Step(name=name)
        if not name.startswith(_UNSHOWN):
            step.task = self._reporter.task(self._title(name), unit="steps").__enter__()
        return step

    def _finish(self, step: _Step, *, cached: bool = False) -> None:
        if not step.ended and re.match(r"\[(\S+ +)?\d+/\d+\]", step.name):
            self.cached += cached
            self.made += not cached
        self._end(step)

    def _fail(self, step: _Step, error: str) -> None:
        if "context canceled" not in error:
            step.log.append(error)
            self._failed = self._failed or step
        self._end(step)

    @staticmethod
    def _end(step: _Step) -> None:
        step.ended = True
        if step.task:
            step.task.__exit__(None, None, None)
            step.task = None

    def _title(self, name: str) -> str:
        for folder, title in self._titles.items():
            if f"source={folder}," in name:
                return title
        text = _MOUNTS.sub("", name)
        return text if len(text) <= 100 else text[:99] + "…"
