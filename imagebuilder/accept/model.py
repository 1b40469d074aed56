"""What an acceptance measured, as values: every request, round, server and sample, and nothing judged.

Times are seconds of the client's monotonic clock. Tokens are the server's own count. `codec` turns these
values into JSON and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from imagebuilder.stack.model import Gpus, Load, Pairs, Requirements

SCHEMA = 1
"""Of the JSON form; fields are added under one version, never renamed."""

ArmName = Literal["baseline", "eagle3"]
BASELINE: ArmName = "baseline"
EAGLE3: ArmName = "eagle3"
ARMS: tuple[ArmName, ArmName] = (BASELINE, EAGLE3)

RuntimeKind = Literal["docker", "kubernetes", "process"]
"""`docker`: in containers here; `kubernetes`: in a pod; `process`: a rehearsal without the image."""
OF_THE_IMAGE: tuple[RuntimeKind, ...] = ("docker", "kubernetes")

Stage = Literal["survey", "load"]
"""`survey`: every prompt once, untimed, for counters, answers and texts; `load`: what is timed."""

KNOWN = "known"
"""The kind of prompt whose answer is known; every other kind is load."""


@dataclass(frozen=True, kw_only=True)
class RequestResult:
    """One request, from sending to its last token.

    started_s: after the round's start. times: of each piece that brought tokens, seconds after sending;
    tokens: how many it brought (speculation brings several at once). Both are empty in a survey, which does
    not stream. exact: the server counted each piece; else its total was spread evenly over the pieces.
    verify_count: verify steps of this answer (survey of a speculating server only). cached_tokens: of the
    prompt, found in the prefix cache; None: not told. finish: stop, length, abort, or empty.
    correct: of a known-answer task. error: what went wrong; what came before it is kept.
    """

    prompt: str
    kind: str
    started_s: float
    e2e_s: float
    times: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()
    exact: bool = True
    prompt_tokens: int | None = None
    output_tokens: int = 0
    cached_tokens: int | None = None
    verify_count: int | None = None
    finish: str = ""
    text: str = ""
    correct: bool | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Answered to its end."""
        return not self.error

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return self.times[0] if self.times else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Inter-token latencies, one per token after the first piece: a piece's gap divided by its tokens."""
        gaps = (later - earlier for earlier, later in pairwise(self.times))
        return tuple(gap / n for gap, n in zip(gaps, self.tokens[1:], strict=True) for _ in range(n))

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first piece; None where there is no such token."""
        after = sum(self.tokens[1:])
        return (self.times[-1] - self.times[0]) / after if after else None

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step, as SGLang defines it (completion tokens / verify count)."""
        return self.output_tokens / self.verify_count if self.verify_count else None


