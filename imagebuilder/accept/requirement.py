"""One thing that must hold, judged: pass, fail or inconclusive, with its numbers. Pure.

A bound is held against an interval, never against a mean: wholly on the right side is `pass`, wholly on the
wrong one `fail`, anything else `inconclusive`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from imagebuilder.accept.looks import Estimate
from imagebuilder.accept.statistics import Interval

Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One row of the verdict.

    key: as the stack file has it, where it has it. level: of concurrency; None: of the whole run. counts:
    whether the overall verdict depends on it. wanted, seen: for people; estimate, bound: the numbers.
    why: what an outcome other than pass comes from, or what to know of a pass. more_may_help: whether more
    units could decide what is inconclusive.
    """

    key: str
    outcome: Outcome
    wanted: str
    seen: str
    level: int | None = None
    counts: bool = True
    estimate: Estimate | None = None
    bound: float | None = None
    why: str = ""
    more_may_help: bool = False

    @property
    def title(self) -> str:
        """With its level."""
        return f"{self.key} at {self.level}" if self.level is not None else self.key


def at_least(interval: Interval | None, bound: float) -> Outcome:
    """Whether a figure is above a bound, as far as its interval tells."""
    if interval is None:
        return "inconclusive"
    return "pass" if interval.above(bound) else "fail" if interval.below(bound) else "inconclusive"


def at_most(interval: Interval | None, bound: float) -> Outcome:
    """Whether a figure is below a bound, as far as its interval tells."""
    if interval is None:
        return "inconclusive"
    return "pass" if interval.below(bound) else "fail" if interval.above(bound) else "inconclusive"


def shown(estimate: Estimate | None, digits: int = 2, unit: str = "") -> str:
    """`1.07× [1.03, 1.11]`, with the interval where there is one, and one digit more where that is narrow."""
    if estimate is None:
        return "not measured"
    interval = estimate.shown
    if interval is None:
        return f"{estimate.value:.{digits}f}{unit}"
    if 0 < interval.high - interval.low < 3 * 10.0**-digits:
        digits += 1
    return f"{estimate.value:.{digits}f}{unit} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def unclear(estimate: Estimate | None, bound: float | None) -> str:
    """Why an interval does not decide."""
    if estimate is None:
        return "nothing was measured"
    if estimate.shown is None:
        return f"{estimate.units} unit{'s' * (estimate.units != 1)} cannot tell noise from difference"
    if estimate.decides is None:
        return "the run ended between two planned looks, where nothing is decided"
    if bound is not None and (estimate.shown.above(bound) or estimate.shown.below(bound)):
        return "not clear enough for a first look, which has to be surer than the interval shown"
    return "the noise is larger than the difference"


def held(requirement: Requirement) -> Requirement:
    """The reason and the hope for what is inconclusive."""
    if requirement.outcome != "inconclusive" or requirement.why:
        return requirement
    return replace(requirement, why=unclear(requirement.estimate, requirement.bound), more_may_help=True)


def percent(estimate: Estimate | None) -> str:
    """A share, as `98.3 %`."""
    return "not measured" if estimate is None else f"{100 * estimate.value:.1f} %"


def points(estimate: Estimate) -> str:
    """A difference of shares, as `-1.2 points [-2.0, -0.4]`."""
    text = f"{100 * estimate.value:+.1f} points"
    if estimate.shown:
        text += f" [{100 * estimate.shown.low:+.1f}, {100 * estimate.shown.high:+.1f}]"
    return text
