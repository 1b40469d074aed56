"""One server's HTTP API, asked and timed: streamed completions, counters, settings, the prefix cache.

What is timed goes over `/v1/completions`, which sends each new text once: `/generate` repeats the whole
text with every event, so the arm with more events, the baseline, would pay for it. Each event carries the
server's own count of tokens (`continuous_usage_stats`). Counters of speculation are in `/generate` only;
they come from an untimed survey that does not stream. Time is the running loop's clock, read once for each
piece that arrives, and once when a request is handed to its connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import TracebackType
from typing import Any

import aiohttp

from imagebuilder.accept.model import KNOWN, RequestResult
from imagebuilder.accept.prompts import Prompt, is_correct
from imagebuilder.accept.sse import EventReader

_BUFFER = 1 << 20
"""Read buffer of a connection: aiohttp's 64 KiB stalls long streams (vllm-project/vllm#39963)."""
_QUICK = 30
"""Seconds for what a healthy server answers at once."""
_DONE = b"[DONE]"
_SEEN = 300


class NoAnswer(Exception):
    """The server did not answer a question about itself."""


@dataclass
class _Answer:
    """A streamed answer as it grows."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    counted: int = 0
    uncounted: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish: str = ""
    done: bool = False

    def take(self, data: list[bytes], at: float) -> None:
        """The events that arrived at once, `at` seconds after sending. ValueError for what is none."""
        new = 0
        for text in data:
            if text == _DONE:
                self.done = True
                continue
            new += self._event(json.loads(text.decode()))  # half as dear as of bytes
        if new:
            self.times.append(at)
            self.tokens.append(new)

    def _event(self, event: Any) -> int:
        """Tokens that this event brings."""
        if not isinstance(event, dict):
            raise ValueError("an event that is not an object")
        if "error" in event:
            raise ValueError(f"the server says: {str(event['error'])[:_SEEN]}")
        choices = event.get("choices")
        text = ""
        if choices:
            text = choices[0].get("text") or ""
            self.texts.append(text)
            self.finish = choices[0].get("finish_reason") or self.finish
        usage = event.get("usage")
        if usage:
            self.usage = usage
            if choices:
                before, self.counted = self.counted, int(usage["completion_tokens"])
                return self.counted - before
        if text:
            self.uncounted += 1
        return int(bool(text))

    def total(self) -> int:
        """Output tokens by the server's own count. ValueError where it never told."""
        if "completion_tokens" not in self.usage:
            raise ValueError("the server does not count tokens: no usage in the stream")
        return int(self.usage["completion_tokens"])

    def shares(self, total: int) -> tuple[int, ...]:
        """Tokens of each piece, by the server's count, or spread evenly where it counts only at the end."""
        if not self.uncounted or not self.tokens:
            return tuple(self.tokens)
        pieces = len(self.tokens)
        ends = [round(total * n / pieces) for n in range(pieces + 1)]
        return tuple(b - a for a, b in pairwise(ends))


