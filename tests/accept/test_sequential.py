"""Intervals after a second look: against known variances, exact for few units, and what they must not do."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept.looks import Look, estimate, planned_looks
from imagebuilder.accept.sequential import Continued
from imagebuilder.accept.statistics import Effect, arms_effect, mean_effect, widened

MANY = 400_000


def with_known_noise(mean: float) -> Continued:
    """Noise is as good as known; the second look has twice the units of the first."""
    first = Effect(mean=mean / 2, error=1.0, df=MANY, units=3, weight=1)
    last = Effect(mean=mean, error=math.sqrt(0.5), df=2 * MANY, units=6, weight=2)
    return Continued(first=first, last=last, decided=0.01)


# P(Z₁ ≥ high) + P(low < Z₁ < high, Z₂ ≥ z) for normal Z₁, Z₂ with correlation √½, integrated with SciPy 1.17.
@pytest.mark.parametrize(
    ("true", "bound", "seen", "p"),
    [
        (0, -0.5, 0.9, 0.106714),
        (0, 0, 1.4, 0.0261925),
        (0.3, -1, 1.2, 0.154406),
        (-1, 0, -2, 0.892421),
    ],
)
def test_known_noise(true: float, bound: float, seen: float, p: float) -> None:
    assert with_known_noise(seen).p_value(true, bound) == pytest.approx(p, abs=3e-6)


def test_the_interval_for_known_noise() -> None:
    found = with_known_noise(1.7).interval(0.05, 0)
    assert found
    assert found.low == pytest.approx(0.236410, abs=3e-5)
    assert found.high == pytest.approx(3.066679, abs=3e-5)


def looked(seed: int, units: int, *, starts: bool, known: float = 0.0) -> Continued:
    random = Random(seed)
    values = [random.gauss(0.01, 0.02) for _ in range(4 * units)]
    order = [second for unit in range(2 * units) for second in ((False, True), (True, False))[unit % 2]]
    if starts:
        first, last = (arms_effect(values[: 2 * n], order[: 2 * n]) for n in (units, 2 * units))
    else:
        first, last = (widened(mean_effect(values[:n]), known) for n in (units, 2 * units))
    return Continued(first=first, last=last, decided=0.01)


few = st.builds(
    looked,
    st.integers(0, 10_000),
    st.integers(3, 6),
    starts=st.booleans(),
    known=st.sampled_from((0.0, 1e-6, 1e-4, 1e-3)),
)


def open_at(continued: Continued, bound: float) -> bool:
    before = continued.first.interval(continued.decided)
    return before is not None and before.low <= bound <= before.high


@given(few, st.floats(-0.03, 0.03))
def test_the_interval_is_made_of_p_values(continued: Continued, bound: float) -> None:
    if not open_at(continued, bound):
        return
    found = continued.interval(0.05, bound)
    assert found and found.low < found.high
    assert continued.p_value(found.low, bound) == pytest.approx(0.025, abs=1e-4)
    assert continued.p_value(found.high, bound) == pytest.approx(0.975, abs=1e-4)


def test_one_interval_and_not_several() -> None:
    """p-values need not grow everywhere: where runs contradict themselves they may not. Here they suffice."""
    for seed in range(60):
        continued = looked(seed, 3 + seed % 4, starts=seed % 2 == 0, known=(0.0, 1e-4)[seed % 3 == 0])
        found = continued.interval(0.05, 0.0)
        if not open_at(continued, 0.0) or found is None:
            continue
        assert found.low < continued.last.mean < found.high
        for step in range(-20, 41):
            p = continued.p_value(found.low + (found.high - found.low) * step / 20, 0.0)
            assert (0.0249 < p < 0.9751) if 0 <= step <= 20 else not 0.0251 < p < 0.9749


@given(few, st.floats(-0.03, 0.03), st.floats(-0.05, 0.05), st.floats(-1, 1))
def test_shifted_and_mirrored(continued: Continued, bound: float, true: float, shift: float) -> None:
    def moved(effect: Effect, factor: float, by: float) -> Effect:
        return Effect(
            mean=factor * effect.mean + by, error=effect.error, df=effect.df, units=effect.units,
            weight=effect.weight, inner=effect.inner,
        )  # fmt: skip

    def of(factor: float, by: float) -> Continued:
        first, last = (moved(e, factor, by) for e in (continued.first, continued.last))
        return Continued(first=first, last=last, decided=0.01)

    p = continued.p_value(true, bound)
    assert of(1, shift).p_value(true + shift, bound + shift) == pytest.approx(p, abs=1e-5)
    assert of(-1, 0).p_value(-true, -bound) == pytest.approx(1 - p, abs=1e-5)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("bound", [0.01, -0.02, -0.15])
def test_p_values_are_uniform(starts: bool, bound: float) -> None:
    """However few units there are and wherever the bound is: a run that stopped keeps its ordinary one."""
    below = {0.025: 0, 0.25: 0, 0.5: 0, 0.975: 0}
    runs = 1500
    for seed in range(runs):
        one = looked(seed, 3, starts=starts)
        true = 0.0 if starts else 0.01  # both arms are drawn alike
        ordinary = Continued(first=one.first, last=one.first, decided=0.01)  # nothing new came
        p = (one if open_at(one, bound) else ordinary).p_value(true, bound)
        for share in below:
            below[share] += p < share
    for share, count in below.items():
        assert abs(count / runs - share) < 4 * math.sqrt(share * (1 - share) / runs)


def test_nothing_new_is_the_ordinary_interval() -> None:
    known = widened(Effect(mean=0.02, error=1e-6, df=5, units=6, weight=6), 0.03**2)
    also = widened(Effect(mean=0.02, error=1e-6, df=11, units=12, weight=12), 0.03**2)
    found = Continued(first=known, last=also, decided=0.01)
    assert found.interval(0.05, 0.0) == also.interval(0.05)
    untold = Effect(mean=0.1, error=0.1, df=5, units=6)
    assert Continued(first=untold, last=untold, decided=0.01).interval(0.05, 0) == untold.interval(0.05)


def test_no_noise_at_all() -> None:
    for least in (0.0, 1e-17, 1e-12):
        values = [0.1, 0.1 + least, 0.1 - least] * 2
        continued = Continued(first=mean_effect(values[:3]), last=mean_effect(values), decided=0.01)
        found = continued.interval(0.05, 0.1)
        assert found and found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1)


def test_a_second_look_holds_its_bound_against_what_it_shows() -> None:
    _, last = planned_looks(3, 6)
    values = [0.01, 0.03, 0.02, 0.025, 0.018, 0.022]
    early, effect = mean_effect(values[:3]), mean_effect(values)
    left_open = estimate(effect, last, early, 0.0)
    assert left_open.shown == left_open.decides != effect.interval(0.05)
    clear = estimate(effect, last, early, -1.0)
    assert clear.shown == clear.decides == effect.interval(0.05), "it was not this that made the run go on"
    unbound = estimate(effect, last, early)
    assert (unbound.shown, unbound.decides) == (effect.interval(0.05), effect.interval(0.04))


def test_one_look_is_ordinary() -> None:
    effect = mean_effect([0.01, 0.03, 0.02])
    found = estimate(effect, Look(units=3), None, 0.0)
    assert found.shown == found.decides == effect.interval(0.05)
