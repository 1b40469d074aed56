"""What an effect says at a second look that was only taken because a first one left its bound open. Pure.

An ordinary interval knows nothing of that: a run that happened to look good stopped at the first look, so
the second sees a selection. The interval here is the stage-wise one (Armitage; Tsiatis, Rosner & Mehta,
Biometrics 1984): a run that stopped keeps its ordinary p-value, and one that went on gets one from between
those of the results that would have stopped it. Both together are uniform, so intervals made of them cover
the truth in exactly as many runs as they say, and a bound is missed wrongly no oftener than planned.

The noise is not known. But under a hypothesis about the effect, the sum of squares around it says all about
the noise, and the direction of the residuals does not depend on it (Basu): given those sums for the runs'
first and second part, one coordinate of a uniform point on a sphere stands for each part, and what follows
is exact however few units there are. Where a known variance was added to an estimated one, the degrees of
freedom are effective ones and the result is an approximation, a good one (benchmarks/statistics.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from imagebuilder.accept.statistics import Effect, Interval, freedom_of_sum, t_below, t_quantile

_NODES = 16
_HALVINGS = 30
_ALL = 1e-9  # of a probability: less cannot be seen in an interval
_SAME = 1e-4  # share of new information below which a second look is the first one again
_MANY = 1e6  # degrees of freedom
_NEARLY_NORMAL = 100


@dataclass(frozen=True, kw_only=True)
class Continued:
    """An effect at the last of two looks. first: the same at the first look, of the units until then.

    decided: with what probability the interval misses that the bound was held against at the first look.
    """

    first: Effect
    last: Effect
    decided: float

    def interval(self, miss: float, bound: float) -> Interval | None:
        """Misses the true mean with this probability, half of it on each side. None: cannot be said."""
        ordinary = self.last.interval(miss)
        if ordinary is None or ordinary.low == ordinary.high or not self._parts:
            return ordinary
        width = ordinary.high - ordinary.low
        low, high = (self._where(share, bound, width) for share in (miss / 2, 1 - miss / 2))
        return Interval(low=low, high=high)

    def p_value(self, mean: float, bound: float) -> float:
        """The probability of results that say no less, if this were the true mean. It grows with the mean."""
        parts = self._parts
        if parts is None:
            return t_below((mean - self.last.mean) / (self.last.error or math.inf), self.last.df)
        return parts.p_value(mean, bound)

    @cached_property
    def _parts(self) -> _Parts | None:
        """None: the second look says what the first did."""
        first, last = self.first.inner or self.first, self.last.inner or self.last
        errors = (self.first.error, self.last.error, first.error, last.error)
        if not (self.first.weight and self.last.weight) or None in errors or not last.error:
            return None
        one, two = self.first.error or 0.0, self.last.error or 0.0
        unit = last.error**2 * self.last.weight
        own = [unit / effect.weight for effect in (self.first, self.last)]
        known = [max(0.0, e**2 - (i.error or 0.0) ** 2) for e, i in ((one, first), (two, last))]
        told = (own[1] + known[1]) / (own[0] + known[0])
        df = [freedom_of_sum(o, k, i.df, last.df) for o, k, i in zip(own, known, (first, last), strict=True)]
        if told > 1 - _SAME or df[1] > _MANY or df[1] - df[0] < 2:
            return None
        df = [float(math.floor(d + 1e-9)) for d in df]  # whole ones are quick
        apart = told / (1 - told) * (self.first.mean - self.last.mean) ** 2
        return _Parts(
            told=told,
            means=(self.first.mean, self.last.mean),
            df=(df[0], df[1]),
            old=told * df[0] * one**2,
            new=max(0.0, df[1] * two**2 - told * df[0] * one**2 - apart),
            slope=t_quantile(1 - self.decided / 2, self.first.df) / math.sqrt(df[0]),
        )

    def _where(self, share: float, bound: float, width: float) -> float:
        """The mean whose p-value is this: the nearest to the figure, should there be more than one."""
        low = high = self.last.mean
        step = width / 2
        while self.p_value(low, bound) > share and step < 1e6 * width:
            low, step = low - step, 2 * step
        step = width / 2
        while self.p_value(high, bound) < share and step < 1e6 * width:
            high, step = high + step, 2 * step
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p_value(middle, bound) < share else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """A run before and after its first look, in units in which the whole of it has information 1.

    told: the first part's information. old, new: sums of squares of residuals within the parts, with df[0]
    and df[1] - df[0] - 1 degrees of freedom. slope: of the cone of results that the first look leaves open.
    """

    told: float
    means: tuple[float, float]
    df: tuple[float, float]
    old: float
    new: float
    slope: float

    def p_value(self, mean: float, bound: float) -> float:
        """As `Continued.p_value`. Angles: their sine is the coordinate of the first part's point."""
        one, two = (value - mean for value in self.means)
        rest = 1 - self.told
        before = math.sqrt(self.old + self.told * one**2)
        after = math.sqrt(self.new + (two - self.told * one) ** 2 / rest)
        across, along = math.sqrt(self.told) * before, math.sqrt(rest) * after
        low, high = self._open((mean - bound) * math.sqrt(self.told) / before if before else 0.0)
        dimensions = self.df[1] - self.df[0]
        turn = along * math.sin(_farthest(dimensions - 1))
        start = min(max(low, _angle((two - turn) / across)), high) if across else low
        end = max(min(high, _angle((two + turn) / across)), low) if across else high
        most = _farthest(self.df[0])
        p = _beyond(end, self.df[0])
        start, end = max(start, -most), min(end, most)
        if end <= start:
            return p
        middle, half = (start + end) / 2, (end - start) / 2
        for node, weight in _gauss_legendre(_NODES):
            angle = middle + half * node
            needed = _angle((two - across * math.sin(angle)) / along) if along else 0.0
            p += half * weight * self._density * math.cos(angle) ** (self.df[0] - 1) * _beyond(
                needed, dimensions - 1
            )  # fmt: skip
        return p

    def _open(self, shift: float) -> tuple[float, float]:
        """Between which angles the first look decides nothing, if the bound is so far below the mean."""
        lean = math.atan(self.slope)
        turned = shift * math.cos(lean)
        tilt = math.asin(min(max(turned, -1.0), 1.0))
        low = max(-math.pi / 2, lean - math.pi + tilt, -lean - tilt)
        high = min(math.pi / 2, lean - tilt, math.pi - lean + tilt)
        return low, max(low, high)

    @cached_property
    def _density(self) -> float:
        half = self.df[0] / 2
        return math.exp(math.lgamma(half + 0.5) - math.lgamma(half)) / math.sqrt(math.pi)


