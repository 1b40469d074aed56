"""The simulated engine: continuous batching, prefill, decode or draft-and-verify steps, a prefix cache.

One step serves the whole batch, as in SGLang: it lasts longer the more requests it serves, so throughput
saturates. Steps follow each other without gaps on the loop's clock, so the mean speed is exact however late
the loop wakes up.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .options import Options
from .text import Reply

_BLOCK = 16
"""Tokens whose prefix is cached together."""
_PREFILL_OVERHEAD = 0.2
"""Of a decode step: what a prefill costs besides its tokens."""


@dataclass(eq=False)
class Job:
    """A request in the engine. said: tokens so far; `changed` is set whenever there are more."""

    prompt: Sequence[str]
    reply: Reply
    limit: int
    chance: float
    random: random.Random
    cached: int = 0
    said: int = 0
    verify_count: int = 0
    histogram: list[int] = field(default_factory=list)
    finish: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        """Tokens of the reply that will be said."""
        return min(self.limit, len(self.reply.tokens))

    def say(self, count: int) -> None:
        """So many more tokens; what lies after the end is cut."""
        self.said = min(self.said + count, self.end)
        if self.said == self.end:
            self.finish = "length" if self.end < len(self.reply.tokens) or self.end == self.limit else "stop"
        self.changed.set()

    def stop(self) -> None:
        """Given up: its client has left."""
        self.finish = "abort"
        self.changed.set()


def chance_for(accept_length: float, steps: int) -> float:
    """The chance p of each draft token to be right that makes 1 + p + p² + … + p^steps the accept length."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(middle**i for i in range(steps + 1)) < accept_length else (low, middle)
        )
    return (low + high) / 2


class Engine:
    """Serves jobs, one batch step after the other. `run` is the task that does it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.frozen = False
        self.steps = 0
        self.tokens = 0
        self.verified = 0
        self.accepted = 0
        self._cache: set[bytes] = set()
        self._wake = asyncio.Event()
        self._random = random.Random(f"steps {options.sim_seed} {options.sim_start_noise}")
        self._start = math.exp(random.SystemRandom().gauss(0, options.sim_start_noise))
        self._began = asyncio.get_running_loop().time()

    # ---------------------------------------------------------------- jobs

    def submit(self, prompt: Sequence[str], reply: Reply, limit: int) -> Job:
        """Take a request in."""
        options = self.options
        accept = 1 + (options.accept_length - 1) * options.accept_factors.get(reply.kind, 1.0)
        job = Job(
            prompt=prompt,
            reply=reply,
            limit=limit,
            chance=chance_for(min(accept, 1.0 + options.steps), options.steps) if options.steps else 0.0,
            random=random.Random(f"{options.sim_seed} {''.join(prompt)}"),
            histogram=[0] * (options.steps + 1),
        )
        self.waiting.append(job)
        self._wake.set()
        return job

    def flush(self) -> bool:
        """Empty the prefix cache and reset the counters; not while anything runs."""
        if self.running or self.waiting:
            return False
        self._cache.clear()
        self.verified = self.accepted = 0
        return True

    @property
    def accept_length(self) -> float:
        """Tokens per verify step since the last flush."""
        return (self.accepted + self.verified) / self.verified if self.verified else 0.0

    # ---------------------------------------------------------------- time

    def step_time(self, batch: int) -> float:
        """Mean seconds of a decode step, or of a draft and its verification, for a batch of this size."""
        options = self.options
        alone = options.accept_length / options.sim_speed
        return alone * (1 + (batch - 1) / options.sim_saturation)

    def _noisy(self, seconds: float) -> float:
        hours = (asyncio.get_running_loop().time() - self._began) / 3600
        factor = math.exp(self._random.gauss(0, self.options.sim_noise)) if self.options.sim_noise else 1.0
        return seconds * factor * self._start * (1 + self.options.sim_drift * hours)

    async def run(self) -> None:
        """Steps for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if self.frozen or not (self.running or self.waiting):
                self._wake.clear()
                await self._wake.wait()
                due = loop.time()
                continue
            fresh = self._admit()
            due += self._noisy(self._prefill_time(fresh) if fresh else self.step_time(len(self.running)))
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._step(fresh or self.running, prefill=bool(fresh))
            self.running = [job for job in self.running if not job.finish]

    def _admit(self) -> list[Job]:
        fresh = []
        while self.waiting and len(self.running) < self.options.running_cap:
            job = self.waiting.popleft()
            job.cached = self._match(job.prompt)
            self.running.append(job)
            fresh.append(job)
        return fresh

    def _prefill_time(self, fresh: list[Job]) -> float:
        new = sum(len(job.prompt) - job.cached for job in fresh)
        return new / self.options.sim_prefill_speed + _PREFILL_OVERHEAD * self.step_time(1)

    def _step(self, jobs: list[Job], *, prefill: bool) -> None:
        self.steps += 1
        for job in jobs:
            if job.finish:
                continue
            accepted = 0
            if not prefill and self.options.speculates:
                while accepted < self.options.steps and job.random.random() < job.chance:
                    accepted += 1
                job.verify_count += 1
                job.histogram[accepted] += 1
                self.verified += 1
                self.accepted += accepted
            before = job.said
            job.say(1 + accepted)
            self.tokens += job.said - before

    # ---------------------------------------------------------------- the prefix cache

    def _match(self, prompt: Sequence[str]) -> int:
        """Tokens of this prompt that were seen before as the beginning of one; then this one is kept too."""
        if self.options.disable_radix_cache:
            return 0
        cached, digest = 0, hashlib.sha256()
        for end in range(_BLOCK, len(prompt), _BLOCK):
            digest.update("\0".join(prompt[end - _BLOCK : end]).encode())
            key = digest.digest()
            if key in self._cache:
                cached = end
            self._cache.add(key)
        return cached
