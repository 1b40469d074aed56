"""The client measures what the server does: exactly, on a virtual clock, whatever form the stream has."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from imagebuilder.accept.client import Client, NoAnswer
from imagebuilder.accept.load import Measured, closed_loop
from imagebuilder.accept.model import RequestResult
from imagebuilder.accept.prompts import Prompt, known_answers, load_set, select
from tests.accept.test_simulator import EAGLE
from tests.support.virtual import run, simulated

T = TypeVar("T")
PROMPT = Prompt(id="chat-01", kind="chat", text="Hello")
SPEED, SATURATION = 89.5, 24.0


def measured(folder: Path, streams: int, *flags: str, requests: int = 64, tokens: int = 300) -> Measured:
    async def whole() -> Measured:
        async with (
            simulated(folder, "--sim-speed", str(SPEED), "--sim-saturation", str(SATURATION),
                      "--sim-noise", "0", "--sim-prefill-speed", "1e12", *flags) as url,
            Client(url, model="m", timeout=600) as client,
        ):  # fmt: skip
            prompts = select(load_set("mixed"), requests)
            return await closed_loop(
                lambda p, origin: client.complete(p, tokens, origin), prompts, streams, lambda _: None
            )

    return run(whole())


@pytest.mark.parametrize("streams", [1, 8, 64])
def test_speed_and_latency_are_those_of_the_server(tmp_path: Path, streams: int) -> None:
    """Within 1 %, as is promised; with full batches all the time."""
    done = measured(tmp_path, streams)
    requests = done.requests
    assert not [r.error for r in requests if r.error]
    assert all(r.output_tokens == 300 and sum(r.tokens) == 300 and r.exact for r in requests)
    step = (1 + (streams - 1) / SATURATION) / SPEED
    assert statistics.median(r.tpot_s or 0 for r in requests) == pytest.approx(step, rel=0.01)
    assert statistics.median(gap for r in requests for gap in r.itl_s) == pytest.approx(step, rel=0.01)
    # 299 decode steps, and a prefill of a fifth of a step, for each wave of streams
    wave = 299 * step + 0.2 / SPEED
    assert done.wall_s == pytest.approx(wave * len(requests) / streams, rel=0.01)
    if streams == 1:
        assert [r.ttft_s for r in requests] == pytest.approx([0.2 / SPEED] * 64, rel=0.01)


def test_latency_per_token_does_not_depend_on_how_many_come_at_once(tmp_path: Path) -> None:
    plain = measured(tmp_path, 1, requests=20)
    fast = measured(tmp_path, 1, *EAGLE, "--sim-accept", "2.5", requests=20)
    speeds = [sum(r.output_tokens for r in m.requests) / m.wall_s for m in (plain, fast)]
    tpots = [statistics.mean(r.tpot_s or 0 for r in m.requests) for m in (plain, fast)]
    itls = [statistics.mean(g for r in m.requests for g in r.itl_s) for m in (plain, fast)]
    assert max(n for r in fast.requests for n in r.tokens) > 1
    for per_token in (tpots, itls):
        assert per_token[0] / per_token[1] == pytest.approx(speeds[1] / speeds[0], rel=0.02)


def test_a_survey_brings_the_counters_of_speculation(tmp_path: Path) -> None:
    async def work() -> tuple[RequestResult, ...]:
        async with simulated(tmp_path, *EAGLE) as url, Client(url, model="m", timeout=60) as client:
            tasks = (*known_answers()[:20], *load_set("code")[:4])
            done = await closed_loop(lambda p, o: client.survey(p, 200, o), tasks, 8, lambda _: None)
            return done.requests

    requests = run(work())
    assert all(r.verify_count and r.accept_length and r.accept_length > 1 for r in requests)
    assert [r.correct for r in requests] == [True] * 20 + [None] * 4
    assert all(r.times == () and r.cached_tokens == 0 for r in requests)


def test_token_ids_are_sent_as_they_are(tmp_path: Path) -> None:
    async def work() -> list[int | None]:
        async with simulated(tmp_path) as url, Client(url, model="m", timeout=60) as client:
            prompt = Prompt(id="x", kind="chat", text="unused", ids=(7, 8, 9))
            both = await client.complete(prompt, 3, 0.0), await client.survey(prompt, 3, 0.0)
            return [r.prompt_tokens for r in both]

    assert run(work()) == [3, 3]


# ---------------------------------------------------------------- other servers, and broken ones

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def speaking(folder: Path, answer: bytes, *, then: str = "close") -> AsyncIterator[str]:
    """A server that says exactly this to every request, then closes, resets, or says nothing more."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((h for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), b":0")
        await reader.readexactly(int(length.partition(b":")[2]))
        for part in answer.split(b"<pause>"):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.1)
        if then == "hang":
            await asyncio.sleep(3600)
        writer.close()

    path = folder / "said.sock"
    server = await asyncio.start_unix_server(handle, path)
    try:
        yield f"unix:{path}"
    finally:
        server.close()


