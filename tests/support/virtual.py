"""An event loop whose clock jumps to the next thing that is due as soon as nothing else is to be done.

Real sockets work on it as long as both ends are on the same loop and the socket is a Unix one: what one end
has written, the other can read at once. An hour of simulated load then takes a second, and every time that is
measured is exact.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from imagebuilder.accept.model import RuntimeKind
from imagebuilder.accept.process import with_option
from imagebuilder.accept.server import Launch, Script
from imagebuilder.accept.simulator.app import make_app
from imagebuilder.accept.simulator.options import parse

T = TypeVar("T")
_COUNTER = itertools.count()


class _JumpingSelector(selectors.DefaultSelector):
    now = 1000.0
    threads = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.threads:  # what a thread does takes no time here
            return super().select(0.05)
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """The clock stands until the thread is done."""
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._jumping.threads -= 1


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a loop of its own with a virtual clock."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        close(loop)


def close(loop: asyncio.AbstractEventLoop) -> None:
    """As `asyncio.run` ends: nothing goes on."""
    for task in (left := asyncio.all_tasks(loop)):
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


class _Simulated:
    """A simulator on a loop, which serves a Unix socket in a folder."""

    def __init__(self, folder: Path, flags: tuple[str, ...]) -> None:
        self.url = f"unix:{folder / f'{next(_COUNTER)}.sock'}"
        app = make_app(parse(["--model-path", "m", *flags]))
        path = self.url.removeprefix("unix:")
        self.server = uvicorn.Server(
            uvicorn.Config(app, uds=path, log_level="error", access_log=False, loop="none", http="h11")
        )
        self.task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        await self.server._serve()  # `serve` would take over the signals of the tests

    async def up(self) -> None:
        while not self.server.started:
            await asyncio.sleep(0.01)

    async def down(self) -> None:
        self.server.should_exit = True
        await self.task


@asynccontextmanager
async def simulated(folder: Path, *flags: str) -> AsyncIterator[str]:
    """A simulator on the running loop; gives its address."""
    server = _Simulated(folder, flags)
    await server.up()
    try:
        yield server.url
    finally:
        await server.down()


class VirtualServer:
    """A server for `accept.run`, on a loop with a virtual clock."""

    def __init__(self, runtime: VirtualRuntime, simulated: _Simulated) -> None:
        self._runtime, self._simulated = runtime, simulated
        self.url = simulated.url
        self.how: str | None = None

    def ended(self) -> str | None:
        return self.how

    def log(self, lines: int) -> list[str]:
        return ["Load weight begin.", "Capture cuda graph begin."][-lines:]

    def stop(self) -> None:
        if self in self._runtime.running:
            self._runtime.running.remove(self)
            self._runtime.loop.run_until_complete(self._simulated.down())


class VirtualRuntime:
    """Runs simulators on one loop with a virtual clock. flags: more for every simulator."""

    kind: RuntimeKind = "process"

    def __init__(self, folder: Path, *flags: str) -> None:
        self.loop = VirtualLoop()
        self.folder, self.flags = folder, flags
        self.running: list[VirtualServer] = []
        self.launches: list[Launch] = []

    def __enter__(self) -> VirtualRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self.running, "every server was stopped"
        close(self.loop)

    def clean(self) -> int:
        return 0

    def host(self) -> None:
        return None

    def start(self, launch: Launch) -> VirtualServer:
        self.launches.append(launch)
        words = tuple(launch.command[launch.command.index("--model-path") + 2 :])

        async def begin() -> _Simulated:
            made = _Simulated(self.folder, (*with_option(words, "--port", "1"), *self.flags))
            await made.up()
            return made

        server = VirtualServer(self, self.loop.run_until_complete(begin()))
        self.running.append(server)
        return server

    def run(self, script: Script, launch: Launch, timeout: float) -> bytes:
        if script.name == "probe":
            return b'{"packages": {}, "torch": {}, "gpus": {}, "folders": {}, "python": "3.12.3"}'
        return b'{"ids": null, "why": "no tokenizer here", "target": null, "draft": null}'
