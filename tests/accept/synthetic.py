"""Runs made of numbers: what an acceptance would have measured, had the servers been this fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

from imagebuilder.accept.looks import first_units, most_units
from imagebuilder.accept.model import (
    ARMS,
    EAGLE3,
    KNOWN,
    ArmName,
    Gpu,
    HostFacts,
    HostSample,
    PromptInfo,
    RequestResult,
    RoundResult,
    RunResult,
    Scenario,
    ServerFacts,
)
from imagebuilder.stack.model import Load, Requirements
from imagebuilder.values import Digest

KINDS = ("code", "chat", "maths", "summaries", "multilingual")
IMAGE = Digest.of(b"an image")
Speed = float | Mapping[int, float]
START = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)


def make_run(
    *,
    baseline: Speed = 89.5,
    eagle3: Speed = 96.1,
    load: Load | None = None,
    require: Requirements | None = None,
    noise: float = 0.005,
    units: int | None = None,
    planned_units: int | None = None,
    accept: float | None = 2.4,
    right: Callable[[ArmName, int, int], bool] = lambda arm, task, time: True,
    text: Callable[[ArmName, int, int], str] | None = None,
    cached: Callable[[ArmName, int], int] = lambda arm, time: 4,
    tasks: int = 50,
    requests: int = 8,
    seed: int = 1,
    **changes: Any,
) -> RunResult:
    """A whole run. Speeds in output tok/s, for all levels or by level; noise: of log throughput by round.

    right: whether a task is answered right the nth time; text: of a prompt, the nth time.
    """
    load = load or Load(concurrency=(1, 8), pairing="starts", starts=3, rounds=3)
    units = first_units(load) if units is None else units
    maker = _Maker(
        load=load,
        random=Random(seed),
        noise=noise,
        accept=accept,
        right=right,
        text=text,
        cached=cached,
        tasks=tasks,
        requests=requests,
    )
    rounds = maker.rounds({ARMS[0]: baseline, EAGLE3: eagle3}, units)
    prompts = tuple(
        PromptInfo(id=f"{KNOWN}-{n:03}", kind=KNOWN, text=f"What is {n} + {n}?", answer=str(2 * n))
        for n in range(tasks)
    )
    run = RunResult(
        imagebuilder="0.1.0",
        stack="cu130",
        config_digest=IMAGE.text,
        manifest_digest=Digest.of(b"a manifest").text,
        runtime="docker",
        scenario=Scenario(
            stack="cu130",
            model="/models/Kimi-K2.5",
            draft="/models/Kimi-K2.5-EAGLE3",
            baseline=("python3", "-m", "sglang.launch_server", "--model-path", "/models/Kimi-K2.5"),
            eagle3=("python3", "-m", "sglang.launch_server", "--speculative-algorithm", "EAGLE3"),
            load=load,
            answer_tokens=1024,
            require=require or Requirements(),
            prompts=Digest.of(b"prompts").text,
        ),
        prompts=prompts,
        planned_units=most_units(load) if planned_units is None else planned_units,
        units=units,
        rounds=rounds,
        started=START.isoformat(),
        ended=maker.clock.isoformat(),
    )
    return replace(run, **changes)


@dataclass(kw_only=True)
class _Maker:
    load: Load
    random: Random
    noise: float
    accept: float | None
    right: Callable[[ArmName, int, int], bool]
    text: Callable[[ArmName, int, int], str] | None
    cached: Callable[[ArmName, int], int]
    tasks: int
    requests: int
    clock: datetime = START
    surveys: dict[ArmName, int] = field(default_factory=lambda: dict.fromkeys(ARMS, 0))
    loads: dict[ArmName, int] = field(default_factory=lambda: dict.fromkeys(ARMS, 0))

    def rounds(self, speeds: Mapping[ArmName, Speed], units: int) -> tuple[RoundResult, ...]:
        found: list[RoundResult] = []
        side_by_side = self.load.pairing == "rounds"
        if side_by_side:
            found += [self.survey(arm, 0, 0) for arm in ARMS]
        for unit in range(units):
            for arm in ARMS if unit % 2 == 0 else reversed(ARMS):
                start = 0 if side_by_side else unit
                if not side_by_side:
                    found.append(self.survey(arm, unit, start))
                for index in range(1 if side_by_side else max(1, self.load.rounds // self.load.starts)):
                    for level in self.load.concurrency:
                        speed = speeds[arm]
                        value = speed if isinstance(speed, float | int) else speed[level]
                        found.append(
                            self.load_round(
                                arm, level=level, unit=unit, start=start, index=index, speed=float(value)
                            )
                        )
        if side_by_side and units:
            found += [self.survey(arm, units - 1, 0) for arm in ARMS]
        return tuple(found)

    def survey(self, arm: ArmName, unit: int, start: int) -> RoundResult:
        time = self.surveys[arm]
        self.surveys[arm] += 1
        requests = [self.asked(arm, n, time) for n in range(self.requests)]
        for task in range(self.tasks):
            right = self.right(arm, task, time)
            requests.append(
                RequestResult(
                    prompt=f"{KNOWN}-{task:03}",
                    kind=KNOWN,
                    started_s=0.0,
                    e2e_s=1.0,
                    prompt_tokens=60,
                    output_tokens=40,
                    verify_count=self.verify(arm, 40, 1.1 if (self.accept or 0) > 1.2 else 1.0),
                    finish="stop",
                    text=f"Answer: {2 * task if right else 'about a hundred'}",
                    correct=right,
                )
            )
        level = max(self.load.concurrency)
        return self.made(
            arm, "survey", level=level, unit=unit, start=start, index=0, wall=60.0, requests=requests
        )

    def verify(self, arm: ArmName, tokens: int, factor: float) -> int | None:
        return max(1, round(tokens / (self.accept * factor))) if self.accept and arm == EAGLE3 else None

    def asked(self, arm: ArmName, number: int, time: int) -> RequestResult:
        kind = KINDS[number % len(KINDS)]
        tokens = 400
        factor = 0.85 + 0.07 * (number % len(KINDS)) if (self.accept or 0) > 1.2 else 1.0
        return RequestResult(
            prompt=f"{kind}-{number:02}",
            kind=kind,
            started_s=0.0,
            e2e_s=4.0,
            prompt_tokens=100,
            output_tokens=tokens,
            verify_count=self.verify(arm, tokens, factor),
            finish="length",
            text=self.text(arm, number, time) if self.text else f"The answer to {number} is long.",
        )

    def load_round(
        self, arm: ArmName, *, level: int, unit: int, start: int, index: int, speed: float
    ) -> RoundResult:
        time = self.loads[arm]
        self.loads[arm] += 1
        real = speed * math.exp(self.random.gauss(0, self.noise))
        tokens = 400
        per_piece = 2 if arm == EAGLE3 else 1
        requests = []
        for number in range(self.requests):
            own = real / level * math.exp(self.random.gauss(0, 0.08))
            first = 0.05 * (1 + 0.1 * level) * math.exp(self.random.gauss(0, 0.25))
            pieces = 20
            gap = (tokens / pieces) / own
            times = tuple(first + n * gap for n in range(pieces + 1))
            kind = KINDS[number % len(KINDS)]
            requests.append(
                RequestResult(
                    prompt=f"{kind}-{number:02}",
                    kind=kind,
                    started_s=0.0,
                    e2e_s=times[-1],
                    times=times,
                    tokens=(per_piece, *(tokens // pieces for _ in range(pieces))),
                    prompt_tokens=100,
                    output_tokens=tokens,
                    cached_tokens=self.cached(arm, time),
                    finish="length",
                    text=self.text(arm, number, time) if self.text else f"The answer to {number} is long.",
                )
            )
        wall = tokens * self.requests / real
        return self.made(
            arm, "load", level=level, unit=unit, start=start, index=index, wall=wall, requests=requests
        )

    def made(
        self,
        arm: ArmName,
        stage: Any,
        *,
        level: int,
        unit: int,
        start: int,
        index: int,
        wall: float,
        requests: list[RequestResult],
    ) -> RoundResult:
        began = self.clock.isoformat(timespec="milliseconds")
        self.clock += timedelta(seconds=wall + 1)
        return RoundResult(
            arm=arm,
            stage=stage,
            level=level,
            unit=unit,
            start=start,
            index=index,
            wall_s=wall,
            began=began,
            requests=tuple(requests),
        )


def with_host(run: RunResult, gpus: int = 8) -> RunResult:
    """The run on a machine with GPUs that were sampled."""
    random = Random(3)
    samples = tuple(
        HostSample(
            at_s=float(at),
            gpu=gpu,
            sm_mhz=int(2300 + 60 * math.sin(at / 40 + gpu) + random.gauss(0, 8)),
            power_w=round(430 + 90 * math.sin(at / 55) + random.gauss(0, 12), 1),
            temperature_c=int(52 + gpu + min(14, at / 30)),
            utilisation=0.97,
        )
        for at in range(0, 1800, 5)
        for gpu in range(gpus)
    )
    return replace(
        run,
        host=HostFacts(
            machine="Linux 6.12 x86_64",
            driver="590.48.01",
            cuda="13.1",
            gpus=tuple(
                Gpu(
                    index=n,
                    name="NVIDIA RTX PRO 6000 Blackwell",
                    uuid=f"GPU-{n}",
                    capability="12.0",
                    memory=96 << 30,
                )
                for n in range(gpus)
            ),
            samples=samples,
        ),
        servers=tuple(
            ServerFacts(arm=arm, start=n, command=("x",), startup_s=412.0 + n, info={}, accept_length=2.3)
            for n in range(run.units)
            for arm in ARMS
        ),
    )
