"""The geometry of a report's charts: figures → positions in a drawing of fixed size. Pure; templates draw.

A chart is 360 units wide, about as wide as a phone, so that its text stays readable where the page is
narrow; wide pages put several beside each other. Positions have one decimal, to keep pages small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from imagebuilder.accept.looks import Estimate

WIDTH, HEIGHT = 360.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 12.0, 34.0
_CURVE = 60
"""Points of a distribution's curve."""

Scale = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark on an axis: where, and what is written there."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A figure with its interval. label: for whoever points at it, and for screen readers."""

    x: float
    y: float
    low: float | None
    high: float | None
    label: str


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart. kind: its colour and dash. path: SVG path data; empty: dots only."""

    name: str
    kind: str
    path: str
    dots: tuple[Dot, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A horizontal reference. kind: `one` or `bound`."""

    y: float
    label: str
    kind: Literal["one", "bound"]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Everything that a template draws. summary: the same in words."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()
    summary: str = ""


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that span from low to high, at steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def plain(value: float) -> str:
    """A number for an axis: as few digits as it needs."""
    if value and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.10g}"


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _vertical(values: Iterable[float], *, zero: bool) -> tuple[Scale, tuple[Tick, ...]]:
    values = list(values)
    low, high = (0.0 if zero else min(values)), max(values)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if not zero else (0.0, high or 1.0)
    ticks = nice_ticks(low, high)
    scale = _linear(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    return scale, tuple(Tick(at=scale(t), label=plain(t)) for t in ticks)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points) if points else ""


def by_level(
    title: str,
    y_label: str,
    levels: Sequence[int],
    rows: Sequence[tuple[str, str, Sequence[Estimate | float | None]]],
    *,
    digits: int = 1,
    lines: Sequence[tuple[float, str, Literal["one", "bound"]]] = (),
    zero: bool = True,
) -> Chart | None:
    """Figures against concurrency. rows: (name, kind, one figure per level). None: there is no figure."""
    values = [v for _, _, row in rows for figure in row for v in _extent(figure)]
    if not values:
        return None
    scale, y_ticks = _vertical([*values, *(y for y, _, _ in lines)], zero=zero)
    places = _columns(len(levels))
    series = []
    for number, (name, kind, row) in enumerate(rows):
        shift = (number - (len(rows) - 1) / 2) * 5  # so that intervals do not hide each other
        dots = tuple(
            _dot(x + shift, scale, figure, f"{name} at {level}", digits)
            for x, level, figure in zip(places, levels, row, strict=True)
            if figure is not None
        )
        series.append(Series(name=name, kind=kind, path=_path([(d.x, d.y) for d in dots]), dots=dots))
    return Chart(
        title=title,
        x_label="streams",
        y_label=y_label,
        x_ticks=tuple(Tick(at=x, label=str(level)) for x, level in zip(places, levels, strict=True)),
        y_ticks=y_ticks,
        series=tuple(series),
        lines=tuple(Line(y=scale(y), label=label, kind=kind) for y, label, kind in lines),
        summary="; ".join(d.label for s in series for d in s.dots),
    )


def _extent(figure: Estimate | float | None) -> list[float]:
    if figure is None:
        return []
    if isinstance(figure, Estimate):
        shown = [figure.shown.low, figure.shown.high] if figure.shown else []
        return [figure.value, *(v for v in shown if abs(v) <= 4 * abs(figure.value))]
    return [figure]


def _dot(x: float, scale: Scale, figure: Estimate | float, name: str, digits: int) -> Dot:
    value = figure.value if isinstance(figure, Estimate) else figure
    interval = figure.shown if isinstance(figure, Estimate) else None
    label = f"{name}: {value:.{digits}f}"
    if interval is None:
        return Dot(x=x, y=scale(value), low=None, high=None, label=label)
    label += f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
    inside = (max(TOP, min(HEIGHT - BOTTOM, scale(end))) for end in (interval.low, interval.high))
    low, high = inside
    return Dot(x=x, y=scale(value), low=low, high=high, label=label)


def _columns(count: int) -> list[float]:
    step = (WIDTH - LEFT - RIGHT) / count
    return [round(LEFT + step * (n + 0.5), 1) for n in range(count)]


def distribution(title: str, x_label: str, rows: Sequence[tuple[str, str, Sequence[float]]]) -> Chart | None:
    """How samples are spread: the share of them at or below each value, up to the 99th percentile."""
    ordered = [(name, kind, sorted(values)) for name, kind, values in rows if values]
    if not ordered:
        return None
    highest = max(values[_rank(values, 0.99)] for _, _, values in ordered)
    ticks = nice_ticks(0.0, highest or 1.0, 4)
    across = _linear(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    up = _linear(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    series = []
    for name, kind, values in ordered:
        shares = [0.99 * n / _CURVE for n in range(_CURVE + 1)]
        points = [(across(values[_rank(values, s)]), up(s)) for s in shares]
        series.append(Series(name=name, kind=kind, path=_path(points)))
    return Chart(
        title=title,
        x_label=x_label,
        y_label="",
        x_ticks=tuple(Tick(at=across(t), label=plain(t)) for t in ticks),
        y_ticks=tuple(Tick(at=up(s / 4), label=f"{25 * s} %") for s in range(5)),
        series=tuple(series),
        summary="; ".join(
            f"{name}: half at or below {values[_rank(values, 0.5)]:.3g}, 99 % at or below "
            f"{values[_rank(values, 0.99)]:.3g} {x_label}"
            for name, _, values in ordered
        ),
    )


def _rank(ordered: Sequence[float], share: float) -> int:
    return min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))


def over_time(
    title: str,
    x_label: str,
    y_label: str,
    rows: Sequence[tuple[str, str, Sequence[tuple[float, float]]]],
    *,
    dots: bool = False,
    zero: bool = False,
) -> Chart | None:
    """(x, y) points as they followed each other; dots: each marked, without a line between them."""
    points = [p for _, _, row in rows for p in row]
    if not points:
        return None
    ticks = nice_ticks(0.0, max(x for x, _ in points) or 1.0, 5)
    across = _linear(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    scale, y_ticks = _vertical([y for _, y in points], zero=zero)
    series = []
    for name, kind, row in rows:
        placed = [(across(x), scale(y)) for x, y in row]
        marks = tuple(
            Dot(x=px, y=py, low=None, high=None, label=f"{name}: {y:.1f}")
            for (px, py), (_, y) in zip(placed, row, strict=True)
        )
        series.append(
            Series(name=name, kind=kind, path="" if dots else _path(placed), dots=marks if dots else ())
        )
    return Chart(
        title=title,
        x_label=x_label,
        y_label=y_label,
        x_ticks=tuple(Tick(at=across(t), label=plain(t)) for t in ticks),
        y_ticks=y_ticks,
        series=tuple(series),
        summary="; ".join(
            f"{name} from {min(y for _, y in row):.1f} to {max(y for _, y in row):.1f}"
            for name, _, row in rows
            if row
        ),
    )