def _angle(sine: float) -> float:
    return math.asin(min(max(sine, -1.0), 1.0))


def _beyond(angle: float, df: float) -> float:
    """The probability that a uniform point on the sphere in df + 1 dimensions is beyond this latitude.

    Where there are many, that is nearly normal. Source: Abramowitz & Stegun 26.7.8.
    """
    value = math.tan(angle) * math.sqrt(df)
    if df <= _NEARLY_NORMAL:
        return t_below(-value, df)
    return math.erfc(value * (1 - 1 / (4 * df)) / math.sqrt(2 + value * value / df)) / 2


@lru_cache(maxsize=1024)
def _farthest(df: float) -> float:
    """The latitude beyond which there is nothing that counts."""
    return math.atan(t_quantile(1 - _ALL, df) / math.sqrt(df))


@lru_cache(maxsize=4)
def _gauss_legendre(count: int) -> tuple[tuple[float, float], ...]:
    """(node, weight) of the quadrature on [-1, 1]. Source: DLMF 3.5.19, nodes by Newton's steps."""
    found = []
    for number in range(count):
        x = math.cos(math.pi * (number + 0.75) / (count + 0.5))
        for _ in range(50):
            last, value = 1.0, x
            for degree in range(2, count + 1):
                last, value = value, ((2 * degree - 1) * x * value - (degree - 1) * last) / degree
            slope = count * (x * value - last) / (x * x - 1)
            x -= value / slope
            if abs(value / slope) < 1e-15:
                break
        found.append((x, 2 / ((1 - x * x) * slope * slope)))
    return tuple(found)
