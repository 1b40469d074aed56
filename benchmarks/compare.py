"""Comparing the two shipped stacks of full size, with a warm cache."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Row

ROUNDS = 5


def run(folder: Path) -> Iterator[Row]:
    """Seconds of work (CPU), start-up included: what the machine does beside it does not count."""
    command = [str(Path(sys.executable).with_name("imagebuilder")), "diff", "cu128-debian", "cu130-debian"]
    costs = [measure.command([*command, "--output", str(folder / "diff.txt")]) for _ in range(ROUNDS)]
    work = statistics.median(cost.cpu for cost in costs[1:])
    yield measure.at_most("diff of cu128-debian and cu130-debian, work", work, 2, "s CPU")
