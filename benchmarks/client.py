"""The load client against a server of known speed.

The server sends one event per token and stream on an exact schedule, with the server's count in each; it runs
in a process of its own. What is compared is what the client says with what the schedule was, and processor
time per token.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from imagebuilder.accept.client import Client
from imagebuilder.accept.load import Measured, closed_loop
from imagebuilder.accept.prompts import load_set, select

SPEED = 200.0
FIRST = 0.5
TOKENS = 400


def run(folder: Path) -> Iterator[Row]:
    with known_server() as url:
        asyncio.run(_measure(url, 8, 8))  # warm
        for streams in (1, 8, 64):
            done = asyncio.run(_measure(url, streams, max(8, streams * 2)))
            yield from _rows(streams, done)


def _rows(streams: int, done: Measured) -> Iterator[Row]:
    requests = done.requests
    tokens = sum(r.output_tokens for r in requests)
    alone = FIRST + (TOKENS - 1) / SPEED
    wanted = {
        "output tok/s": (tokens / done.wall_s, streams * TOKENS / alone),
        "TTFT, ms": (1e3 * statistics.median(r.ttft_s or 0 for r in requests), 1e3 * FIRST),
        "time per token, ms": (1e3 * statistics.median(r.tpot_s or 0 for r in requests), 1e3 / SPEED),
    }
    for name, (seen, true) in wanted.items():
        off = 100 * (seen / true - 1)
        yield Row(
            name=f"{name} at {streams} streams: {seen:.2f}, true {true:.2f}; off by",
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


async def _measure(url: str, streams: int, requests: int) -> Measured:
    async with Client(url, model="m", timeout=600) as client:
        await client.connect(streams)
        prompts = select(load_set("mixed"), requests)
        return await closed_loop(lambda p, o: client.complete(p, TOKENS, o), prompts, streams, lambda _: None)


# ---------------------------------------------------------------- the server


@contextmanager
def known_server() -> Iterator[str]:
    """Its address; it sends the first token after FIRST seconds and then SPEED tokens/s to each request."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.client"], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            sizes = [h for h in head.split(b"\r\n") if h.startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0].partition(b":")[2])) if sizes else b""
            began = loop.time()
            asked = json.loads(body) if body else {}
            if not asked.get("stream"):
                listed = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                    % (len(listed), listed)
                )
                continue
            limit = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or TOKENS)
            chat = b"chat" in head.split(b"\r\n", 1)[0]
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for n in range(1, limit + 1):
                await asyncio.sleep(max(0.0, began + FIRST + (n - 1) / SPEED - loop.time()))
                writer.write(_event(n, limit, chat))
            writer.write(_chunk(_usage(limit)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


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
    asyncio.run(_serve())
