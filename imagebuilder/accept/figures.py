"""What a run measured, per level: throughput, latencies, speedup, accept length, cached prompts. Pure.

Throughputs and latencies are positive and their noise is relative, so means and intervals are made of
logarithms and given back as figures: a speedup is the exponential of a mean difference of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from imagebuilder.accept.looks import Estimate, Look, current_look, estimate, first_part
from imagebuilder.accept.model import (
    ARMS,
    BASELINE,
    EAGLE3,
    KNOWN,
    ArmName,
    RequestResult,
    RoundResult,
    RunResult,
)
from imagebuilder.accept.statistics import (
    Effect,
    Interval,
    arms_effect,
    mean_effect,
    quantile,
    widened,
    within_groups,
)

ASSUMED_START_VARIATION = 0.02
"""What two starts of a server are taken to differ by where nobody measured it: rather too much, we think.

With 0 in its place, starts that differ by 1 % would make 27 % of images pass that are no faster.
"""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Quantiles of pooled samples, for pictures: no interval, samples of one run are not independent."""

    p10: float
    p50: float
    p90: float
    p99: float
    count: int


@dataclass(frozen=True, kw_only=True)
class ArmFigures:
    """One arm at one level. Times in ms, throughput in output tokens/s. None: nothing was measured.

    ttft_p99: of a unit, averaged over units. per_token: inter-token latency per token. cached: share of the
    prompts' tokens found in the prefix cache. tokens: mean output tokens of an answer.
    """

    throughput: Estimate | None
    ttft_p99: Estimate | None
    ttft: Spread | None
    per_token: Spread | None
    end_to_end: Spread | None
    stream_tok_s: Spread | None
    tokens: float
    requests: int
    failed: int
    cached: float | None


@dataclass(frozen=True, kw_only=True)
class LevelFigures:
    """Both arms at one level, and EAGLE-3's throughput over the baseline's."""

    level: int
    decisive: bool
    baseline: ArmFigures
    eagle3: ArmFigures
    speedup: Estimate | None

    def arm(self, name: ArmName) -> ArmFigures:
        """By name."""
        return self.baseline if name == BASELINE else self.eagle3


@dataclass(frozen=True, kw_only=True)
class AcceptLength:
    """Tokens per verify step, weighted by verify count: Σ tokens / Σ verify steps. by_kind: of the prompts.

    None: the server told no verify counts.
    """

    overall: Estimate | None
    by_kind: tuple[tuple[str, float], ...]


def levels_of(run: RunResult) -> tuple[LevelFigures, ...]:
    """Every level of the scenario, also where nothing was measured."""
    load = run.scenario.load
    decisive = load.decisive or load.concurrency
    return tuple(_level(run, level, level in decisive) for level in load.concurrency)


def _level(run: RunResult, level: int, decisive: bool) -> LevelFigures:
    return LevelFigures(
        level=level,
        decisive=decisive,
        baseline=_arm(run, BASELINE, level),
        eagle3=_arm(run, EAGLE3, level),
        speedup=_figure(run, lambda part: speedup_effect(part, level), run.scenario.require.min_speedup),
    )


def _figure(
    run: RunResult, effect_of: Callable[[RunResult], Effect | None], bound: float | None
) -> Estimate | None:
    """A figure of which a run, or the part of it that its first look saw, gives the logarithm."""
    effect, before = effect_of(run), first_part(run)
    if effect is None:
        return None
    return exponential(effect, current_look(run), effect_of(before) if before else None, bound)


def exponential(
    effect: Effect, look: Look | None, early: Effect | None = None, bound: float | None = None
) -> Estimate:
    """The estimate of an effect on logarithms, as a figure. bound: of the figure."""
    raw = estimate(effect, look, early, math.log(bound) if bound else None)
    return Estimate(
        value=math.exp(raw.value), units=raw.units, shown=_exp(raw.shown), decides=_exp(raw.decides)
    )


def _exp(interval: Interval | None) -> Interval | None:
    if interval is None or interval.high > 700:  # wider than floating point: says nothing
        return None
    return Interval(low=math.exp(interval.low), high=math.exp(interval.high))


def _arm(run: RunResult, arm: ArmName, level: int) -> ArmFigures:
    rounds = run.load_rounds(arm, level)
    requests = [r for one in rounds for r in one.requests]
    good = [r for r in requests if r.ok]
    require = run.scenario.require
    held = arm == EAGLE3
    return ArmFigures(
        throughput=_figure(
            run, lambda part: arm_effect(part, arm, level), require.min_output_tok_s if held else None
        ),
        ttft_p99=_figure(
            run, lambda part: _ttft_effect(part, arm, level), require.max_ttft_p99_ms if held else None
        ),
        ttft=spread(1000 * t for r in good if (t := r.ttft_s) is not None),
        per_token=spread(1000 * t for r in good for t in r.itl_s),
        end_to_end=spread(1000 * r.e2e_s for r in good),
        stream_tok_s=spread(1 / t for r in good if (t := r.tpot_s)),
        tokens=sum(r.output_tokens for r in good) / len(good) if good else 0.0,
        requests=len(requests),
        failed=len(requests) - len(good),
        cached=cached_share(good),
    )


def spread(values: Iterable[float]) -> Spread | None:
    """Quantiles of these samples."""
    pool = sorted(values)
    if not pool:
        return None
    p10, p50, p90, p99 = (quantile(pool, share) for share in (0.1, 0.5, 0.9, 0.99))
    return Spread(p10=p10, p50=p50, p90=p90, p99=p99, count=len(pool))


