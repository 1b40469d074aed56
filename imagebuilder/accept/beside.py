"""Results beside each other for people: one HTML page, or Markdown. Pure but for its templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.accept.charts import Chart, by_level
from imagebuilder.accept.compare import change, compare
from imagebuilder.accept.figures import LevelFigures
from imagebuilder.accept.looks import Estimate
from imagebuilder.accept.model import ARMS, BASELINE, EAGLE3, ArmName
from imagebuilder.accept.pictures import NAMES
from imagebuilder.accept.record import Record
from imagebuilder.accept.report import SIZE, environment
from imagebuilder.accept.requirement import Requirement

_COLOURS = 4
_Figure = Callable[[LevelFigures], Estimate | float | None]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A throughput. share: of the highest, in %. change: against the first result's."""

    arm: ArmName
    value: float
    share: float
    change: str


@dataclass(frozen=True, kw_only=True)
class Side:
    """One result at the level that is spoken of."""

    name: str
    record: Record
    speedup: Estimate | None
    bars: tuple[Bar, ...]


def html(records: Sequence[Record]) -> str:
    """The page. The first result is what the others are held against."""
    return _render("compare.html.j2", records)


def markdown(records: Sequence[Record]) -> str:
    """A table, for a pull request or a chat."""
    return _render("compare.md.j2", records)


def _render(template: str, records: Sequence[Record]) -> str:
    comparison = compare(records)
    level = main_level(records)
    variables: dict[str, Any] = {
        "comparison": comparison,
        "level": level,
        "sides": _sides(records, comparison.head, level),
        "charts": tuple(_charts(records, comparison.head)),
        "requirements": _requirements(records, comparison.head),
        "names": NAMES,
        "size": SIZE,
    }
    return str(environment().get_template(template).render(variables))


def main_level(records: Sequence[Record]) -> int | None:
    """The first level that counts and that all have measured; None: there is none."""
    for figures in sorted(records[0].levels, key=lambda f: not f.decisive):
        found = [_at(record, figures.level) for record in records]
        if all(f and f.speedup for f in found):
            return figures.level
    return None


def _at(record: Record, level: int | None) -> LevelFigures | None:
    return next((f for f in record.levels if f.level == level), None)


def _sides(records: Sequence[Record], names: Sequence[str], level: int | None) -> tuple[Side, ...]:
    found = [_at(record, level) for record in records]
    speeds = {arm: [f.arm(arm).throughput if f else None for f in found] for arm in ARMS}
    highest = max((s.value for row in speeds.values() for s in row if s), default=1.0)
    sides = []
    for number, (name, record, figures) in enumerate(zip(names, records, found, strict=True)):
        bars = tuple(
            Bar(
                arm=arm,
                value=speed.value,
                share=100 * speed.value / highest,
                change=change(speeds[arm][0], speed) if number else "",
            )
            for arm in ARMS
            if (speed := speeds[arm][number])
        )
        sides.append(Side(name=name, record=record, speedup=figures.speedup if figures else None, bars=bars))
    return tuple(sides)


def _charts(records: Sequence[Record], names: Sequence[str]) -> Iterator[Chart]:
    def chart(title: str, unit: str, figure: _Figure, **more: Any) -> Chart | None:
        rows = []
        for number, (name, record) in enumerate(zip(names, records, strict=True)):
            found = [_at(record, level) for level in levels]
            rows.append((name, f"line{number % _COLOURS}", [figure(f) if f else None for f in found]))
        return by_level(title, unit, levels, rows, **more)

    levels = sorted({f.level for record in records for f in record.levels})
    wanted = (
        chart("Speedup", "×", lambda f: f.speedup, digits=2, lines=[(1.0, "equal", "one")], zero=False),
        chart("Throughput with EAGLE-3", "tok/s", lambda f: f.arm(EAGLE3).throughput),
        chart("Throughput of the baseline", "tok/s", lambda f: f.arm(BASELINE).throughput),
        chart("First token with EAGLE-3, 99th", "ms", lambda f: f.arm(EAGLE3).ttft_p99),
        chart("Time per token with EAGLE-3, median", "ms", _per_token),
    )
    return (found for found in wanted if found)


def _per_token(figures: LevelFigures) -> float | None:
    spread = figures.eagle3.per_token
    return spread.p50 if spread else None


def _requirements(
    records: Sequence[Record], names: Sequence[str]
) -> list[tuple[str, list[tuple[str, Requirement | None]]]]:
    titles = dict.fromkeys(r.title for record in records for r in record.requirements)
    found = [{r.title: r for r in record.requirements} for record in records]
    return [
        (title, [(name, rows.get(title)) for name, rows in zip(names, found, strict=True)])
        for title in titles
    ]
