"""A closed loop: so many streams, each of which asks the next prompt as soon as its answer is complete."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from imagebuilder.accept.model import ClientCost, RequestResult
from imagebuilder.accept.prompts import Prompt

Ask = Callable[[Prompt, float], Awaitable[RequestResult]]
"""Asks a prompt; the second argument is the round's start on the loop's clock."""

_LAG_EVERY = 0.05


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Requests in the order of their prompts. wall_s: from the first sending to the last token.

    began: what their times count from, on the loop's clock.
    """

    began: float
    wall_s: float
    requests: tuple[RequestResult, ...]
    cost: ClientCost


async def closed_loop(
    ask: Ask, prompts: Sequence[Prompt], level: int, done: Callable[[RequestResult], None]
) -> Measured:
    """Ask every prompt once, `level` at a time. done: told of every answer as it comes.

    An exception of `done` or of a task ends the round: the other streams are cancelled.
    """
    loop = asyncio.get_running_loop()
    results: dict[int, RequestResult] = {}
    waiting = iter(enumerate(prompts))
    lag = _Lag()
    with _no_collection():
        watching = asyncio.create_task(lag.watch())
        began, cpu = loop.time(), time.thread_time()

        async def stream() -> None:
            for number, prompt in waiting:
                results[number] = await ask(prompt, began)
                done(results[number])

        streams = [asyncio.create_task(stream()) for _ in range(min(level, len(prompts)))]
        try:
            await asyncio.gather(*streams)
        finally:
            spent = time.thread_time() - cpu
            for task in (*streams, watching):
                task.cancel()
            await asyncio.gather(*streams, watching, return_exceptions=True)
    requests = tuple(results[n] for n in sorted(results))
    wall = max((r.started_s + r.e2e_s for r in requests), default=0.0)
    return Measured(began=began, wall_s=wall, requests=requests, cost=lag.cost(spent))


class _Lag:
    """How late the loop is: something is due every 50 ms, and how late it really runs is noted."""

    def __init__(self) -> None:
        self._late: list[float] = []

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(asyncio.CancelledError):
            while True:
                due = loop.time() + _LAG_EVERY
                await asyncio.sleep(_LAG_EVERY)
                self._late.append(max(0.0, loop.time() - due))

    def cost(self, cpu: float) -> ClientCost:
        late = self._late or [0.0]
        return ClientCost(cpu_s=cpu, lag_mean_s=sum(late) / len(late), lag_max_s=max(late))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage is collected between rounds, not while times are taken."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
