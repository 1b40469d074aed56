"""Student's t against published tables, effects against hand-made cases, and coverage with a known truth."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics import Case, World, simulate
from imagebuilder.accept.looks import Look, estimate, most_units, planned_looks
from imagebuilder.accept.statistics import (
    Effect,
    Interval,
    arms_effect,
    difference,
    mean_effect,
    quantile,
    t_below,
    t_quantile,
    widened,
    within_groups,
)
from imagebuilder.stack.model import Load


# NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2, and exact values for one and two degrees.
@pytest.mark.parametrize(
    ("share", "df", "value"),
    [
        (0.95, 1, 6.314),
        (0.975, 1, math.tan(math.pi * 0.475)),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.99, 4, 3.747),
        (0.975, 5, 2.571),
        (0.995, 9, 3.250),
        (0.95, 10, 1.812),
        (0.975, 30, 2.042),
        (0.999, 100, 3.174),
        (0.975, math.inf, 1.960),
    ],
)
def test_quantiles_of_t(share: float, df: float, value: float) -> None:
    assert t_quantile(share, df) == pytest.approx(value, abs=6e-4)
    assert t_quantile(1 - share, df) == pytest.approx(-value, abs=6e-4)


@given(st.floats(0.001, 0.999), st.floats(1, 5000))
def test_quantile_is_the_inverse(share: float, df: float) -> None:
    assert t_below(t_quantile(share, df), df) == pytest.approx(share, abs=1e-9)


def test_quantile_of_nothing() -> None:
    for share, df in ((0, 3), (1, 3), (0.5, 0), (0.9, -1)):
        with pytest.raises(ValueError, match="no quantile"):
            t_quantile(share, df)


def test_mean_of_units() -> None:
    effect = mean_effect([1.0, 2.0, 3.0])
    assert effect == Effect(mean=2.0, error=math.sqrt(1 / 3), df=2, units=3, weight=3)
    interval = effect.interval(0.05)
    assert interval and interval.low == pytest.approx(2 - 4.303 / math.sqrt(3), abs=1e-3)


def test_one_unit_has_no_interval() -> None:
    assert mean_effect([3.0]).interval(0.05) is None
    with pytest.raises(ValueError, match="no units"):
        mean_effect([])


ABBAAB = [False, True, True, False, False, True]


def test_a_straight_drift_is_taken_out() -> None:
    values = [10 + 0.3 * place + 0.07 * second for place, second in enumerate(ABBAAB)]
    effect = arms_effect(values, ABBAAB)
    assert effect.mean == pytest.approx(0.07)
    assert effect.error == pytest.approx(0, abs=1e-12)
    assert effect.df == 3


def test_an_order_that_cannot_be_told_from_drift() -> None:
    assert arms_effect([1.0, 2.0], [False, True]).error is None
    with pytest.raises(ValueError, match="both arms"):
        arms_effect([1.0, 2.0], [True, True])


@given(st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 1000))
def test_shifting_an_arm_shifts_its_effect(shift: float, drift: float, seed: int) -> None:
    random = Random(seed)
    values = [random.gauss(0, 0.02) for _ in ABBAAB]
    moved = [v + shift * s + drift * n for n, (v, s) in enumerate(zip(values, ABBAAB, strict=True))]
    one, other = arms_effect(values, ABBAAB), arms_effect(moved, ABBAAB)
    assert other.mean - one.mean == pytest.approx(shift, abs=1e-9)
    assert other.error == pytest.approx(one.error or 0, abs=1e-9)


def test_scatter_within_starts() -> None:
    effect = within_groups([[1.0, 1.2], [3.0, 3.2]])
    assert effect.mean == pytest.approx(2.1)
    assert effect.df == 2
    assert effect.error == pytest.approx(math.sqrt(0.02 / 4))
    assert within_groups([[1.0], [3.0]]) == mean_effect([1.0, 3.0])


def test_a_known_variance_widens() -> None:
    effect = Effect(mean=0.1, error=0.01, df=5, units=6)
    wide = widened(effect, 0.01**2)
    assert wide.error == pytest.approx(0.01 * math.sqrt(2))
    assert wide.df == 13, "Welch and Satterthwaite say 20"
    assert wide.inner == effect
    assert widened(effect, 0) == effect
    assert widened(Effect(mean=0, error=0.0, df=5, units=6), 1).df == math.inf
    assert widened(Effect(mean=0, error=0.01, df=1, units=2), 1).interval(0.05) is None


@pytest.mark.parametrize("df", [2, 3, 4, 5, 11, 23])
def test_a_sum_covers_whatever_its_shares_are(df: int) -> None:
    """No simulation: the estimated variance is integrated over χ², for true shares from 0.1 to 99.9 %."""
    steps = [math.exp(-14 + 20 * (n + 0.5) / 400) for n in range(400)]  # χ²/df
    weights = [math.exp(df / 2 * (math.log(x) - x)) for x in steps]
    for ratio in (0.03, 0.1, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 30):
        covered = 0.0
        for x, weight in zip(steps, weights, strict=True):
            effect = Effect(mean=0, error=ratio * math.sqrt(x), df=df, units=df + 1)
            found = widened(effect, 1).interval(0.05)
            assert found
            covered += weight * math.erf(found.high / math.sqrt(2 * (1 + ratio**2)))
        assert 0.94 < covered / sum(weights) < 0.96


def test_difference_of_independent_effects() -> None:
    one, two = (Effect(mean=m, error=0.02, df=4, units=5) for m in (1.0, 1.5))
    found = difference(one, two)
    assert found.mean == 0.5
    assert found.error == pytest.approx(0.02 * math.sqrt(2))
    assert found.df == pytest.approx(8)
    assert difference(mean_effect([1.0]), two).interval(0.05) is None


def test_quantile() -> None:
    assert quantile([4, 1, 2, 3], 0.5) == 2.5
    assert quantile([7], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_looks_spend_no_more_than_the_budget() -> None:
    assert planned_looks(6, 6) == (Look(units=6),)
    looks = planned_looks(3, 6)
    assert [look.units for look in looks] == [3, 6]
    assert sum(look.decides for look in looks) <= 0.05 + 1e-12
    assert looks[1].after == looks[0]
    assert all(look.decides <= look.shown for look in looks), (
        "what decides is at least as sure as what is shown"
    )


@pytest.mark.parametrize(
    ("pairing", "asked", "most"), [("starts", 3, 6), ("starts", 2, 2), ("rounds", 6, 12), ("rounds", 7, 7)]
)
def test_how_far_a_run_may_go(pairing: str, asked: int, most: int) -> None:
    load = Load(pairing=pairing, rounds=asked, starts=asked)  # type: ignore[arg-type]
    assert most_units(load) == most
    assert most_units(load, extend=False) == asked


def test_between_looks_nothing_decides() -> None:
    found = estimate(mean_effect([0.1, 0.2, 0.3]), None)
    assert found.shown and found.decides is None


def test_interval() -> None:
    interval = Interval(low=1.0, high=2.0)
    assert interval.above(0.9) and not interval.above(1.0)
    assert interval.below(2.1) and not interval.below(2.0)


@pytest.mark.parametrize("pairing", ["rounds", "starts"])
@pytest.mark.parametrize("extended", [False, True])
def test_keeps_its_word(pairing: str, extended: bool) -> None:
    """A small share of benchmarks/statistics.py: bounds are four standard errors of this simulation wide."""
    case = Case(pairing=pairing, units=4, extended=extended, world=World(drift=0.03))
    found = simulate(case, 1500, (0.95, 1.0, 1.02, 1.10))
    assert found[1.0].passed <= 0.05
    assert found[0.95].passed <= 0.01
    assert found[1.10].passed >= 0.95
    assert all(0.925 <= outcome.covered <= 0.975 for outcome in found.values())
