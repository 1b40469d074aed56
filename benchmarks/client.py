"""The load client against a server of known speed.

The server sends one event per token and stream on an exact schedule, with the server's count in each; it runs
in a process of its own and notes when it wrote. Both read one clock, so what the client says is compared with
what was really written: on a shared machine the server is late too, and that is no error of the client's.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.measure import Row
from imagebuilder.accept.client import Client
from imagebuilder.accept.load import Measured, closed_loop
from imagebuilder.accept.prompts import load_set, select

SPEED = 200.0
FIRST = 0.5
TOKENS = 400


def run(folder: Path) -> Iterator[Row]:
    with known_server() as url:
        asyncio.run(_measured(url, 8, 8))  # warm
        for streams in (1, 8, 64):
            yield from _rows(streams, *asyncio.run(_measured(url, streams, max(8, streams * 2))))


def _rows(streams: int, done: Measured, writes: Sequence[_Written]) -> Iterator[Row]:
    requests = done.requests
    tokens = sum(r.output_tokens for r in requests)
    wall = max(w.last for w in writes) - min(w.asked for w in writes)
    alone = FIRST + (TOKENS - 1) / SPEED
    wanted = {
        "output tok/s": (tokens / done.wall_s, tokens / wall, streams * TOKENS / alone),
        "TTFT, ms": (
            1e3 * statistics.median(r.ttft_s or 0 for r in requests),
            1e3 * statistics.median(w.first - w.asked for w in writes),
            1e3 * FIRST,
        ),
        "time per token, ms": (
            1e3 * statistics.median(r.tpot_s or 0 for r in requests),
            1e3 * statistics.median((w.last - w.first) / (TOKENS - 1) for w in writes),
            1e3 / SPEED,
        ),
    }
    for name, (seen, true, planned) in wanted.items():
        off = 100 * (seen / true - 1)
        yield Row(
            name=f"{name} at {streams} streams: {seen:.2f}, written {true:.2f} ({planned:.2f}); off by",
            value=off, unit="%", wanted="within 1 %", holds=abs(off) <= 1,
        )  # fmt: skip
    micro = 1e6 * done.cost.cpu_s / tokens
    share = micro * streams * SPEED / 1e6
    yield Row(
        name=f"processor of the client at {streams} streams ({micro:.0f} µs a token)",
        value=share, unit="cores",
        wanted="at most 0.6", holds=share <= 0.6,
    )  # fmt: skip
    yield Row(
        name=f"lateness of the client's loop at {streams} streams, mean", value=1e3 * done.cost.lag_mean_s,
        unit="ms", wanted="at most 5", holds=done.cost.lag_mean_s <= 0.005,
    )  # fmt: skip


async def measure(url: str, streams: int, requests: int, tokens: int) -> Measured:
    """A round as an acceptance has it: so many requests over so many open connections."""
    async with Client(url, model="m", timeout=600) as client:
        await client.connect(streams)
        prompts = select(load_set("mixed"), requests)
        return await closed_loop(lambda p, o: client.complete(p, tokens, o), prompts, streams, lambda _: None)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """When the client sent a request, and when the server wrote its first and last token, on one clock."""

    asked: float
    first: float
    last: float


async def _measured(url: str, streams: int, requests: int) -> tuple[Measured, tuple[_Written, ...]]:
    """A round, and what the server noted of it."""
    prompts = {p.id: _share(p.body) for p in select(load_set("mixed"), requests)}
    done = await measure(url, streams, requests, TOKENS)
    async with aiohttp.ClientSession() as session, session.get(url + "/writes") as response:
        told = await response.json()
    began = done.began
    return done, tuple(
        _Written(asked=began + r.started_s, first=first, last=last)
        for r in done.requests
        for first, last in [told[f"{prompts[r.prompt]:.9f}"]]
    )


# ---------------------------------------------------------------- the server


@contextmanager
def known_server(speed: float = SPEED, spread: float = 0.0) -> Iterator[str]:
    """Its address; it sends the first token after FIRST seconds and then `speed` tokens/s to each request.

    spread: answers end up to this share before their limit, each prompt's always at the same token.
    """
    words = [sys.executable, "-m", "benchmarks.client", str(speed), str(spread)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


_WRITES: dict[str, tuple[float, float]] = {}
"""By prompt: when the first and the last token of its last answer were written."""


async def _serve(speed: float, spread: float) -> None:
    server = await asyncio.start_server(lambda r, w: _answer(r, w, speed, spread), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, speed: float, spread: float
) -> None:
    loop = asyncio.get_running_loop()
    first = 0.0
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            sizes = [h for h in head.split(b"\r\n") if h.startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0].partition(b":")[2])) if sizes else b""
            began = loop.time()
            asked = json.loads(body) if body else {}
            if not asked.get("stream"):
                told = _WRITES if b"/writes" in head else {"data": [{"id": "m", "object": "model"}]}
                listed = json.dumps(told).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                    % (len(listed), listed)
                )
                continue
            limit = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or TOKENS)
            share = _share(asked["prompt"])
            limit -= int(limit * spread * share)
            chat = b"chat" in head.split(b"\r\n", 1)[0]
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for n in range(1, limit + 1):
                await asyncio.sleep(max(0.0, began + FIRST + (n - 1) / speed - loop.time()))
                writer.write(_event(n, limit, chat))
                first = loop.time() if n == 1 else first
            _WRITES[f"{share:.9f}"] = (first, loop.time())
            writer.write(_chunk(_usage(limit)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _share(prompt: Any) -> float:
    """Between 0 and 1, the same for every client that asks this prompt."""
    text = prompt[0] if isinstance(prompt, list) else prompt
    return zlib.crc32(str(text).encode()) / 2**32


def _event(n: int, limit: int, chat: bool) -> bytes:
    part: dict[str, Any] = {"index": 0, "finish_reason": "length" if n == limit else None}
    part |= {"delta": {"role": "assistant", "content": " word"}} if chat else {"text": " word"}
    data = {
        "id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [part],
        "usage": {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n},
    }  # fmt: skip
    return _chunk(b"data: " + json.dumps(data).encode() + b"\n\n")


def _usage(limit: int) -> bytes:
    usage = {"prompt_tokens": 9, "completion_tokens": limit, "total_tokens": 9 + limit}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [], "usage": usage}).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


if __name__ == "__main__":
    asyncio.run(_serve(*map(float, sys.argv[1:])))
