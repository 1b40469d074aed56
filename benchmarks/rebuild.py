"""What a change costs: none at all, and one line of a patch."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Row

ROUNDS = 5


def run(folder: Path) -> Iterator[Row]:
    """Seconds of work (CPU) are compared: what the machine does beside it does not count."""
    build = [
        str(Path(sys.executable).with_name("imagebuilder")),
        "build",
        "demo",
        "--output",
        str(folder / "demo"),
    ]
    first = measure.command([*build, "--quiet"], IMAGEBUILDER_CACHE_DIR=str(folder / "cache"))
    again = [
        measure.command([*build, "--quiet"], IMAGEBUILDER_CACHE_DIR=str(folder / "cache"))
        for _ in range(ROUNDS)
    ]
    no_op = statistics.median(cost.cpu for cost in again)
    yield measure.at_most("a build of demo with nothing to do, work", no_op, 1, "s CPU")
    yield measure.at_least("the first build of demo / one with nothing to do", first.cpu / no_op, 5)
    cache = str(folder / "patched")
    measure.function("patched", cache, "warm")
    changed = [measure.function("patched", cache, f"round {n}") for n in range(ROUNDS)]
    yield measure.at_most(
        "one line of a patch of SGLang changed, work", statistics.median(c.cpu for c in changed), 2, "s CPU"
    )
