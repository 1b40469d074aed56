"""The real command, in processes that end themselves in the middle of their n-th step.

    with Killer(environment) as killer:
        killer.run("build", "s", cwd=folder)                           # Ended(code, steps), undisturbed
        killer.run("build", "s", cwd=folder, at=17, signal=SIGKILL)    # Ended(code=-9, steps=17)

Steps are what changes files: opening for writing, renaming, linking, removing, locking (as Python's audit
events tell them), and each piece written to a download or a layer, of which only half is written then. So a
moment is a number, not a time. One process imports everything once and forks for each run.
"""

from __future__ import annotations

import itertools
import json
import os
import pkgutil
import signal as signals
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.command import ROOT, WAIT

EVENTS = {
    "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate",
    "fcntl.flock", "sqlite3.connect",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended: its exit code, or the negative number of the signal; how many steps it came to."""

    code: int
    steps: int
    err: str


class Killer:
    """See the module. environment: the whole one of the commands."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            cwd=ROOT,
            env=dict(environment),
        )

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT)

    def run(
        self,
        *arguments: str,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        at: int = 0,
        signal: int = signals.SIGKILL,
    ) -> Ended:
        """One run; it sends itself the signal at step `at` (0: never). environment: what is added for it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": dict(environment or {}),
            "at": at,
            "signal": int(signal),
            "out": str(self._folder / "killed"),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that runs the commands has died"
        err = (self._folder / "killed.err").read_text(encoding="utf-8", errors="replace")
        return Ended(**json.loads(answer), err=err)


# ---------------------------------------------------------------- in the process that forks


class _Steps:
    """Counts, and sends the signal once."""

    def __init__(self, at: int, signal: int, tell: int) -> None:
        self._counter = itertools.count(1)
        self._at, self._signal, self._tell = at, signal, tell

    def __call__(self) -> bool:
        """Another step; whether it is the one in which the signal comes."""
        step = next(self._counter)  # atomic
        os.pwrite(self._tell, b"%12d" % step, 0)
        return step == self._at

    def strike(self) -> None:
        os.kill(os.getpid(), self._signal)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            mode, flags = arguments[1], arguments[2]
            writes = (isinstance(mode, str) and mode[:1] in "wax") or flags & (os.O_WRONLY | os.O_RDWR)
            if not writes:
                return
        elif event not in EVENTS:
            return
        if self():
            self.strike()

    def watch_writes(self) -> None:
        """Also count the pieces of downloads and layers; the fatal one is half written."""
        from imagebuilder.builders.direct.build import _Watched
        from imagebuilder.cache import Incoming

        for kind in (Incoming, _Watched):
            kind.write = self._halved(kind.write)  # type: ignore[method-assign, assignment, attr-defined]

    def _halved(self, write: Any) -> Any:
        def halved(target: Any, data: Any) -> Any:
            if not self():
                return write(target, data)
            half = len(data) // 2
            write(target, bytes(memoryview(data)[:half]))
            file = getattr(target, "_file", None)
            if file is not None:
                file.flush()
            self.strike()
            return half + write(target, bytes(memoryview(data)[half:]))

        return halved


def _run(order: Mapping[str, Any], tell: int) -> int:
    """In a forked process: the command, and its exit code."""
    from imagebuilder.cli.main import run

    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{order['out']}.{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, number)
    signals.signal(signals.SIGINT, signals.default_int_handler)
    steps = _Steps(order["at"], order["signal"], tell)
    steps.watch_writes()
    sys.addaudithook(steps.audit)
    return run(list(order["arguments"]))


def _serve() -> None:
    """Read orders from stdin, answer on stdout."""
    import imagebuilder

    for module in pkgutil.walk_packages(imagebuilder.__path__, "imagebuilder."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("deflate", "filelock", "isal.isal_zlib", "pypi_simple", "requests", "uv"):
        import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        tell = os.open(f"{order['out']}.steps", os.O_CREAT | os.O_TRUNC | os.O_RDWR)
        child = os.fork()
        if child == 0:
            sys.exit(_run(order, tell))  # as a process ends: after its last thread
        _, status = os.waitpid(child, 0)
        steps = int(os.pread(tell, 12, 0) or b"0")
        os.close(tell)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "steps": steps}), flush=True)


if __name__ == "__main__":
    _serve()
