"""Small-sample statistics of an acceptance: Student's t, and what a comparison of few units can say. Pure.

Everything that is compared is a mean over units (rounds, or starts of a server), never over requests:
requests of one run are not independent (Kalibera & Jones, ISMM 2013). benchmarks/statistics.py shows by
simulation that intervals made here cover the truth as often as they say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, variance

FEWEST_BESIDE_KNOWN = 3
"""Units of which an error can be told where a known variance is added; see `widened`."""

_TINY = 1e-300
_CLOSE = 1e-14
_FEW = 100  # degrees of freedom up to which a sum is quicker than a continued fraction
_NORMAL_FROM = 1e7  # degrees of freedom from which t and normal agree to all digits that anybody prints


@dataclass(frozen=True, kw_only=True)
class Interval:
    """From low to high, both included."""

    low: float
    high: float

    def above(self, bound: float) -> bool:
        """All of it is above this bound."""
        return self.low > bound

    def below(self, bound: float) -> bool:
        """All of it is below this bound."""
        return self.high < bound


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A mean over units with its standard error and the degrees of freedom which that was estimated with.

    units: how many there were. error None: too few to say anything about noise. df may be infinite.
    scatter: standard deviation of one unit, where it was asked for. weight: a unit's variance over that of
    the mean; 0: not told. inner: the effect before a known variance was added, where one was.
    """

    mean: float
    error: float | None
    df: float
    units: int
    scatter: float | None = None
    weight: float = 0.0
    inner: Effect | None = None

    def interval(self, miss: float) -> Interval | None:
        """Misses the true mean with this probability, half of it on each side. None: cannot be said."""
        if self.error is None or self.df <= 0:
            return None
        half = self.error * t_quantile(1 - miss / 2, self.df)
        return Interval(low=self.mean - half, high=self.mean + half)


def mean_effect(values: Sequence[float]) -> Effect:
    """The mean of independent units, or of the differences of paired ones."""
    if not values:
        raise ValueError("no units")
    n = len(values)
    if n == 1:
        return Effect(mean=values[0], error=None, df=0, units=1)
    return Effect(mean=fmean(values), error=math.sqrt(variance(values) / n), df=n - 1, units=n, weight=n)


def arms_effect(values: Sequence[float], second: Sequence[bool]) -> Effect:
    """How much higher the second arm's units are than the first's, when they ran one after the other.

    values: in the order they were measured; second: which belong to the second arm. Least squares of
    value = level + drift × position + effect, so that a machine that warms up or tires in a straight line
    neither biases the effect nor widens its interval, whatever the order of the arms.
    """
    n = len(values)
    if n != len(second) or n < 2 or all(second) or not any(second):
        raise ValueError("both arms need a unit")
    y = _without_trend(values)
    x = _without_trend([float(s) for s in second])
    weight = sum(v * v for v in x)
    units = min(sum(second), n - sum(second))
    if weight < 1e-9:  # the order is all that distinguishes the arms: effect and drift cannot be told apart
        in_second = [v for v, s in zip(values, second, strict=True) if s]
        in_first = [v for v, s in zip(values, second, strict=True) if not s]
        return Effect(mean=fmean(in_second) - fmean(in_first), error=None, df=0, units=units)
    mean = sum(a * b for a, b in zip(x, y, strict=True)) / weight
    df = n - 3
    if df < 1:
        return Effect(mean=mean, error=None, df=0, units=units)
    residual = sum((b - mean * a) ** 2 for a, b in zip(x, y, strict=True))
    scatter = math.sqrt(residual / df)
    error = scatter / math.sqrt(weight)
    return Effect(mean=mean, error=error, df=df, units=units, scatter=scatter, weight=weight)


def _without_trend(values: Sequence[float]) -> list[float]:
    """What a straight line over the positions leaves."""
    n = len(values)
    times = [i - (n - 1) / 2 for i in range(n)]
    mean = fmean(values)
    spread = sum(t * t for t in times)
    slope = sum(t * v for t, v in zip(times, values, strict=True)) / spread
    return [v - mean - slope * t for t, v in zip(times, values, strict=True)]


def within_groups(groups: Sequence[Sequence[float]]) -> Effect:
    """The mean over all values, with the error that their scatter within groups makes.

    What differs between the groups themselves is not in the error: add it with `widened`. Where no group has
    two values, the scatter between groups is used.
    """
    values = [v for group in groups for v in group]
    repeated = [group for group in groups if len(group) > 1]
    if not repeated or len(groups) == 1:
        return mean_effect(values)
    df = sum(len(group) - 1 for group in repeated)
    spread = sum((len(group) - 1) * variance(group) for group in repeated) / df
    n = len(values)
    return Effect(mean=fmean(values), error=math.sqrt(spread / n), df=df, units=n, weight=n)


