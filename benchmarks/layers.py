"""Making layers of cached wheels: against what cannot be avoided, by one worker and two, in what memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure, subject
from benchmarks.measure import Row

ROUNDS = 3


def run(folder: Path) -> Iterator[Row]:
    """Ratios per wheel, memory, and the use of a second core."""
    files = subject.wheel_files(subject.BIG)
    yield measure.at_least("wheels, GB", sum(f.stat().st_size for f in files.values()) / 1e9, 1, "GB")
    memory = 0
    total: list[list[tuple[measure.Cost, measure.Cost]]] = []
    for filename, path in files.items():
        pairs = []
        for _ in range(ROUNDS):
            ours = measure.function("layer", str(path), filename, str(folder / "layer"))
            pairs.append((ours, measure.function("floor", str(path))))
            memory = max(memory, ours.memory)
        total.append(pairs)
        name = f"layer of {filename.partition('-')[0]} / inflate with isal and hash both sides"
        yield measure.seen(name, measure.ratio(pairs))
    sums = [
        (
            measure.Cost(wall=sum(p[n][0].wall for p in total), cpu=0),
            measure.Cost(wall=sum(p[n][1].wall for p in total), cpu=0),
        )
        for n in range(ROUNDS)
    ]
    yield measure.at_most("all of them / inflate with isal and hash both sides", measure.ratio(sums), 1.3)
    yield measure.at_most("peak memory of one layer", memory / 1e6, 150, "MB")
    both = []
    for _ in range(ROUNDS):
        costs = [_layers(folder, workers) for workers in (1, 2)]
        both.append((costs[0], costs[1]))
    yield measure.at_least("all layers by one worker / by two", measure.ratio(both), 1.5)
    yield measure.at_most("peak memory of two workers", max(two.memory for _, two in both) / 1e6, 150, "MB")


def _layers(folder: Path, workers: int) -> measure.Cost:
    cache = folder / "cache"
    try:
        return measure.function("layers", str(cache), str(workers), *subject.BIG)
    finally:
        shutil.rmtree(cache)