@dataclass(frozen=True, kw_only=True)
class ClientCost:
    """What the measuring itself cost. cpu_s: processor time of the client's thread during the round.

    lag_mean_s, lag_max_s: how late its event loop ran what was due: an upper bound of what a time is off.
    """

    cpu_s: float
    lag_mean_s: float
    lag_max_s: float


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """One arm at one level, once through the prompts in a closed loop of `level` streams.

    unit: what is compared in pairs: both arms have a round of the same unit and index. Counted from 0: the
    round where both servers stand side by side, the pair of server starts where they take turns.
    start: which start of this arm's server, from 0. index: which round within the unit, from 0.
    wall_s: from the first request sent to the last answer complete. began: UTC, ISO 8601.
    """

    arm: ArmName
    stage: Stage
    level: int
    unit: int
    start: int
    index: int
    wall_s: float
    began: str
    requests: tuple[RequestResult, ...]
    client: ClientCost | None = None

    @property
    def output_tokens(self) -> int:
        """Of all requests, failed ones included as far as they came."""
        return sum(r.output_tokens for r in self.requests)

    @property
    def output_tok_s(self) -> float:
        """Output tokens per second over the whole round."""
        return self.output_tokens / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def errors(self) -> tuple[RequestResult, ...]:
        """The requests that failed."""
        return tuple(r for r in self.requests if r.error)


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """One start of a server. info: `/server_info`, secrets redacted; empty where there is none.

    startup_s: from the start to the first healthy answer. command: as started, in the container.
    accept_length: the server's own running average when it was stopped (of little worth in short runs).
    """

    arm: ArmName
    start: int
    command: tuple[str, ...]
    startup_s: float
    info: dict[str, Any]
    accept_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting in which the two servers differ, although nobody asked for it.

    weight: `expected` (speculation needs it), `noted` (in the report), `unfair` (refuses the comparison).
    Values are JSON texts.
    """

    setting: str
    baseline: str
    eagle3: str
    weight: Literal["expected", "noted", "unfair"]
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SmokeCheck:
    """One thing that the probe looked at in the container.

    status `warning`: worth knowing, stops nothing; `unseen`: could not be looked at here (no GPU, no torch);
    `waived`: failed, accepted on purpose.
    code: as findings have it, such as `acceptance.import`.
    """

    code: str
    subject: str
    status: Literal["ok", "failed", "warning", "waived", "unseen"]
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """What the probe found. facts: versions, GPUs and folders as text, for the report's environment part."""

    checks: tuple[SmokeCheck, ...]
    facts: Pairs = ()
    wall_s: float = 0.0

    @property
    def failed(self) -> tuple[SmokeCheck, ...]:
        """What stands in the way."""
        return tuple(c for c in self.checks if c.status == "failed")

    @property
    def unseen(self) -> tuple[SmokeCheck, ...]:
        """What could not be looked at."""
        return tuple(c for c in self.checks if c.status == "unseen")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of the host. power_limit_w in watts, memory in bytes."""

    index: int
    name: str
    uuid: str
    capability: str
    memory: int
    power_limit_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One GPU at one moment. at_s: after the run's start. reasons: why its clocks are lower, NVML's bits.

    Clocks in MHz, power in W, temperature in °C, utilisation from 0 to 1, memory in bytes, energy in J since
    the driver was loaded. None: not told by this GPU.
    """

    at_s: float
    gpu: int
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilisation: float | None = None
    memory_used: int | None = None
    energy_j: float | None = None
    reasons: int | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The machine that was measured on. note: why there is nothing about GPUs, where there is nothing.

    throttling: what was noticed while load was on, as sentences. path_ms: a round trip to the servers, where
    they are not on the machine that asks them.
    """

    machine: str = ""
    driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    samples: tuple[HostSample, ...] = ()
    throttling: tuple[str, ...] = ()
    note: str = ""
    path_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class PromptInfo:
    """A prompt that was asked. text: without the chat template. answer: of a known-answer task."""

    id: str
    kind: str
    text: str
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is run, completely decided: both commands, the load, and what must hold.

    equalised: what was added so that speculation's silent changes are in both arms: (setting, why).
    answer_tokens: most tokens of a known-answer task's answer. prompts: digest of everything that was asked.
    secrets: names only. files: digest of the stack's own files, which a rehearsal runs.
    """

    stack: str
    model: str
    draft: str
    baseline: tuple[str, ...]
    eagle3: tuple[str, ...]
    baseline_env: Pairs = ()
    eagle3_env: Pairs = ()
    secrets: tuple[str, ...] = ()
    gpus: Gpus = "all"
    shm: int = 0
    port: int = 30000
    load: Load
    answer_tokens: int
    require: Requirements
    equalised: Pairs = ()
    prompts: str = ""
    files: str = ""

    def command(self, arm: ArmName) -> tuple[str, ...]:
        """The words that start this arm's server."""
        return self.baseline if arm == BASELINE else self.eagle3

    def env(self, arm: ArmName) -> Pairs:
        """The variables this arm's server gets."""
        return self.baseline_env if arm == BASELINE else self.eagle3_env


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Everything that one acceptance measured; also of one that was broken off (`failure` says why).

    config_digest: of the image, None where no image was run. runtime `process`: a rehearsal, which accepts
    nothing. units: how many were finished in both arms. planned_units: how many there would be at most.
    """

    schema: int = SCHEMA
    imagebuilder: str
    stack: str
    config_digest: str | None
    manifest_digest: str | None = None
    runtime: RuntimeKind
    scenario: Scenario
    prompts: tuple[PromptInfo, ...] = ()
    planned_units: int
    units: int = 0
    smoke: SmokeReport | None = None
    servers: tuple[ServerFacts, ...] = ()
    differences: tuple[Difference, ...] = ()
    rounds: tuple[RoundResult, ...] = ()
    host: HostFacts = HostFacts()
    started: str
    ended: str = ""
    failure: str = ""

    def load_rounds(self, arm: ArmName, level: int) -> tuple[RoundResult, ...]:
        """The timed rounds of an arm at a level, in the order they ran."""
        return tuple(r for r in self.rounds if r.stage == "load" and r.arm == arm and r.level == level)

    def surveys(self, arm: ArmName) -> tuple[RoundResult, ...]:
        """The untimed rounds of an arm: counters, answers and texts."""
        return tuple(r for r in self.rounds if r.stage == "survey" and r.arm == arm)