def widened(effect: Effect, known_variance: float) -> Effect:
    """The effect with a variance added that is known rather than estimated. See `freedom_of_sum`.

    One degree of freedom is too few for that: no interval covers the truth in 94 to 96 % of runs, however
    the two variances compare. So nothing is said about the error.
    """
    if known_variance <= 0 or effect.error is None:
        return effect
    own = effect.error**2
    if effect.df < FEWEST_BESIDE_KNOWN - 1:
        return Effect(mean=effect.mean, error=None, df=0, units=effect.units)
    return Effect(
        mean=effect.mean,
        error=math.sqrt(own + known_variance),
        df=_two_digits(freedom_of_sum(own, known_variance, effect.df, effect.df)),
        units=effect.units,
        weight=effect.weight,
        inner=effect,
    )


def freedom_of_sum(own: float, known: float, df: float, told_by: float) -> float:
    """Degrees of freedom of an estimated variance plus a known one: df / (share of the estimated one)².

    That is Welch and Satterthwaite's, but for the share: a variance that is estimated small by chance would
    make its own share small and intervals far too narrow (2 degrees of freedom: 92 % of truths covered). So
    the share is taken at the upper limit below which the true variance is in two cases of three (told_by:
    the estimate's degrees of freedom; Wilson and Hilferty's approximation of χ²). Then 94.2 to 95.9 % are
    covered with 2 degrees and 94.9 to 95.3 % with 5, whatever the true share.
    """
    spread = 2 / (9 * told_by)
    upper = own * (1 - spread + NormalDist().inv_cdf(1 / 3) * math.sqrt(spread)) ** -3
    squared = (upper / (upper + known)) ** 2
    return df / squared if squared > _TINY else math.inf


def _two_digits(df: float) -> float:
    """Rounded down, to be on the safe side, as with printed tables; so few different quantiles are needed."""
    if df >= _NORMAL_FROM:
        return math.inf
    unit: float = 10.0 ** (math.floor(math.log10(df)) - 1)
    return math.floor(df / unit + 1e-9) * unit


def difference(first: Effect, second: Effect) -> Effect:
    """The second minus the first, of independent effects (Welch)."""
    units = min(first.units, second.units)
    mean = second.mean - first.mean
    if first.error is None or second.error is None:
        return Effect(mean=mean, error=None, df=0, units=units)
    a, b = first.error**2, second.error**2
    bottom = a * a / first.df + b * b / second.df
    df = (a + b) ** 2 / bottom if bottom > 0 else math.inf
    return Effect(mean=mean, error=math.sqrt(a + b), df=df, units=units)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, interpolated linearly (Hyndman & Fan's type 7)."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@lru_cache(maxsize=1024)
def t_quantile(share: float, df: float) -> float:
    """The value that a t-distributed number with df degrees of freedom stays below with this probability."""
    if not 0 < share < 1 or df <= 0:
        raise ValueError(f"no quantile of t for probability {share} and {df} degrees of freedom")
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -t_quantile(1 - share, df)
    if df >= _NORMAL_FROM:
        return NormalDist().inv_cdf(share)
    low, high = 0.0, 2.0
    while t_below(high, df) < share:
        low, high = high, 2 * high
    value = (low + high) / 2
    for _ in range(200):  # Newton's steps; where one leaves the bracket, its middle
        error = t_below(value, df) - share
        low, high = (low, value) if error > 0 else (value, high)
        step = error / _t_density(value, df)
        if abs(step) <= _CLOSE * value or high - low <= _CLOSE * high:
            break
        value = value - step if low < value - step < high else (low + high) / 2
    return value


def _t_density(value: float, df: float) -> float:
    log_front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log_front - (df + 1) / 2 * math.log1p(value * value / df))


def t_below(value: float, df: float) -> float:
    """The probability that a t-distributed number with df degrees of freedom is below this value."""
    if df >= _NORMAL_FROM:
        return NormalDist().cdf(value)
    if df <= _FEW and df == int(df):
        return 0.5 + _sum_of_cosines(math.atan(value / math.sqrt(df)), int(df)) / 2
    tail = _incomplete_beta(df / 2, 0.5, df / (df + value * value)) / 2
    return 1 - tail if value > 0 else tail


def _sum_of_cosines(angle: float, df: int) -> float:
    """The probability within ±√df·tan(angle), for whole df. Source: Abramowitz & Stegun 26.7.3 and 26.7.4."""
    cosine = math.cos(angle)
    squared, term, total = cosine * cosine, 1.0, 0.0
    for power in range(df % 2, df - 1, 2):
        total += term
        term *= squared * (power + 1) / (power + 2)
    if df % 2 == 0:
        return math.sin(angle) * total
    return (angle + math.sin(angle) * cosine * total) * 2 / math.pi


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b). Source: DLMF 8.17.22, a continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror image does quickly
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1/(1 + d₁/(1 + d₂/(1 + …))), by the modified method of Lentz."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return 1 / value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
