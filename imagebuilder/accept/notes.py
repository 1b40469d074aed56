"""What a reader of a verdict should know besides: what it does not cover, and what looks odd. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from imagebuilder.accept.divergence import Divergence
from imagebuilder.accept.figures import ASSUMED_START_VARIATION, AcceptLength, LevelFigures, speedup_effect
from imagebuilder.accept.model import EAGLE3, RunResult
from imagebuilder.accept.speed import NO_SPECULATION

FAR = 0.10
"""Extra divergence from which on there is a warning where the stack sets no limit."""
OTHER_LENGTH = 0.05
"""By how much the arms' answers may differ in length without a remark."""


def remarks(
    run: RunResult,
    levels: tuple[LevelFigures, ...],
    divergence: Divergence | None,
    length: AcceptLength,
) -> tuple[str, ...]:
    """Sentences, in the order of their weight."""
    return (
        *_scope(run),
        *_at_levels(levels),
        *_unlimited(run, divergence, length),
        *(f"Throttling: {text}" for text in run.host.throttling),
    )


def _scope(run: RunResult) -> Iterator[str]:
    if run.runtime == "process":
        yield "A rehearsal without a container: it accepts no image."
    if run.host.path_ms is not None:
        yield (
            "The servers were reached through kubectl port-forward. A round trip took "
            f"{run.host.path_ms:.1f} ms, which every request of both servers takes on top: times to the "
            "first token are longer by it, and a speedup looks a little smaller than it is."
        )
    load = run.scenario.load
    starts = {r.start for level in load.concurrency for r in run.load_rounds(EAGLE3, level)}
    if len(starts) == 1 and load.start_variation is None:
        yield (
            f"Each server was started once, so that starts of one differ by {ASSUMED_START_VARIATION:.0%} "
            'is assumed and in the intervals. Measure it once with pairing = "starts", and declare it as '
            "start-variation."
        )
    effects = [speedup_effect(run, level) for level in load.concurrency] if len(starts) > 1 else []
    scatters = [effect.scatter for effect in effects if effect and effect.scatter is not None]
    if scatters:
        yield (
            f"Starts of one server differed by {max(scatters):.1%} (standard deviation). "
            f"start-variation = {max(scatters):.2g} lets these servers be compared side by side, by rounds."
        )


def _at_levels(levels: tuple[LevelFigures, ...]) -> Iterator[str]:
    slow = [
        str(f.level)
        for f in levels
        if not f.decisive and f.speedup and f.speedup.shown and f.speedup.shown.below(1)
    ]
    if slow:
        yield f"EAGLE-3 is slower at {' and '.join(slow)} streams, which does not count here."
    for f in levels:
        a, b = f.baseline.tokens, f.eagle3.tokens
        if a and b and abs(math.log(b / a)) > OTHER_LENGTH:
            yield f"At {f.level} the arms wrote answers of different length: {a:.0f} and {b:.0f} tokens."


def _unlimited(run: RunResult, divergence: Divergence | None, length: AcceptLength) -> Iterator[str]:
    """What would have failed, had the stack asked for it."""
    require = run.scenario.require
    extra = divergence.extra_lost.shown if divergence else None
    if require.max_extra_divergence is None and divergence and extra and extra.above(FAR):
        yield (
            "EAGLE-3's texts leave the baseline's much earlier than those leave each other: "
            f"{divergence.across.lost:.0%} of a text comes after the first difference, "
            f"{divergence.floor.lost:.0%} is the noise floor."
        )
    overall = length.overall
    if require.min_accept_length is None and overall and overall.value <= NO_SPECULATION:
        yield f"Accept length is {overall.value:.2f}: the draft does nothing."
