"""Whether the statistics of an acceptance keep their word, by simulation with a known truth.

Thousands of acceptances are drawn for every number of units, with and without the extra look, with a machine
that drifts and with starts that differ, and judged by the functions that judge real ones. Each true ratio is
tried on the same draws: a shift of the second arm moves its effect and leaves the error as it is. Whether
an interval after a second look holds a value is asked of its p-value, of which the interval is made.
`python -m benchmarks.statistics` prints every case.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.measure import Row, at_least, at_most
from imagebuilder.accept.figures import ASSUMED_START_VARIATION
from imagebuilder.accept.looks import Estimate, Look, estimate, first_units, planned_looks
from imagebuilder.accept.requirement import at_least as above
from imagebuilder.accept.sequential import Continued
from imagebuilder.accept.statistics import Effect, arms_effect, mean_effect, widened
from imagebuilder.stack.model import Load

RUNS = 20_000
GIVE = 0.15
"""Of a coverage in %: one standard error of the simulation."""
NOISE = 0.02
FIXED = (2, 3, 4, 5, 6, 8, 12, 24)
EXTENDED = (3, 4, 5, 6)
TRUTHS = (0.90, 0.95, 0.98, 0.99, 1.00, 1.005, 1.01, 1.02, 1.03, 1.04, 1.05, 1.07, 1.10, 1.20)
ACCEPTED = (0.95, 1.00, 1.07, 1.10)
"""The truths of which it is told how many runs pass. Of all of them: how many intervals cover them."""
BOUND = 1.0
MISS = 0.05


@dataclass(frozen=True, kw_only=True)
class World:
    """What disturbs. noise: of one unit's log throughput; drift: from the run's first unit to its last one's
    end; starts: standard deviation between starts of a server; slow: share of units that are 10 % slower."""

    noise: float = NOISE
    drift: float = 0.0
    starts: float = 0.0
    slow: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """pairing: `rounds` or `starts`, as in a stack file. declared: start-variation, for rounds."""

    pairing: str
    units: int
    extended: bool
    world: World
    declared: float = 0.0

    @property
    def looks(self) -> tuple[Look, ...]:
        """As an acceptance would plan them."""
        return planned_looks(self.units, 2 * self.units if self.extended else self.units)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Shares of runs, for one true ratio."""

    passed: float
    failed: float
    covered: float
    extended: float


def simulate(case: Case, runs: int = RUNS, truths: Sequence[float] = TRUTHS) -> dict[float, Outcome]:
    """Draw acceptances with the true ratio 1 and see what every truth would have made of them."""
    random = Random(f"{case}")
    shifts = [math.log(truth) for truth in truths]
    counts = [[0, 0, 0, 0] for _ in truths]
    for _ in range(runs):
        effects = list(_effects(case, random))
        first = estimate(effects[0], case.looks[0])
        later = (
            Continued(first=effects[0], last=effects[1], decided=case.looks[0].decides)
            if case.extended
            else None
        )
        for count, truth, shift in zip(counts, truths, shifts, strict=True):
            _judge(first, later, math.log(BOUND) - shift, truth in ACCEPTED, count)
    return {
        truth: Outcome(passed=p / runs, failed=f / runs, covered=c / runs, extended=e / runs)
        for truth, (p, f, c, e) in zip(truths, counts, strict=True)
    }


def _judge(first: Estimate, later: Continued | None, bound: float, accepted: bool, count: list[int]) -> None:
    """Shifting the truth is the same as shifting the bound the other way, so the truth is 0."""
    outcome = above(first.decides, bound)
    if later is None or outcome != "inconclusive":
        count[0] += outcome == "pass"
        count[1] += outcome == "fail"
        count[2] += first.shown is not None and first.shown.low <= 0 <= first.shown.high
        return
    half = MISS / 2
    if accepted:
        value = later.p_value(bound, bound)
        count[0] += value < half
        count[1] += value > 1 - half
    count[2] += half <= later.p_value(0, bound) <= 1 - half
    count[3] += 1


