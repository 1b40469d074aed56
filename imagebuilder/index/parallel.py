"""Doing the same to many things at a time, with one bar of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from imagebuilder.progress import Reporter

T = TypeVar("T")
R = TypeVar("R")


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
        ThreadPoolExecutor(workers) as pool,
    ):

        def one(item: T) -> R:
            result = work(item)
            task.advance(1)
            return result

        return list(pool.map(one, todo))
