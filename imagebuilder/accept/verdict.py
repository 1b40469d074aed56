"""A run, judged: every requirement with its numbers, and one verdict over all that count. Pure.

Any failure makes it `fail`, anything unclear `inconclusive`; only what passes everything that counts is
`pass`. All levels that count must pass, so no correction for their number is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagebuilder.accept import fairness, quality, speed
from imagebuilder.accept.answers import Answers, answers
from imagebuilder.accept.divergence import Divergence, divergence
from imagebuilder.accept.figures import (
    AcceptLength,
    LevelFigures,
    accept_length,
    arm_effect,
    exponential,
    levels_of,
)
from imagebuilder.accept.looks import Look, current_look, looks_of
from imagebuilder.accept.model import EAGLE3, RunResult
from imagebuilder.accept.notes import remarks
from imagebuilder.accept.requirement import Outcome, Requirement, shown
from imagebuilder.accept.statistics import difference


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """outcome: of everything that counts. notes: what a reader should know besides. look: where it was taken;
    None between planned looks. looks: all that were planned."""

    outcome: Outcome
    requirements: tuple[Requirement, ...]
    levels: tuple[LevelFigures, ...]
    accept_length: AcceptLength
    answers: Answers | None
    divergence: Divergence | None
    looks: tuple[Look, ...]
    look: Look | None
    notes: tuple[str, ...] = ()

    def of(self, outcome: Outcome) -> tuple[Requirement, ...]:
        """The requirements that count and came out like this."""
        return tuple(r for r in self.requirements if r.counts and r.outcome == outcome)

    @property
    def headline(self) -> str:
        """One sentence: the speedup at the levels that count, and what stood in the way."""
        ratios = [
            f"{shown(f.speedup, 2, '×')} at {f.level} stream{'s' * (f.level != 1)}"
            for f in self.levels
            if f.decisive and f.speedup
        ]
        text = f"EAGLE-3 over baseline: {', '.join(ratios)}" if ratios else "no speedup was measured"
        wrong = self.of("fail") or self.of("inconclusive")
        if wrong:
            titles = list(dict.fromkeys(r.title for r in wrong))
            text += f"; {self.outcome}: {', '.join(titles)}"
        return text


def judge(run: RunResult, earlier: RunResult | None = None) -> Verdict:
    """The verdict on a run. earlier: the result that `no-regression-against` names; None: there is none."""
    levels = levels_of(run)
    found_answers, found_divergence, length = answers(run), divergence(run), accept_length(run)
    require = run.scenario.require
    rows: list[Requirement | None] = [
        fairness.whole(run),
        fairness.smoke(run),
        fairness.fair(run),
        fairness.requests_answered(levels),
        fairness.cache_clean(run, levels),
        quality.answers_kept(found_answers, require.known_answers_margin),
    ]
    if require.min_known_answers is not None:
        rows.append(quality.known_answers(found_answers, require.min_known_answers))
    if require.max_extra_divergence is not None:
        rows.extend(quality.texts_kept(found_divergence, require.max_extra_divergence))
    if require.min_accept_length is not None:
        rows.append(speed.accept_length(length, require.min_accept_length))
    for figures in levels:
        if require.min_speedup is not None:
            rows.append(speed.speedup(figures, require.min_speedup))
        if require.min_output_tok_s is not None:
            rows.append(speed.output_tok_s(figures, require.min_output_tok_s))
        if require.max_ttft_p99_ms is not None:
            rows.append(speed.ttft_p99(figures, require.max_ttft_p99_ms))
        if require.no_regression_against is not None:
            rows.append(_regression(run, earlier, figures, require.no_regression_against))
    requirements = tuple(row for row in rows if row)
    return Verdict(
        outcome=_overall(requirements),
        requirements=requirements,
        levels=levels,
        accept_length=length,
        answers=found_answers,
        divergence=found_divergence,
        looks=looks_of(run),
        look=current_look(run),
        notes=remarks(run, levels, found_divergence, length),
    )


def settled(run: RunResult, earlier: RunResult | None = None) -> bool:
    """Whether the run may stop here: it stands at a planned look and more units would change nothing.

    False between looks. At the last look there is nothing left to measure, so it is settled whatever it says.
    """
    look = current_look(run)
    if look is None:
        return False
    verdict = judge(run, earlier)
    more = any(r.counts and r.more_may_help for r in verdict.requirements)
    return look.units >= run.planned_units or verdict.outcome == "fail" or not more


def _overall(requirements: tuple[Requirement, ...]) -> Outcome:
    outcomes = {r.outcome for r in requirements if r.counts}
    return "fail" if "fail" in outcomes else "inconclusive" if "inconclusive" in outcomes else "pass"


def _regression(run: RunResult, earlier: RunResult | None, figures: LevelFigures, name: str) -> Requirement:
    if earlier is None:
        why = f"there is no earlier result named {name} (imagebuilder results)"
        return speed.regression(figures.level, figures.decisive, None, name, why)
    unlike = unlike_loads(run, earlier)
    if unlike:
        why = f"{name} was measured otherwise: {', '.join(unlike)}"
        return speed.regression(figures.level, figures.decisive, None, name, why)
    now, then = (arm_effect(r, EAGLE3, figures.level) for r in (run, earlier))
    ratio = exponential(difference(then, now), current_look(run)) if now and then else None
    why = "" if ratio else f"{name} has nothing at this level"
    return speed.regression(figures.level, figures.decisive, ratio, name, why)


def unlike_loads(one: RunResult, other: RunResult) -> tuple[str, ...]:
    """In what two runs differ so that their throughputs cannot be compared."""
    a, b = one.scenario, other.scenario
    gpus = [sorted(gpu.name for gpu in run.host.gpus) for run in (one, other)]
    checks = (
        ("model", a.model == b.model),
        ("prompts", a.prompts == b.prompts),
        ("requests", a.load.requests == b.load.requests),
        ("output tokens", a.load.output_tokens == b.load.output_tokens),
        ("GPUs", gpus[0] == gpus[1]),
    )
    return tuple(name for name, alike in checks if not alike)