def _effects(case: Case, random: Random) -> Iterator[Effect]:
    """What each look sees of one acceptance."""
    most = case.looks[-1].units
    arms = [second for unit in range(most) for second in ((False, True), (True, False))[unit % 2]]
    world = case.world
    logs = [random.gauss(0, world.noise) + world.drift * place / len(arms) for place in range(len(arms))]
    if world.slow:
        logs = [value - 0.1 * (random.random() < world.slow) for value in logs]
    if world.starts and case.pairing == "starts":
        logs = [value + random.gauss(0, world.starts) for value in logs]
    between = random.gauss(0, world.starts) - random.gauss(0, world.starts) if world.starts else 0.0
    for look in case.looks:
        done, order = logs[: 2 * look.units], arms[: 2 * look.units]
        if case.pairing == "starts":
            yield arms_effect(done, order)
        else:
            pairs = zip(done[::2], done[1::2], order[::2], strict=True)
            ratios = [(a - b if eagle_first else b - a) + between for a, b, eagle_first in pairs]
            yield widened(mean_effect(ratios), 2 * case.declared**2)


WORLDS = {
    "2 % noise": World(),
    "drift of 6 %": World(drift=0.06),
    "starts differ by 2 %": World(noise=0.01, starts=0.02),
    "starts differ by 1 %, 3 % noise": World(noise=0.03, starts=0.01),
    "5 % of units 10 % slower": World(noise=0.01, slow=0.05),
}

UNDECLARED = {
    "starts differ by 2 % (undeclared)": World(starts=ASSUMED_START_VARIATION),
    "starts differ by 1 % (undeclared)": World(starts=ASSUMED_START_VARIATION / 2),
    "starts do not differ (undeclared)": World(),
}
"""By rounds, where nobody said how much starts differ: 2 % is assumed."""


def cases() -> Iterator[tuple[str, list[Case]]]:
    """(title, one case for each number of units). Two rounds with a variation added say nothing of errors."""
    wanted = [("rounds", name, world, ASSUMED_START_VARIATION) for name, world in UNDECLARED.items()]
    for name, world in WORLDS.items():
        wanted.append(("rounds", f"{name} (declared)" if world.starts else name, world, world.starts))
        wanted.append(("starts", name, world, 0.0))
    for pairing, name, world, declared in wanted:
        for extended, offered in ((False, FIXED), (True, EXTENDED)):
            yield (
                f"{pairing}{' + look' if extended else ''}, {name}",
                [
                    Case(pairing=pairing, units=n, extended=extended, world=world, declared=declared)
                    for n in offered
                    if n > 2 or not declared
                ],
            )


def run(folder: Path) -> Iterator[Row]:
    """Percentages, each the worst over the numbers of units (and over the truths, of what is covered)."""
    for title, group in cases():
        results = [simulate(case) for case in group]
        yield at_most(f"{title}: 1.00 accepted", 100 * max(r[1.0].passed for r in results), 5, "%")
        yield at_most(f"{title}: 0.95 accepted", 100 * max(r[0.95].passed for r in results), 1, "%")
        covered = [100 * o.covered for r in results for o in r.values()]
        yield at_least(f"{title}: truth covered, least", min(covered), 94 - GIVE, "%")
        case = group[0]
        wide = case.world.slow or (case.pairing == "rounds" and case.declared > case.world.starts)
        if not wide:  # outliers, and too much assumed, make intervals too wide, which does no harm
            yield at_most(f"{title}: truth covered, most", max(covered), 96 + GIVE, "%")
    for pairing, units in (("rounds", first_units(Load(pairing="rounds"))), ("starts", first_units(Load()))):
        default = Case(pairing=pairing, units=units, extended=True, world=World())
        yield at_least(
            f"{pairing}, default plan, 2 % noise: 1.07 accepted",
            100 * simulate(default, truths=(1.07,))[1.07].passed,
            95,
            "%",
        )


def main() -> None:
    """Every case by itself."""
    for title, group in cases():
        for case in group:
            found = simulate(case, int(sys.argv[1]) if sys.argv[1:] else RUNS)
            covered = [100 * o.covered for o in found.values()]
            print(
                f"{title:44} {case.units:3} units: accepted {100 * found[0.95].passed:5.2f} % of 0.95, "
                f"{100 * found[1.0].passed:5.2f} % of 1.00, {100 * found[1.07].passed:6.2f} % of 1.07; "
                f"covered {min(covered):5.2f} to {max(covered):5.2f} %; "
                f"extended {100 * found[1.07].extended:5.1f} % of 1.07",
                flush=True,
            )


if __name__ == "__main__":
    main()
