"""Measuring one running server: a survey, or a timed round, each on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

from imagebuilder.accept.client import Client, NoAnswer
from imagebuilder.accept.differences import redacted
from imagebuilder.accept.load import Ask, Measured, closed_loop
from imagebuilder.accept.model import RequestResult, RoundResult, Stage
from imagebuilder.accept.prompts import Prompt, warmup
from imagebuilder.accept.server import Launch, Server, lost
from imagebuilder.errors import NotAccepted
from imagebuilder.progress import Reporter

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
_LOOK_EVERY = 1.0
"""Seconds between two looks at whether the server still runs."""
_MOMENT, _MOMENTS = 0.5, 4
_PREFLIGHT_TOKENS = 8


@dataclass(kw_only=True)
class Measuring:
    """Asks one server. model: the name that requests give, until the server tells another.

    run: carries a coroutine out; tests give a loop with a clock of its own.
    """

    server: Server
    launch: Launch
    model: str
    timeout: float
    reporter: Reporter
    run: Run = asyncio.run

    def preflight(self, prompt: Prompt) -> dict[str, Any]:
        """One short request, to fail early and plainly; the server's settings, redacted. NotAccepted."""

        async def work(client: Client) -> dict[str, Any]:
            self.model = client.model = await client.served_model() or self.model
            result = await client.complete(prompt, _PREFLIGHT_TOKENS, asyncio.get_running_loop().time())
            if result.error:
                raise self._lost(f"does not answer a first request: {result.error}")
            info: dict[str, Any] = redacted(await client.info())
            return info

        return self._with_client(work)

    def survey(self, prompts: Sequence[Prompt], level: int, limit: Callable[[Prompt], int]) -> RoundResult:
        """Every prompt once, untimed, from an empty prefix cache. unit, start and index are the caller's."""

        async def work(client: Client) -> RoundResult:
            await client.flush()
            return await self._round(
                client, "survey", prompts, level, lambda p, origin: client.survey(p, limit(p), origin)
            )

        return self._with_client(work)

    def load(self, prompts: Sequence[Prompt], level: int, tokens: int, *, warmup: int) -> RoundResult:
        """A timed round, after a warm-up of so many requests at this level, from an empty prefix cache."""

        async def work(client: Client) -> RoundResult:
            def ask(prompt: Prompt, origin: float) -> Awaitable[RequestResult]:
                return client.complete(prompt, tokens, origin)

            if warmup:
                await self._watched(client, ask, warm_prompts(prompts, warmup), level, "warming up")
            await client.flush()
            await client.connect(level)
            return await self._round(client, "load", prompts, level, ask)

        return self._with_client(work)

    def accept_length(self) -> float | None:
        """SGLang's own average since the last flush, where it tells one."""

        async def work(client: Client) -> float | None:
            states = (await client.info()).get("internal_states") or [{}]
            told = states[0].get("avg_spec_accept_length") if isinstance(states[0], dict) else None
            return float(told) if isinstance(told, int | float) else None

        return self._with_client(work)

    # ----------------------------------------------------------------

    def _with_client(self, work: Callable[[Client], Awaitable[T]]) -> T:
        async def whole() -> T:
            async with Client(self.server.url, model=self.model, timeout=self.timeout) as client:
                try:
                    return await work(client)
                except NoAnswer as problem:
                    how = await self._ended()
                    raise self._lost(f"ended ({how})" if how else f"does not answer: {problem}") from problem

        done: T = self.run(whole())
        return done

    async def _round(
        self, client: Client, stage: Stage, prompts: Sequence[Prompt], level: int, ask: Ask
    ) -> RoundResult:
        began = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        measured = await self._watched(client, ask, prompts, level, "survey" if stage == "survey" else "load")
        return RoundResult(
            arm=self.launch.arm,
            stage=stage,
            level=level,
            unit=0,
            start=0,
            index=0,
            wall_s=measured.wall_s,
            began=began,
            requests=measured.requests,
            client=measured.cost,
        )

    async def _watched(
        self, client: Client, ask: Ask, prompts: Sequence[Prompt], level: int, what: str
    ) -> Measured:
        """A closed loop that ends when the server does. NotAccepted."""
        label = f"{self.launch.arm}: {what}, {level} at a time"
        failed = asyncio.Event()
        with self.reporter.task(label, total=len(prompts), unit="request") as task:

            def done(result: RequestResult) -> None:
                task.advance(1)
                if result.error:
                    failed.set()

            loop = asyncio.create_task(closed_loop(ask, prompts, level, done))
            watch = asyncio.create_task(self._watch(client, failed))
            try:
                await asyncio.wait((loop, watch), return_when=asyncio.FIRST_COMPLETED)
                if watch.done():
                    await watch  # raises
                measured = await loop
                if failed.is_set():
                    await self._look(client, failed)
                return measured
            finally:
                for task_ in (loop, watch):
                    task_.cancel()
                await asyncio.gather(loop, watch, return_exceptions=True)

    async def _watch(self, client: Client, failed: asyncio.Event) -> None:
        """Ends with an error when the server does."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._look(client, failed)

    async def _look(self, client: Client, failed: asyncio.Event) -> None:
        """NotAccepted when the server has ended, or, after a failed request, when it hangs."""
        if how := await asyncio.to_thread(self.server.ended):
            raise self._lost(f"ended under load ({how})")
        if failed.is_set():
            failed.clear()
            if not await client.healthy():
                how = await self._ended()
                raise self._lost(f"ended under load ({how})" if how else "hangs: /health does not answer")

    async def _ended(self) -> str | None:
        """How the server ended; one that no longer answers is given a moment to be gone."""
        for _ in range(_MOMENTS):
            if how := await asyncio.to_thread(self.server.ended):
                return how
            await asyncio.sleep(_MOMENT)
        return None

    def _lost(self, what: str) -> NotAccepted:
        return lost(self.server, self.launch, what)


def warm_prompts(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """Prompts to warm up with, each with a beginning of its own; token ids are taken in reverse order."""
    if prompts and prompts[0].ids is not None:
        return tuple(prompts[-1 - n % len(prompts)] for n in range(count))
    return warmup(prompts, count)
