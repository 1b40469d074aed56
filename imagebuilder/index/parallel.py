"""Doing the same to many things at a time, with one bar of progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from imagebuilder.progress import Reporter

T = TypeVar("T")
R = TypeVar("R")
_TURN = 0.0005  # seconds


def in_parallel(
    reporter: Reporter,
    label: str,
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    unit: str = "package",
) -> list[R]:
    """What `work` makes of each item, in their order. The first error ends it: nothing more is begun."""
    todo = list(items)
    with (
        reporter.task(label, total=len(todo), unit=unit) as task,
        _short_turns(),
        ThreadPoolExecutor(workers) as pool,
    ):

        def one(item: T) -> R:
            result = work(item)
            task.advance(1)
            return result

        return list(pool.map(one, todo))


@contextmanager
def _short_turns() -> Iterator[None]:
    """Threads take turns every half a millisecond.

    Unpacking leaves the interpreter's lock for less than that at a time: with Python's own 5 ms, a thread
    that unpacks mostly waits for one that reads tables.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
