"""The `process` runtime: the server as a process of this machine. A rehearsal, without Docker and image.

The stack's own files are laid into a folder, and the command runs in the stack's working directory there,
with this Python as its `python3`. A server dies with imagebuilder, however that ends.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from imagebuilder.accept.model import RuntimeKind
from imagebuilder.accept.server import LOG_LINES, Launch, Script
from imagebuilder.errors import MachineLacks, NotAccepted
from imagebuilder.stack.model import Stack

_PR_SET_PDEATHSIG = 1
_TAIL = 1 << 16
_GRACE = 5
_PYTHONS = ("python3", "python")


class ProcessServer:
    """A server as a process; its output goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], port: FreePort, log: Path) -> None:
        self._process, self._port, self._log = process, port, log
        self.url = f"http://127.0.0.1:{port.number}"

    def ended(self) -> str | None:
        """How the process ended."""
        status = self._process.poll()
        if status is None:
            return None
        return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"

    def log(self, lines: int) -> list[str]:
        """The end of its output."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _TAIL))
            return file.read().decode(errors="replace").splitlines()[-lines:]

    def stop(self) -> None:
        """Ask it to end, then make it."""
        end(self._process)
        self._port.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, make it where it does not, and wait for it. May be called again."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


class ProcessRuntime:
    """Use as a context manager: its folder goes with it. environment: what servers get to begin with."""

    kind: RuntimeKind = "process"

    def __init__(self, stack: Stack, environment: Mapping[str, str]) -> None:
        self._stack = stack
        self._environment = {k: environment[k] for k in ("PATH", "HOME", "LANG") if k in environment}
        self._folder = tempfile.TemporaryDirectory(prefix="imagebuilder-accept-")
        self._root = Path(self._folder.name)
        self._servers: list[ProcessServer] = []
        for file in stack.files:
            path = self._root / "root" / file.path.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        self._cwd = self._root / "root" / stack.image.workdir.lstrip("/")
        self._cwd.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> ProcessRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()
        self._folder.cleanup()

    def clean(self) -> int:
        """Nothing is ever left: processes die with their parent."""
        return 0

    def host(self) -> None:
        """This machine."""

    def start(self, launch: Launch) -> ProcessServer:
        """Start it on a free port of 127.0.0.1."""
        port = FreePort()
        words = with_option(launch.command, "--port", str(port.number))
        words = with_option(words, "--host", "127.0.0.1")
        log = self._root / f"{launch.arm}-{len(self._servers)}.log"
        try:
            with log.open("wb") as out:
                process = self._popen(words, launch, out.fileno())
        except BaseException:
            port.close()
            raise
        server = ProcessServer(process, port, log)
        self._servers.append(server)
        return server

    def run(self, script: Script, launch: Launch, timeout: float) -> bytes:
        """Run it with this Python."""
        program, data = self._root / f"{script.name}.py", self._root / f"{script.name}.json"
        program.write_text(script.source, encoding="utf-8")
        data.write_bytes(script.data)
        log = self._root / f"{script.name}.log"
        with log.open("wb") as err:
            process = self._popen(
                ("python3", str(program), str(data)), launch, subprocess.PIPE, stderr=err.fileno()
            )
            try:
                out, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise NotAccepted(f"{script.name} did not end within {timeout:g} s") from None
        if process.returncode:
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise NotAccepted(
                f"{script.name} failed with exit status {process.returncode}", seen="\n          ".join(lines)
            )
        return out

    def _popen(
        self, words: tuple[str, ...], launch: Launch, out: int, stderr: int = subprocess.STDOUT
    ) -> subprocess.Popen[bytes]:
        program = sys.executable if words[0] in _PYTHONS else words[0]
        environment = {**self._environment, **dict(self._stack.env), **dict(launch.env), **launch.secrets}
        try:
            return subprocess.Popen(
                [program, *words[1:]],
                cwd=self._cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is ours to handle
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls one C function
            )
        except OSError as error:
            raise MachineLacks(
                f"{words[0]} cannot be started here",
                seen=error.strerror or str(error),
                hint="--runtime docker runs it in the image",
            ) from error


_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In a child, before its program: it is killed when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class FreePort:
    """A port that nobody else is given until `close`, and on which a server of ours can listen meanwhile.

    It is bound, not listened on: whoever connects is refused. The kernel gives it to nobody who asks for any,
    and lets those listen who set SO_REUSEADDR, as servers do. Source: socket(7), ip(7). number: a certain one
    (OSError where somebody has it).
    """

    def __init__(self, host: str = "127.0.0.1", number: int = 0) -> None:
        self._held = socket.socket()
        try:
            self._held.bind((host, number))
        except OSError:
            self._held.close()
            raise
        # Only now: with it, bind would share a port that another process holds in this way.
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = self._held.getsockname()[1]

    def close(self) -> None:
        """May be called again."""
        self._held.close()


def with_option(words: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    """The same command with another value of an option; unchanged where it has none."""
    changed = list(words)
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            changed[i + 1] = value
        elif word.startswith(f"{option}="):
            changed[i] = f"{option}={value}"
    return tuple(changed)
