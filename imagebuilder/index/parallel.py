"""Doing the same for many packages at a time, with one bar of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from imagebuilder.progress import Reporter

T = TypeVar("T")
R = TypeVar("R")


def for_each_package(
    reporter: Reporter, label: str, work: Callable[[T], R], items: Iterable[T], *, workers: int
) -> list[R]:
    """What `work` makes of each item, in their order. The first error ends it: nothing more is begun."""
    todo = list(items)
    with (
        reporter.task(label, total=len(todo), unit="package") as task,
        ThreadPoolExecutor(workers) as pool,
    ):
        futures = [pool.submit(work, item) for item in todo]
        try:
            results = []
            for future in futures:
                results.append(future.result())
                task.advance(1)
            return results
        finally:
            for future in futures:
                future.cancel()
