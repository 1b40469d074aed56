"""The requirements on speed: throughput, time to the first token, accept length, no regression. Pure."""

from __future__ import annotations

from dataclasses import replace

from imagebuilder.accept.figures import AcceptLength, LevelFigures
from imagebuilder.accept.looks import Estimate
from imagebuilder.accept.requirement import Requirement, at_least, at_most, held, shown

NO_SPECULATION = 1.05
"""At this accept length or below the draft does nothing: a wrong setting, not noise (sglang#21272)."""
REGRESSION_MARGIN = 0.03
"""How much slower than the named earlier result still counts as no regression."""

_TRANSPARENT = (
    "the draft does nothing. That is a wrong setting, not noise: --speculative-algorithm must be EAGLE3 for "
    "an EAGLE-3 draft (EAGLE gives exactly 1.00 and no error), and the draft must be made for this model"
)


def speedup(figures: LevelFigures, bound: float) -> Requirement:
    """EAGLE-3's throughput over the baseline's, at a level."""
    found = figures.speedup
    return held(
        Requirement(
            key="min-speedup",
            level=figures.level,
            counts=figures.decisive,
            outcome=at_least(found.decides if found else None, bound),
            wanted=f"> {bound:g}",
            seen=shown(found, 2, "×"),
            estimate=found,
            bound=bound,
        )
    )


def output_tok_s(figures: LevelFigures, bound: float) -> Requirement:
    """EAGLE-3's throughput at a level, in output tokens per second."""
    found = figures.eagle3.throughput
    return held(
        Requirement(
            key="min-output-tok-s",
            level=figures.level,
            counts=figures.decisive,
            outcome=at_least(found.decides if found else None, bound),
            wanted=f"> {bound:g} tok/s",
            seen=shown(found, 1, " tok/s"),
            estimate=found,
            bound=bound,
        )
    )


def ttft_p99(figures: LevelFigures, bound: float) -> Requirement:
    """EAGLE-3's 99th percentile of the time to the first token at a level, in ms."""
    found = figures.eagle3.ttft_p99
    return held(
        Requirement(
            key="max-ttft-p99-ms",
            level=figures.level,
            counts=figures.decisive,
            outcome=at_most(found.decides if found else None, bound),
            wanted=f"< {bound:g} ms",
            seen=shown(found, 0, " ms"),
            estimate=found,
            bound=bound,
        )
    )


def regression(level: int, decisive: bool, ratio: Estimate | None, name: str, why: str) -> Requirement:
    """EAGLE-3's throughput over that of an earlier result. why: what makes them incomparable, if anything."""
    bound = 1 - REGRESSION_MARGIN
    return held(
        Requirement(
            key="no-regression-against",
            level=level,
            counts=decisive,
            outcome="inconclusive" if why else at_least(ratio.decides if ratio else None, bound),
            wanted=f"> {bound:g} of {name}",
            seen=shown(ratio, 2, "×"),
            estimate=ratio,
            bound=bound,
            why=why,
        )
    )


def accept_length(found: AcceptLength, bound: float) -> Requirement:
    """Tokens per verify step, weighted by verify count."""
    estimate = found.overall
    row = Requirement(
        key="min-accept-length",
        outcome="inconclusive",
        wanted=f"> {bound:g}",
        seen=shown(estimate),
        estimate=estimate,
        bound=bound,
    )
    if estimate is None:
        return replace(row, why="the server told no verify counts: is speculation on, and is it SGLang?")
    if estimate.value <= NO_SPECULATION:
        return replace(row, outcome="fail", why=_TRANSPARENT)
    if estimate.shown is None:  # one survey at temperature 0: as it is
        return replace(row, outcome="pass" if estimate.value > bound else "fail", why="of one survey")
    return held(replace(row, outcome=at_least(estimate.decides, bound)))
