"""A server that runs somewhere: what a runtime can do, waiting until it is healthy, and how it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from imagebuilder.accept.client import Client
from imagebuilder.accept.model import ArmName, HostFacts, RuntimeKind
from imagebuilder.errors import NotAccepted
from imagebuilder.progress import Reporter
from imagebuilder.stack.model import Gpus, Mount, Pairs

LOG_LINES = 20
"""Of a server's log, in an error."""
_TELL_EVERY = 10.0
"""Seconds between two lines of the log while a start is slow."""
_POLL = 0.25
_HEALTH_TIMEOUT = 25
"""SGLang's /health generates a token and may itself take 20 s."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started. command: for a container; port: it serves on there. secrets: name → value."""

    arm: ArmName
    command: tuple[str, ...]
    port: int
    env: Pairs = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    gpus: Gpus = "all"
    shm: int = 0
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Script:
    """A Python program that reads one JSON file (its argument) and writes one JSON text to its output."""

    name: str
    source: str
    data: bytes


class Server(Protocol):
    """One that was started; it runs until `stop`, or until it ends by itself."""

    @property
    def url(self) -> str:
        """Where it is reached from here."""

    def ended(self) -> str | None:
        """None while it runs; else how it ended, such as `exit status 1`."""

    def log(self, lines: int) -> list[str]:
        """The last lines it wrote."""

    def stop(self) -> None:
        """End it and leave nothing of it. May be called again."""


class Runtime(Protocol):
    """Where servers run."""

    @property
    def kind(self) -> RuntimeKind:
        """Whether it is the image itself that runs, and where."""

    def clean(self) -> int:
        """Remove what a killed imagebuilder left; how many there were."""

    def host(self) -> HostFacts | None:
        """Where servers run, as far as it is known from here; None: on this machine."""

    def start(self, launch: Launch) -> Server:
        """Start a server; it is not healthy yet. MachineLacks, NotAccepted."""

    def run(self, script: Script, launch: Launch, timeout: float) -> bytes:
        """What a script writes where the server would run. NotAccepted."""


def redact(lines: Sequence[str], secrets: Mapping[str, str]) -> list[str]:
    """The lines without the values of secrets."""
    values = [value for value in secrets.values() if value]
    cleaned = []
    for line in lines:
        for value in values:
            line = line.replace(value, "(redacted)")  # noqa: PLW2901
        cleaned.append(line)
    return cleaned


def lost(server: Server, launch: Launch, what: str, hint: str = "") -> NotAccepted:
    """The error for a server that ended or does not answer, with the last lines of its log."""
    lines = redact(server.log(LOG_LINES), launch.secrets)
    return NotAccepted(
        f"the {launch.arm} server {what}",
        seen="\n          ".join(line.rstrip() for line in lines if line.strip()) or "(its log is empty)",
        hint=hint or _advice("\n".join(lines)),
    )


_ADVICE = (
    ("out of memory", "less for --mem-fraction-static, or more GPUs"),
    ("No space left on device", "a larger [acceptance] shm, or more space for the caches"),
    ("unrecognized arguments", "this release of the server has other arguments: see `--help` in the image"),
    ("No module named 'fastapi'", "pip install 'imagebuilder[simulator]'"),
    ("No module named 'uvicorn'", "pip install 'imagebuilder[simulator]'"),
    ("Address already in use", "another server runs on that port in the container"),
    ("No such file or directory", "check the mounts and paths in [acceptance]"),
)


def _advice(log: str) -> str:
    return next((advice for words, advice in _ADVICE if words.lower() in log.lower()), "")


async def wait_healthy(server: Server, launch: Launch, timeout: float, reporter: Reporter) -> float:
    """Wait until /health answers 200; the seconds it took. NotAccepted when it ends, or takes too long."""
    clock = asyncio.get_running_loop().time
    began = told = clock()
    last = ""
    while True:
        if how := server.ended():
            raise lost(server, launch, f"ended while starting ({how})")
        try:
            url = server.url
        except NotAccepted:
            if how := server.ended():  # between the two questions
                raise lost(server, launch, f"ended while starting ({how})") from None
            raise
        async with Client(url, model="", timeout=_HEALTH_TIMEOUT) as client:
            if await client.healthy():
                return clock() - began
        now = clock()
        if now - began > timeout:
            raise lost(
                server,
                launch,
                f"was not healthy after {timeout:g} s",
                "raise [acceptance] startup-timeout if its log shows that it is still loading",
            )
        if now - told > _TELL_EVERY:
            told = now
            line = next(iter(redact(server.log(1), launch.secrets)), "").strip()
            if line and line != last:
                last = line
                reporter.note(f"{launch.arm} after {now - began:.0f} s: {line[:160]}")
        await asyncio.sleep(_POLL)