def cached_share(requests: Sequence[RequestResult]) -> float | None:
    """Share of the prompts' tokens that came from the prefix cache; None: the server does not tell."""
    told = [r for r in requests if r.cached_tokens is not None and r.prompt_tokens]
    total = sum(r.prompt_tokens or 0 for r in told)
    return sum(r.cached_tokens or 0 for r in told) / total if total else None


def arm_effect(run: RunResult, arm: ArmName, level: int) -> Effect | None:
    """Mean logarithm of an arm's throughput over its units; None where there is none."""
    logs = _unit_logs(run, run.load_rounds(arm, level), _log_throughput)
    if not logs:
        return None
    starts = len({r.start for r in run.load_rounds(arm, level)})
    effect = mean_effect(logs)
    return widened(effect, start_variation(run) ** 2) if starts == 1 else effect


def _ttft_effect(run: RunResult, arm: ArmName, level: int) -> Effect | None:
    logs = _unit_logs(run, run.load_rounds(arm, level), _ttft_p99)
    return mean_effect(logs) if logs else None


def _log_throughput(rounds: Sequence[RoundResult]) -> float | None:
    if any(r.output_tok_s <= 0 for r in rounds):
        return None
    return sum(math.log(r.output_tok_s) for r in rounds) / len(rounds)


def _ttft_p99(rounds: Sequence[RoundResult]) -> float | None:
    times = [1000 * t for one in rounds for r in one.requests if r.ok and (t := r.ttft_s)]
    return math.log(quantile(times, 0.99)) if times else None


def _unit_logs(
    run: RunResult, rounds: Sequence[RoundResult], figure: Callable[[Sequence[RoundResult]], float | None]
) -> list[float]:
    """A figure of each unit: of each start where an arm had several, else of each round."""
    by_start = len({r.start for r in rounds}) > 1
    units: dict[tuple[int, int], list[RoundResult]] = {}
    for one in rounds:
        units.setdefault((one.start, -1) if by_start else (one.unit, one.index), []).append(one)
    return [value for unit in units.values() if (value := figure(unit)) is not None]


def speedup_effect(run: RunResult, level: int) -> Effect | None:
    """Mean difference of log throughput, EAGLE-3 minus baseline; None where there is no pair of rounds.

    Where both arms were started several times, what differs between starts is measured: the unit is the
    start, and a straight drift of the machine over the whole run is taken out. Else rounds are paired, and
    the variation between starts, declared or assumed, is added to what their differences scatter.
    """
    pairs = paired_rounds(run, level)
    if not pairs:
        return None
    starts = [len({r.start for r in arm}) for arm in zip(*pairs, strict=True)]
    if min(starts) > 1 and run.scenario.load.start_variation is None:
        return _starts_effect(pairs)
    groups: dict[tuple[int, int], list[float]] = {}
    for base, eagle in pairs:
        log_ratio = math.log(eagle.output_tok_s / base.output_tok_s)
        groups.setdefault((base.start, eagle.start), []).append(log_ratio)
    known = start_variation(run) ** 2 * sum(1 / n for n in starts)
    return widened(within_groups(list(groups.values())), known)


def start_variation(run: RunResult) -> float:
    """Standard deviation of log throughput between two starts of one server: as declared, else assumed."""
    declared = run.scenario.load.start_variation
    return ASSUMED_START_VARIATION if declared is None else declared


def paired_rounds(run: RunResult, level: int) -> list[tuple[RoundResult, RoundResult]]:
    """(baseline, EAGLE-3) rounds of one unit and index, in which tokens came."""
    baseline, eagle3 = (
        {(r.unit, r.index): r for r in run.load_rounds(arm, level) if r.output_tok_s > 0} for arm in ARMS
    )
    return [(baseline[key], eagle3[key]) for key in sorted(baseline.keys() & eagle3.keys())]


def _starts_effect(pairs: Sequence[tuple[RoundResult, RoundResult]]) -> Effect:
    starts: dict[tuple[bool, int], list[RoundResult]] = {}
    for base, eagle in pairs:
        starts.setdefault((False, base.start), []).append(base)
        starts.setdefault((True, eagle.start), []).append(eagle)
    ordered = sorted(starts.items(), key=lambda item: min(r.began for r in item[1]))
    values = [sum(math.log(r.output_tok_s) for r in rounds) / len(rounds) for _, rounds in ordered]
    return arms_effect(values, [second for (second, _), _ in ordered])


def accept_length(run: RunResult) -> AcceptLength:
    """Of all answers with a verify count, known-answer tasks included; by kind of prompt for the report."""
    look = current_look(run)
    rounds = [r for r in run.rounds if r.arm == EAGLE3]
    told = [r for one in rounds for r in one.requests if r.ok and r.verify_count]
    if not told:
        return AcceptLength(overall=None, by_kind=())
    per_round = [
        _weighted(counted)
        for one in rounds
        if (counted := [r for r in one.requests if r.ok and r.verify_count])
    ]
    raw = estimate(mean_effect(per_round), look)
    overall = Estimate(value=_weighted(told), units=raw.units, shown=raw.shown, decides=raw.decides)
    kinds = sorted({r.kind for r in told}, key=lambda kind: (kind == KNOWN, kind))
    by_kind = tuple((kind, _weighted([r for r in told if r.kind == kind])) for kind in kinds)
    return AcceptLength(overall=overall, by_kind=by_kind)


def _weighted(requests: Sequence[RequestResult]) -> float:
    return sum(r.output_tokens for r in requests) / sum(r.verify_count or 0 for r in requests)