class Client:
    """Speaks with one server. Use as an async context manager. timeout: seconds for a whole answer.

    url: `http://host:port`, or `unix:/path` of a socket.
    """

    def __init__(self, url: str, *, model: str, timeout: float) -> None:
        scheme, _, path = url.partition(":")
        self._socket = path if scheme == "unix" else None
        self.url, self.model, self.timeout = "http://localhost" if self._socket else url, model, timeout
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Client:
        connector = (
            aiohttp.UnixConnector(self._socket, limit=0) if self._socket else aiohttp.TCPConnector(limit=0)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            trace_configs=[_tracing()],
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=_QUICK),
            read_bufsize=_BUFFER,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    # ---------------------------------------------------------------- what is measured

    async def complete(self, prompt: Prompt, limit: int, origin: float) -> RequestResult:
        """Ask over /v1/completions and time every piece. origin: the round's start on the loop's clock."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": prompt.body,
                "max_tokens": limit,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        )
        clock = asyncio.get_running_loop().time
        answer, reader, error = _Answer(), EventReader(), ""
        sending = _Sending(at=clock())
        try:
            async with self._session.post(
                self.url + "/v1/completions", data=body, headers=_JSON, trace_request_ctx=sending
            ) as response:
                if response.status != 200:
                    error = await _refusal(response)
                else:
                    async for piece in response.content.iter_any():
                        at = clock() - sending.at
                        if events := reader.feed(piece):
                            answer.take(events, at)
                    if not answer.done:
                        error = "the stream ended before its end"
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, ValueError, KeyError) as problem:
            error = _words(problem, self.timeout)
        return self._result(prompt, answer, error, sending.at - origin, clock() - sending.at)

    def _result(
        self, prompt: Prompt, answer: _Answer, error: str, started: float, elapsed: float
    ) -> RequestResult:
        try:
            total = answer.total()
        except ValueError as problem:
            total, error = sum(answer.tokens), error or str(problem)
        text = "".join(answer.texts)
        details = answer.usage.get("prompt_tokens_details") or {}
        return RequestResult(
            prompt=prompt.id,
            kind=prompt.kind,
            started_s=started,
            e2e_s=answer.times[-1] if answer.times and not error else elapsed,
            times=tuple(answer.times),
            tokens=answer.shares(total),
            exact=not answer.uncounted,
            prompt_tokens=answer.usage.get("prompt_tokens"),
            output_tokens=total,
            cached_tokens=details.get("cached_tokens"),
            finish=answer.finish,
            text=text,
            correct=is_correct(prompt, text) if prompt.kind == KNOWN and not error else None,
            error=error,
        )

    async def survey(self, prompt: Prompt, limit: int, origin: float) -> RequestResult:
        """Ask over /generate, not streamed, for speculation's counters; where there is none, `complete`."""
        asked = {"text": prompt.text} if prompt.ids is None else {"input_ids": list(prompt.ids)}
        body = {**asked, "sampling_params": {"temperature": 0, "max_new_tokens": limit}, "stream": False}
        clock = asyncio.get_running_loop().time
        sent = clock()
        told: dict[str, Any] = {}
        error = ""
        try:
            async with self._session.post(self.url + "/generate", json=body) as response:
                if response.status in (404, 405):
                    result = await self.complete(prompt, limit, origin)
                    return replace(result, times=(), tokens=())
                if response.status != 200:
                    error = await _refusal(response)
                else:
                    told = await response.json()
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, ValueError) as problem:
            error = _words(problem, self.timeout)
        meta = told.get("meta_info") or {}
        text = str(told.get("text") or "")
        finish = meta.get("finish_reason") or {}
        return RequestResult(
            prompt=prompt.id,
            kind=prompt.kind,
            started_s=sent - origin,
            e2e_s=clock() - sent,
            prompt_tokens=meta.get("prompt_tokens"),
            output_tokens=int(meta.get("completion_tokens") or 0),
            cached_tokens=meta.get("cached_tokens"),
            verify_count=meta.get("spec_verify_ct"),
            finish=str(finish.get("type", "")) if isinstance(finish, dict) else str(finish),
            text=text,
            correct=is_correct(prompt, text) if prompt.kind == KNOWN and not error else None,
            error=error,
        )

    # ---------------------------------------------------------------- about the server

    async def connect(self, streams: int) -> None:
        """Open so many connections, so that no timed request has to."""
        await asyncio.gather(*(self.served_model() for _ in range(streams)))

    async def healthy(self) -> bool:
        """Whether /health answers 200 in time."""
        try:
            async with self._session.get(self.url + "/health", timeout=_soon()) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError):
            return False

    async def flush(self, attempts: int = 20) -> bool:
        """Empty the prefix cache; False where the server has no such thing. NoAnswer when it will not."""
        for _ in range(attempts):
            try:
                async with self._session.post(self.url + "/flush_cache", timeout=_soon()) as response:
                    if response.status == 200:
                        return True
                    if response.status in (404, 405):
                        return False
                    said = await _refusal(response)
            except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError) as problem:
                said = _words(problem, _QUICK)
            await asyncio.sleep(0.1)  # the last request's end reaches the scheduler a moment later
        raise NoAnswer(f"/flush_cache: {said}")

    async def served_model(self) -> str | None:
        """The name that requests have to give, as /v1/models lists it first; None where it lists none."""
        try:
            async with self._session.get(self.url + "/v1/models", timeout=_soon()) as response:
                listed = await response.json() if response.status == 200 else {}
                return str(listed["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, ValueError, LookupError, TypeError):
            return None

    async def info(self) -> dict[str, Any]:
        """`/server_info`, under its newer or older name; empty where there is none."""
        for path in ("/server_info", "/get_server_info"):
            try:
                async with self._session.get(self.url + path, timeout=_soon()) as response:
                    if response.status == 200:
                        told = await response.json()
                        return told if isinstance(told, dict) else {}
            except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, ValueError) as problem:
                raise NoAnswer(f"{path}: {_words(problem, _QUICK)}") from problem
        return {}


_JSON = {"content-type": "application/json"}


@dataclass
class _Sending:
    """When a request was handed to its connection, on the loop's clock."""

    at: float


def _tracing() -> aiohttp.TraceConfig:
    """Notes the moment of sending: what the client does before it is not the server's time."""

    async def sent(_: Any, context: Any, __: Any) -> None:
        if isinstance(context.trace_request_ctx, _Sending):
            context.trace_request_ctx.at = asyncio.get_running_loop().time()

    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(sent)
    return tracing


def _soon() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=_QUICK)


async def _refusal(response: aiohttp.ClientResponse) -> str:
    text = (await response.content.read(4096)).decode(errors="replace").strip()
    return f"HTTP {response.status}: {text[:_SEEN]}" if text else f"HTTP {response.status}"


def _words(problem: BaseException, timeout: float) -> str:
    if isinstance(problem, TimeoutError | asyncio.TimeoutError):
        return f"no complete answer within {timeout:g} s"
    if isinstance(problem, aiohttp.ClientPayloadError):
        return "the stream was cut"
    if isinstance(problem, KeyError):
        return f"an event without {problem}"
    return f"{type(problem).__name__}: {problem}"[:_SEEN]