def said(folder: Path, answer: bytes, *, then: str = "close") -> RequestResult:
    async def work() -> RequestResult:
        async with speaking(folder, answer, then=then) as url, Client(url, model="m", timeout=60) as client:
            return await client.complete(PROMPT, 9, asyncio.get_running_loop().time())

    return run(work())


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(words: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": words, "finish_reason": None}], **more)


USAGE = {"prompt_tokens": 4, "completion_tokens": 6}


def test_a_server_that_counts_only_at_the_end(tmp_path: Path) -> None:
    """llama.cpp and others: the total is theirs, and is spread over the pieces."""
    answer = HEAD + b"<pause>".join(
        [
            text("one two"),
            text(" three four"),
            text(" five six"),
            event(choices=[], usage=USAGE),
            b"data: [DONE]\n\n",
        ]
    )
    result = said(tmp_path, answer)
    assert (result.error, result.output_tokens, result.prompt_tokens) == ("", 6, 4)
    assert result.tokens == (2, 2, 2)
    assert not result.exact
    assert result.text == "one two three four five six"
    assert result.times == pytest.approx((0, 0.1, 0.2), abs=0.001)


def test_tokens_without_text_count_when_they_are_told(tmp_path: Path) -> None:
    """SGLang's detokenizer holds incomplete characters back."""
    answer = HEAD + b"<pause>".join(
        [
            text("", usage={"completion_tokens": 1}),
            text("", usage={"completion_tokens": 3}),
            text("é", usage={"completion_tokens": 4}),
            event(choices=[], usage={"completion_tokens": 4}),
            b"data: [DONE]\n\n",
        ]
    )
    result = said(tmp_path, answer)
    assert (result.tokens, result.output_tokens, result.exact) == ((1, 2, 1), 4, True)
    assert result.ttft_s == pytest.approx(0, abs=0.001)


def test_pieces_that_arrive_together_are_one(tmp_path: Path) -> None:
    answer = HEAD + text("a", usage={"completion_tokens": 1}) + text("b", usage={"completion_tokens": 2})
    answer += b"<pause>" + text("c", usage={"completion_tokens": 3}) + b"data: [DONE]\n\n"
    result = said(tmp_path, answer)
    assert result.tokens == (2, 1)
    assert len(set(result.times)) == len(result.times)


BAD: dict[str, tuple[bytes, str]] = {
    "an error of the server": (
        b"HTTP/1.1 500 X\r\nconnection: close\r\n\r\nout of cheese",
        "HTTP 500: out of cheese",
    ),
    "an error without words": (b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n", "HTTP 429"),
    "an error inside the stream": (
        HEAD + text("a", usage={"completion_tokens": 1}) + event(error={"message": "aborted"}),
        "the server says: {'message': 'aborted'}",
    ),
    "a stream that ends early": (HEAD + text("a", usage={"completion_tokens": 1}), "ended before its end"),
    "a stream that is cut": (
        HEAD.replace(b"connection: close", b"transfer-encoding: chunked") + b"5\r\nda",
        "the stream was cut",
    ),
    "no count of tokens": (HEAD + text("a") + b"data: [DONE]\n\n", "does not count tokens"),
    "no JSON": (HEAD + b"data: {oh\n\n", "JSONDecodeError"),
    "no object": (HEAD + b"data: 5\n\n", "not an object"),
    "a count without the number": (HEAD + text("a", usage={"x": 1}), "without 'completion_tokens'"),
    "no HTTP": (b"hello\r\n\r\n", "BadStatusLine|Bad status line|400"),
    "nothing": (b"", "ServerDisconnected"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_goes_wrong_is_told_and_what_came_is_kept(tmp_path: Path, case: str) -> None:
    answer, words = BAD[case]
    result = said(tmp_path, answer)
    assert any(word in result.error for word in words.split("|")), result.error
    assert not result.ok
    assert result.correct is None
    if b'"completion_tokens": 1' in answer:
        assert result.output_tokens == 1


def test_an_answer_that_never_ends(tmp_path: Path) -> None:
    result = said(tmp_path, HEAD + text("a", usage={"completion_tokens": 1}), then="hang")
    assert result.error == "no complete answer within 60 s"
    assert result.e2e_s == pytest.approx(60, rel=0.01)
    assert result.output_tokens == 1


def test_nobody_listens(tmp_path: Path) -> None:
    async def work() -> tuple[str, bool, str | None]:
        async with Client(f"unix:{tmp_path / 'nobody'}", model="m", timeout=60) as client:
            with pytest.raises(NoAnswer, match="/server_info"):
                await client.info()
            result = await client.complete(PROMPT, 9, 0.0)
            return result.error, await client.healthy(), await client.served_model()

    error, healthy, model = run(work())
    assert "Connect" in error
    assert (healthy, model) == (False, None)


def test_servers_without_the_native_api(tmp_path: Path) -> None:
    """vLLM, llama.cpp: no /generate, no /flush_cache, no /server_info."""

    async def work() -> tuple[bool, dict[str, Any]]:
        answer = b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"
        async with speaking(tmp_path, answer) as url, Client(url, model="m", timeout=60) as client:
            return await client.flush(), await client.info()

    assert run(work()) == (False, {})
