"""The closed loop: never more streams than asked for, every prompt once, and an end when it must end."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept.load import closed_loop
from imagebuilder.accept.model import RequestResult
from imagebuilder.accept.prompts import Prompt
from tests.support.virtual import run


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=str(n), kind="chat", text=str(n)) for n in range(count)]


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=40), st.integers(1, 12))
def test_every_prompt_once_and_streams_always_busy(times: list[float], level: int) -> None:
    flying, most = 0, 0

    async def ask(prompt: Prompt, origin: float) -> RequestResult:
        nonlocal flying, most
        started = asyncio.get_running_loop().time()
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(times[int(prompt.id)])
        flying -= 1
        took = asyncio.get_running_loop().time() - started
        return RequestResult(prompt=prompt.id, kind="chat", started_s=started - origin, e2e_s=took)

    done: list[str] = []
    measured = run(closed_loop(ask, prompts(len(times)), level, lambda r: done.append(r.prompt)))
    assert [r.prompt for r in measured.requests] == [str(n) for n in range(len(times))]
    assert sorted(done, key=int) == [r.prompt for r in measured.requests]
    assert most == min(level, len(times))
    assert measured.wall_s <= sum(times) / most + max(times) + 0.01
    starts = sorted(r.started_s for r in measured.requests)
    ends = sorted(r.started_s + r.e2e_s for r in measured.requests)
    for started, ended in zip(starts[level:], ends, strict=False):
        assert started == pytest.approx(ended, abs=1e-6), (
            "the next prompt is asked when an answer is complete"
        )


def test_an_exception_ends_every_stream() -> None:
    cancelled = []

    async def ask(prompt: Prompt, origin: float) -> RequestResult:
        if prompt.id == "3":
            raise RuntimeError("broken")
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled.append(prompt.id)
            raise
        raise AssertionError

    with pytest.raises(RuntimeError, match="broken"):
        run(closed_loop(ask, prompts(9), 4, lambda _: None))
    assert cancelled == ["0", "1", "2"]
    assert gc.isenabled()


def test_how_late_the_loop_is_is_told() -> None:
    import time

    async def ask(prompt: Prompt, origin: float) -> RequestResult:
        await asyncio.sleep(0.06)
        time.sleep(0.2)  # something blocks the loop
        return RequestResult(prompt=prompt.id, kind="chat", started_s=0, e2e_s=0.1)

    measured = asyncio.run(closed_loop(ask, prompts(3), 1, lambda _: None))
    assert measured.cost.lag_max_s > 0.1
    assert measured.cost.lag_mean_s > 0
