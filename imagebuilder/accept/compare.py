"""Results beside each other: one column for each, every figure that they share as a row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imagebuilder.accept.figures import LevelFigures
from imagebuilder.accept.looks import Estimate
from imagebuilder.accept.record import Record
from imagebuilder.accept.requirement import percent, shown


@dataclass(frozen=True, kw_only=True)
class Row:
    """A label, and a text for each result."""

    label: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """head: names of the columns. notes: why figures may not be comparable."""

    head: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def compare(records: Sequence[Record]) -> Comparison:
    """The first is what the others are held against."""

    def row(label: str, text: Callable[[Record], str]) -> Row:
        return Row(label=label, values=tuple(text(record) for record in records))

    rows = [
        row("image", lambda r: (r.config_digest or "rehearsal").removeprefix("sha256:")[:12]),
        row("measured", lambda r: r.started[:16].replace("T", " ")),
        row("verdict", lambda r: r.outcome),
    ]
    levels = dict.fromkeys(f.level for record in records for f in record.levels)
    for level in levels:
        found = [next((f for f in record.levels if f.level == level), None) for record in records]
        rows += _level_rows(level, found)
    rows += [
        row("accept length", lambda r: shown(r.accept_length.overall)),
        row("known answers right", lambda r: percent(r.answers.eagle3 if r.answers else None)),
        row("units", lambda r: f"{r.units} {r.pairing}"),
    ]
    return Comparison(head=_names(records), rows=tuple(rows), notes=_unlike(records))


def _level_rows(level: int, found: Sequence[LevelFigures | None]) -> list[Row]:
    at = f"at {level}" + ("" if any(f and f.decisive for f in found) else " (does not count)")
    base = [f.baseline.throughput if f else None for f in found]
    eagle = [f.eagle3.throughput if f else None for f in found]
    ttft = [f.eagle3.ttft if f else None for f in found]
    return [
        Row(label=f"baseline, tok/s {at}", values=_against_first(base)),
        Row(label=f"EAGLE-3, tok/s {at}", values=_against_first(eagle)),
        Row(label=f"speedup {at}", values=tuple(shown(f.speedup if f else None, 2, "×") for f in found)),
        Row(
            label=f"EAGLE-3, first token 99th, ms {at}",
            values=tuple(f"{s.p99:.0f}" if s else "–" for s in ttft),
        ),
    ]


def _against_first(figures: Sequence[Estimate | None]) -> tuple[str, ...]:
    """`96.1 (+78 %)`: each with how much more it is than the first."""
    first = figures[0]
    texts = []
    for number, figure in enumerate(figures):
        text = f"{figure.value:.1f}" if figure else "–"
        if number and figure and first:
            text += f" ({change(first, figure)})"
        texts.append(text)
    return tuple(texts)


def change(before: Estimate | None, now: Estimate) -> str:
    """`+78 %`; empty where there was nothing before."""
    return f"{100 * (now.value / before.value - 1):+.0f} %" if before else ""


def _names(records: Sequence[Record]) -> tuple[str, ...]:
    """Stacks; with the time where a stack comes twice."""
    stacks = [record.stack for record in records]
    return tuple(
        f"{r.stack} {r.started[:16].replace('T', ' ')}" if stacks.count(r.stack) > 1 else r.stack
        for r in records
    )


def _unlike(records: Sequence[Record]) -> tuple[str, ...]:
    first = records[0]
    notes = []
    for other in records[1:]:
        parts = [
            name
            for name, one, two in (
                ("model", first.model, other.model),
                ("draft model", first.draft, other.draft),
                ("GPUs", first.gpus, other.gpus),
                ("driver", first.driver, other.driver),
            )
            if one != two
        ]
        if parts:
            notes.append(f"{other.stack} was measured with another {' and another '.join(parts)}")
    return tuple(notes)
