"""The requirements on quality, which comes before speed: known answers, and texts that stay alike. Pure."""

from __future__ import annotations

from dataclasses import replace

from imagebuilder.accept.answers import Answers
from imagebuilder.accept.divergence import Divergence
from imagebuilder.accept.requirement import (
    Outcome,
    Requirement,
    at_most,
    held,
    percent,
    points,
    unclear,
)

BLIND_BELOW = 0.5
"""A baseline that gets fewer known answers right than this cannot show that EAGLE-3 lost any."""


def known_answers(found: Answers | None, bound: float) -> Requirement:
    """EAGLE-3's share of right answers."""
    estimate = found.eagle3 if found else None
    interval = estimate.decides if estimate else None
    outcome: Outcome = "inconclusive"
    if interval is not None:
        outcome = "pass" if interval.low >= bound else "fail" if interval.below(bound) else "inconclusive"
    return held(
        Requirement(
            key="min-known-answers",
            outcome=outcome,
            wanted=f"≥ {100 * bound:g} %",
            seen=percent(estimate),
            estimate=estimate,
            bound=bound,
        )
    )


def answers_kept(found: Answers | None, margin: float) -> Requirement:
    """EAGLE-3 answers no worse than the baseline, but for a margin."""
    row = Requirement(
        key="known-answers-margin",
        outcome="inconclusive",
        wanted=f"at most {100 * margin:g} points fewer right than baseline",
        seen="not measured",
        bound=-margin,
    )
    if found is None:
        return replace(row, why="no known-answer task was answered by both arms")
    interval = found.extra.decides
    row = replace(
        row,
        seen=f"{percent(found.eagle3)} against {percent(found.baseline)}: {points(found.extra)}",
        estimate=found.extra,
    )
    if found.baseline.value < BLIND_BELOW:
        return replace(
            row,
            why=f"the baseline itself answers only {found.baseline.value:.0%} right and no loss could be "
            "seen: this model cannot do these tasks, or the image computes wrongly in both arms",
        )
    outcome: Outcome = "inconclusive"
    if interval is not None:
        outcome = (
            "pass"
            if interval.low >= -margin - 1e-9
            else "fail"
            if interval.below(-margin)
            else "inconclusive"
        )
    why = f"{len(found.broken)} of {found.tasks} tasks broke" if found.broken else ""
    if outcome == "inconclusive":
        why = "; ".join(filter(None, (unclear(found.extra, -margin), why)))
    return replace(row, outcome=outcome, why=why, more_may_help=outcome == "inconclusive")


def texts_kept(found: Divergence | None, limit: float) -> tuple[Requirement, ...]:
    """EAGLE-3's greedy texts leave the baseline's no oftener and no earlier than those leave each other."""
    key = "max-extra-divergence"
    wanted = f"< {limit:.0%} above the baseline's own"
    if found is None:
        why = "no noise floor: the baseline gave no two texts of one prompt under equal conditions"
        return (
            Requirement(
                key=key, outcome="inconclusive", wanted=wanted, seen="not measured", bound=limit, why=why
            ),
        )
    rows = []
    for what, extra, across, floor in (
        ("texts that differ", found.extra_differing, found.across.differing, found.floor.differing),
        ("text after the first difference", found.extra_lost, found.across.lost, found.floor.lost),
    ):
        outcome = at_most(extra.decides, limit)
        rows.append(
            held(
                Requirement(
                    key=key,
                    outcome=outcome,
                    wanted=wanted,
                    seen=f"{what}: {across:.0%} against a floor of {floor:.0%}, {points(extra)}",
                    estimate=extra,
                    bound=limit,
                )
            )
        )
    return tuple(rows)
