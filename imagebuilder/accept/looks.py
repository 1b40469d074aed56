"""When an acceptance may look at what it measured and decide, and how sure it must then be. Pure.

Looking again whenever the result is unclear, until it passes, makes false accepts likely. So looks are
planned before anything runs: one at the units the stack asks for and, where that stays unclear, one more
at twice as many. An error budget of 5 % is spent over them: 1 % at the first look (it decides only what is
very clear: Haybittle and Peto) and 4 % at the last. A plan with one look spends the 5 % there.

What stops at its first look shows an ordinary interval of 95 %. What goes on because a bound was open shows
an interval of 95 % that knows of it (sequential.py), and that bound is held against the same interval. So
intervals cover the truth in 95 % of runs whatever the true ratio is, and it is passed by mistake in 2.5 %
(benchmarks/statistics.py). Figures without such an interval (accept length, an earlier result) are decided
at 96 % there, which errs no more often however the looks depend on each other (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from imagebuilder.accept.model import RunResult
from imagebuilder.accept.sequential import Continued
from imagebuilder.accept.statistics import Effect, Interval
from imagebuilder.stack.model import Load

FEWEST_TO_EXTEND = 3
MOST_TO_EXTEND = 6
"""Two units say nothing at a first look; who asks for more than six asked for what they need."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A moment to decide: after so many units. Both numbers are probabilities that an interval misses.

    decides: of the interval that must be wholly on one side of a bound; shown: of the one that is reported.
    after: the look before this one, which left something open.
    """

    units: int
    decides: float = 0.05
    shown: float = 0.05
    after: Look | None = None


def planned_looks(first: int, most: int) -> tuple[Look, ...]:
    """The looks of a run of `first` units, with one more at `most` units where that is more."""
    if most <= first:
        return (Look(units=first),)
    early = Look(units=first, decides=0.01)
    return early, Look(units=most, decides=0.04, after=early)


def first_units(load: Load) -> int:
    """How many units a stack asks for: paired rounds, or pairs of server starts."""
    return load.rounds if load.pairing == "rounds" else load.starts


def most_units(load: Load, *, extend: bool = True) -> int:
    """How many units a run may come to at most. extend: as many again are measured where it is unclear."""
    first = first_units(load)
    return 2 * first if extend and FEWEST_TO_EXTEND <= first <= MOST_TO_EXTEND else first


def looks_of(run: RunResult) -> tuple[Look, ...]:
    """The looks that were planned for this run."""
    return planned_looks(first_units(run.scenario.load), run.planned_units)


def current_look(run: RunResult) -> Look | None:
    """The look that this run stands at; None between looks: nothing may be decided there."""
    return next((look for look in looks_of(run) if look.units == run.units), None)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with the interval that is reported. decides: the one that a bound is held against.

    Either is None where it cannot be said: one unit only, or (decides) no look was planned at this point.
    units: of what the figure is a mean.
    """

    value: float
    units: int
    shown: Interval | None = None
    decides: Interval | None = None


def estimate(
    effect: Effect, look: Look | None, early: Effect | None = None, bound: float | None = None
) -> Estimate:
    """What an effect says at a look. early: the same at the look before; bound: what it is held against."""
    shown = effect.interval(look.shown if look else 0.05)
    decides = effect.interval(look.decides) if look else None
    before = early.interval(look.after.decides) if look and look.after and early else None
    if look and look.after and early and before and bound is not None:
        if not (before.above(bound) or before.below(bound)):
            continued = Continued(first=early, last=effect, decided=look.after.decides)
            shown = continued.interval(look.shown, bound)
        decides = shown  # what was clear at the first look has spent no more than that look's share
    return Estimate(value=effect.mean, units=effect.units, shown=shown, decides=decides)


def first_part(run: RunResult) -> RunResult | None:
    """What the look before this one saw of a run; None: this is the first."""
    look = current_look(run)
    if look is None or look.after is None:
        return None
    units = look.after.units
    return replace(run, units=units, rounds=tuple(r for r in run.rounds if r.unit < units))
