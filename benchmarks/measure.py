"""Running things and saying how long they took: each in a fresh process, in turn with its peer."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """wall, cpu: seconds. memory: peak of resident memory, bytes."""

    wall: float
    cpu: float
    memory: int = 0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: a value, what it is a ratio of, and the bound that is wanted of it."""

    name: str
    value: float
    unit: str
    wanted: str
    holds: bool

    def __str__(self) -> str:
        verdict = "ok" if self.holds else "NO"
        return f"{verdict:3} {self.name:64} {self.value:8.2f} {self.unit:6} wanted {self.wanted}"


def at_most(name: str, value: float, bound: float, unit: str = "×") -> Row:
    """A figure that must not be above its bound."""
    return Row(name=name, value=value, unit=unit, wanted=f"≤ {bound:g}", holds=value <= bound)


def at_least(name: str, value: float, bound: float, unit: str = "×") -> Row:
    """A figure that must not be below its bound."""
    return Row(name=name, value=value, unit=unit, wanted=f"≥ {bound:g}", holds=value >= bound)


def seen(name: str, value: float, unit: str = "×") -> Row:
    """A figure that is part of one with a bound."""
    return Row(name=name, value=value, unit=unit, wanted="-", holds=True)


def command(arguments: Sequence[str], **variables: str) -> Cost:
    """Run a command to its end; its standard output is thrown away. RuntimeError when it fails."""
    return output(arguments, **variables)[1]


def output(arguments: Sequence[str], **variables: str) -> tuple[str, Cost]:
    """As `command`, with what it wrote to standard output."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        begun = time.perf_counter()
        environment = {**os.environ, **variables}
        process = subprocess.Popen(arguments, env=environment, stdout=said, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)[:300]}:\n{errors.read()[-2000:]}")
        cost = Cost(wall=wall, cpu=used.ru_utime + used.ru_stime, memory=used.ru_maxrss * 1024)
        return said.read(), cost


def function(name: str, *arguments: str) -> Cost:
    """Run `benchmarks.work.NAME(*arguments)` in a fresh interpreter; only the call itself is timed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.work", name, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"benchmarks.work {name}:\n{done.stderr[-2000:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def ratio(pairs: Sequence[tuple[Cost, Cost]]) -> float:
    """Median of the wall-time ratios, pair by pair."""
    return statistics.median(one.wall / other.wall for one, other in pairs)
