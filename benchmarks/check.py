"""Checking the whole set of a full stack: against reading what must be read, again, and in what memory."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure, subject
from benchmarks.measure import Cost, Row
from imagebuilder.cache import Cache
from imagebuilder.lock.fetch import fetch
from imagebuilder.progress import Silent

ROUNDS = 3
MEMORY = 200  # MB
_COMMAND = [str(Path(sys.executable).with_name("imagebuilder")), "check"]


def run(folder: Path) -> Iterator[Row]:
    """Cold and warm, from files and by ranges; memory for one large stack and for a tiny one."""
    settings = subject.settings()
    lock, stack = subject.whole_lock(subject.STACK), subject.stack_and_lock(())[0]
    files = fetch(lock, stack, settings, Cache(settings.cache_dir), Silent())
    cache, remote = folder / "cache", folder / "remote"
    index = _index(folder / "index", {w.filename: (w.name, files[w.sha256]) for w in lock.wheels})
    _, read = _unpacked()  # for the first time, so that nobody waits for the disk
    cold, warm, judged, ranged = [], [], [], []
    for _ in range(ROUNDS):
        _empty(cache)
        cold.append((_check(cache), _unpacked()[0]))
        warm.append(_check(cache))
        shutil.rmtree(cache / "records" / "findings-1")
        judged.append(_check(cache))
        _empty(remote, only=[d.sha256.hex for d in lock.debs])
        ranged.append((_check(remote, IMAGEBUILDER_INDEX_DEFAULT_URL=index), _unpacked()[0]))
    yield measure.seen("bytes that must be unpacked", read / 1e9, "GB")
    yield measure.at_most("cold check / two processes that read and unpack", measure.ratio(cold), 2)
    yield measure.at_most("cold check by ranges / the same", measure.ratio(ranged), 2)
    yield measure.at_most("check again", statistics.median(c.wall for c in warm), 2, "s")
    yield measure.seen("facts known, judged again", statistics.median(c.wall for c in judged), "s")
    _empty(cache)
    yield measure.seen("peak memory, cold check of demo", _check(cache, "demo").memory / 1e6, "MB")
    for name, costs in (("", cold), (" by ranges", ranged)):
        peak = max(ours.memory for ours, _ in costs) / 1e6
        yield measure.at_most(f"peak memory, cold check of {subject.STACK}{name}", peak, MEMORY, "MB")


def _check(cache: Path, stack: str = subject.STACK, **variables: str) -> Cost:
    return measure.command([*_COMMAND, stack, "--quiet"], IMAGEBUILDER_CACHE_DIR=str(cache), **variables)


def _unpacked() -> tuple[Cost, int]:
    """What the peer took, and how many bytes it unpacked."""
    said, _ = measure.output([sys.executable, "-m", "benchmarks.unpack", subject.STACK])
    figures = json.loads(said)
    return Cost(wall=figures["wall"], cpu=figures["cpu"]), figures["bytes"]


def _empty(cache: Path, only: list[str] | None = None) -> None:
    """A cache with nothing but this user's artefacts, or those of them that are named."""
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    here = subject.settings().cache_dir / "artefacts"
    if only is None:
        (cache / "artefacts").symlink_to(here)
        return
    for name in only:
        place = Path("sha256", name[:2], name)
        (cache / "artefacts" / place).parent.mkdir(parents=True, exist_ok=True)
        (cache / "artefacts" / place).symlink_to(here / place)


def _index(folder: Path, wheels: dict[str, tuple[str, Path]]) -> str:
    """A package index in a folder with these wheels; its address."""
    for filename, (name, path) in wheels.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / filename).symlink_to(path)
        link = f'<a href="{filename}#sha256={path.name}">{filename}</a>\n'
        with (folder / name / "index.html").open("a") as page:
            page.write(f"<!DOCTYPE html>\n<html><body>{link}</body></html>\n")
    return folder.as_uri()
