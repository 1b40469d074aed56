"""Which charts a report has: from a run and its figures to drawings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from imagebuilder.accept.charts import Chart, by_level, distribution, over_time
from imagebuilder.accept.figures import LevelFigures
from imagebuilder.accept.model import (
    ARMS,
    BASELINE,
    EAGLE3,
    ArmName,
    HostSample,
    RequestResult,
    RoundResult,
    RunResult,
)
from imagebuilder.accept.record import Record

NAMES: dict[ArmName, str] = {BASELINE: "baseline", EAGLE3: "EAGLE-3"}
_MOST_SAMPLES = 200
"""Points of a line over time."""
_MOST_LINES = 3

_Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Charts that belong together. note: how to read them."""

    title: str
    note: str
    charts: tuple[Chart, ...]


def groups(run: RunResult, record: Record) -> tuple[Group, ...]:
    """Every group that has something to show."""
    found = (
        Group(
            title="Speed",
            note="Bars are 95 % intervals. The speedup is that of paired units, not the ratio of two means.",
            charts=_there(_speed(run, record)),
        ),
        Group(
            title="Latency",
            note="Per token: a piece's delay divided by its tokens, since speculation sends several at once.",
            charts=_there(_latency(record)),
        ),
        Group(
            title="Distributions",
            note="The share of requests at or below each value, up to the 99th percentile.",
            charts=_there(_distributions(run, record)),
        ),
        Group(
            title="In the order it was measured",
            note="A machine that warms up, tires or is shared shows here.",
            charts=_there(_course(run, record)),
        ),
        Group(title="GPUs", note="All GPUs, sampled during the run.", charts=_there(_gpus(run))),
    )
    return tuple(group for group in found if group.charts)


def _there(charts: Iterator[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart)


def _speed(run: RunResult, record: Record) -> Iterator[Chart | None]:
    levels = [f.level for f in record.levels]
    bound = run.scenario.require.min_speedup
    wanted = [(bound, f"wanted {bound:g}×", "bound")] if bound not in (None, 1.0) else []
    yield by_level(
        "Speedup",
        "×",
        levels,
        [("EAGLE-3 over baseline", EAGLE3, [f.speedup for f in record.levels])],
        digits=2,
        lines=[(1.0, "equal", "one"), *wanted],  # type: ignore[list-item]
        zero=False,
    )
    yield by_level(
        "Throughput",
        "tok/s",
        levels,
        [(NAMES[arm], arm, [f.arm(arm).throughput for f in record.levels]) for arm in ARMS],
    )
    yield by_level(
        "Output of one stream",
        "tok/s",
        levels,
        [
            (NAMES[arm], arm, [s.p50 if (s := f.arm(arm).stream_tok_s) else None for f in record.levels])
            for arm in ARMS
        ],
    )


def _latency(record: Record) -> Iterator[Chart | None]:
    levels = [f.level for f in record.levels]
    for title, unit, field in (
        ("Time to first token", "ms", "ttft"),
        ("Time per token", "ms", "per_token"),
        ("Whole answer", "ms", "end_to_end"),
    ):
        rows: list[tuple[str, str, list[float | None]]] = []
        for arm in ARMS:
            spreads = [getattr(f.arm(arm), field) for f in record.levels]
            rows.append((f"{NAMES[arm]}, median", arm, [s.p50 if s else None for s in spreads]))
            rows.append((f"{NAMES[arm]}, 99th", f"{arm} far", [s.p99 if s else None for s in spreads]))
        yield by_level(title, unit, levels, rows)


def _distributions(run: RunResult, record: Record) -> Iterator[Chart | None]:
    for title, unit, sample in (
        ("First token", "ms", _first_token),
        ("Each answer's speed", "tok/s", _stream_speed),
    ):
        for figures in record.levels:
            rows = []
            for arm in ARMS:
                requests = (r for one in run.load_rounds(arm, figures.level) for r in one.requests if r.ok)
                rows.append((NAMES[arm], str(arm), [v for r in requests if (v := sample(r)) is not None]))
            yield distribution(f"{title} at {_streams(figures)}", unit, rows)


def _first_token(request: RequestResult) -> float | None:
    return None if request.ttft_s is None else 1000 * request.ttft_s


def _stream_speed(request: RequestResult) -> float | None:
    return 1 / request.tpot_s if request.tpot_s else None


def _course(run: RunResult, record: Record) -> Iterator[Chart | None]:
    for figures in record.levels:
        rounds = {arm: run.load_rounds(arm, figures.level) for arm in ARMS}
        times = [_minute(r, run) for arm in ARMS for r in rounds[arm]]
        if len(times) <= len(ARMS):
            continue
        yield over_time(
            f"Rounds at {_streams(figures)}",
            "minutes",
            "tok/s",
            [(NAMES[arm], arm, [(_minute(r, run), r.output_tok_s) for r in rounds[arm]]) for arm in ARMS],
            dots=True,
        )


def _minute(one: RoundResult, run: RunResult) -> float:
    """When a round began, in minutes after the run; 0 where a time cannot be read."""
    try:
        began, started = datetime.fromisoformat(one.began), datetime.fromisoformat(run.started)
        return max(0.0, (began - started).total_seconds() / 60)
    except (ValueError, TypeError):
        return 0.0


def _gpus(run: RunResult) -> Iterator[Chart | None]:
    for title, unit, field in (
        ("Clock", "MHz", "sm_mhz"),
        ("Power", "W", "power_w"),
        ("Temperature", "°C", "temperature_c"),
    ):
        lines = []
        for gpu in run.host.gpus:
            points = [
                (sample.at_s / 60, float(value))
                for sample in run.host.samples
                if sample.gpu == gpu.index and (value := getattr(sample, field)) is not None
            ]
            if points:
                lines.append((f"GPU {gpu.index}", _thinned(points)))
        if len(lines) > _MOST_LINES:
            lines = _range(lines)
        rows = [(name, f"line{number}", points) for number, (name, points) in enumerate(lines)]
        yield over_time(title, "minutes", unit, rows)


def _range(lines: list[tuple[str, _Points]]) -> list[tuple[str, _Points]]:
    """Of many GPUs the highest, the mean and the lowest at each moment."""
    moments = list(zip(*(points for _, points in lines), strict=False))
    many = f"of {len(lines)} GPUs"
    return [
        (name, [(m[0][0], of([y for _, y in m])) for m in moments])
        for name, of in ((f"highest {many}", max), ("mean", fmean), ("lowest", min))
    ]


def _thinned(points: _Points) -> _Points:
    """Means of neighbours, where there are more points than a line of a phone's width can show."""
    size = -(-len(points) // _MOST_SAMPLES)
    parts = [points[n : n + size] for n in range(0, len(points), size)]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]


def busy(samples: tuple[HostSample, ...]) -> str:
    """Mean power and highest temperature, in words; empty where there are none."""
    powers = [s.power_w for s in samples if s.power_w is not None]
    hottest = [s.temperature_c for s in samples if s.temperature_c is not None]
    parts = []
    if powers:
        parts.append(f"{sum(powers) / len(powers):.0f} W a GPU on average")
    if hottest:
        parts.append(f"{max(hottest)} °C at most")
    return ", ".join(parts)


def level_label(figures: LevelFigures) -> str:
    """`8 streams`, with a mark where the level does not count."""
    text = _streams(figures)
    return text if figures.decisive else f"{text} (does not count)"


def _streams(figures: LevelFigures) -> str:
    return f"{figures.level} stream{'s' * (figures.level != 1)}"
