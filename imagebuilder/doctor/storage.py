"""What lies on this machine: images and results below a folder, and the cache; and what of it may go.

Nothing goes that a lock or an image here needs, that was used lately, or that somebody is working on. What a
removed file of the cache costs is a download or a layer made again, never a wrong image.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from imagebuilder.accept.results import BROKEN_OFF, Stored, all_results
from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, MachineLacks
from imagebuilder.lock.model import Lock
from imagebuilder.oci.layout import MARKER
from imagebuilder.publish.built import RECORD_SUFFIX, BuildRecord, BuiltImage, read_built, read_record
from imagebuilder.publish.carried import SUFFIX
from imagebuilder.publish.carried import beside as evidence_beside
from imagebuilder.values import Digest

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Own:
    """A lock: of which stack, its file's digest, and what it needs.

    shipped: it came with imagebuilder, so its files only matter where an image of it lies here.
    """

    stack: str
    digest: Digest
    lock: Lock
    shipped: bool = False


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that takes space. kind: image, result, artefact, record, leftover.

    size: bytes that only this has (an image's blobs are hard links to the cache's). used: seconds of the
    epoch. shared: bytes that lie in the cache as well. keep: why it stays; empty: it may go.
    """

    kind: str
    name: str
    paths: tuple[Path, ...]
    size: int
    used: float
    shared: int = 0
    detail: str = ""
    keep: str = ""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Everything found, and the sizes of the cache's folders."""

    items: tuple[Item, ...]
    folders: tuple[tuple[str, int], ...]

    def of(self, *kinds: str) -> tuple[Item, ...]:
        """The items of these kinds."""
        return tuple(item for item in self.items if item.kind in kinds)


def survey(
    folder: Path, results: Path, cache: Cache, own: Sequence[Own], *, now: float, older_than: float
) -> Survey:
    """What lies below `folder` (images), `results` and in the cache. older_than: seconds without use."""
    built = list(_built(folder / "images", cache))
    accepted = _accepted(results)
    used = _used(built, own)
    items = [
        *(
            _image(path, image, record, _why_kept(path, record, own, accepted, now - older_than))
            for path, image, record in built
        ),
        *_results(results, {image.image.config_digest for _, image, _ in built if image}, now, older_than),
        *_artefacts(cache, used, now, older_than),
        *_records(cache, now, older_than),
        *_leftovers(cache, now),
    ]
    folders = [(f.name, _size([f])) for f in _entries(cache.root) if f.is_dir()]
    return Survey(items=tuple(items), folders=tuple(sorted(folders, key=lambda x: -x[1])))


def remove(items: Sequence[Item], cache: Cache, *, now: Callable[[], float]) -> int:
    """Remove what may go; bytes freed. MachineLacks: somebody is at work in this cache."""
    if busy := in_use(cache):
        raise MachineLacks(
            f"another imagebuilder is at work in {cache.root}",
            seen=f"it holds {busy}",
            hint="run it again when that has ended",
        )
    freed = 0
    for item in items:
        if item.keep or item.kind == "leftover":
            continue
        for path in item.paths:
            with suppress(FileNotFoundError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        freed += item.size
    return freed + cache.prune(now())


def in_use(cache: Cache) -> str:
    """The name of a lock that another process holds, or nothing."""
    import filelock

    for path in _entries(cache.root / "locks"):
        try:
            with filelock.FileLock(path, timeout=0):
                pass
        except filelock.Timeout:
            return path.name
        except OSError:
            continue
    return ""


# ---------------------------------------------------------------- images


def _built(folder: Path, cache: Cache) -> Iterator[tuple[Path, BuiltImage | None, BuildRecord | None]]:
    """Each image below the folder; None where it cannot be read."""
    for path in _entries(folder):
        if path.suffix == SUFFIX and path.with_suffix("").exists():
            continue  # what came with the image of that name
        if path.is_dir() and (path / MARKER).is_file():
            try:
                image = read_built(path, cache)
                yield path, image, image.record
            except ArtefactUnusable:
                yield path, None, None
        elif path.suffix == ".tar" and path.is_file():
            with suppress(ArtefactUnusable):
                yield path, None, read_record(path)


def _image(path: Path, image: BuiltImage | None, record: BuildRecord | None, keep: str) -> Item:
    beside = [b for b in (path.with_name(f"{path.name}{RECORD_SUFFIX}"), evidence_beside(path)) if b.exists()]
    digest = record.manifest.short if record else image.image.digest.short if image else ""
    size = _size([path])
    whole = sum(layer.descriptor.size for layer in image.image.layers) if image else size
    return Item(
        kind="image",
        name=path.name,
        paths=(path, *beside),
        size=size + _size(beside),
        shared=max(0, whole - size),
        used=path.stat().st_mtime,
        detail=digest or "cannot be read",
        keep=keep,
    )


def _why_kept(
    path: Path, record: BuildRecord | None, own: Sequence[Own], accepted: frozenset[str], since: float
) -> str:
    if record is None:
        return "not built here, or not whole: remove it yourself"
    if record.config.text in accepted:
        return "accepted"
    if any(o.digest == record.lock for o in own):
        return "built from a lock that is here"
    return "made lately" if path.stat().st_mtime > since else ""


def _accepted(results: Path) -> frozenset[str]:
    latest = {s.record.config_digest: s.record for s in _judged(results) if s.record}
    return frozenset(config for config, record in latest.items() if config and record.accepts)


def _judged(results: Path) -> list[Stored]:
    try:
        return all_results(results)
    except ArtefactUnusable:  # told by the verbs that read results; here nothing of them may go then
        return []


def _results(results: Path, here: set[Digest], now: float, older_than: float) -> Iterator[Item]:
    latest = {stored.folder.parent: stored for stored in _judged(results)}
    for stored in _judged(results):
        record = stored.record
        keep = ""
        if record and record.config_digest and Digest(record.config_digest) in here:
            keep = "of an image that is here"
        elif record and record.accepts and latest[stored.folder.parent] == stored:
            keep = "what accepts its image"
        elif now - stored.folder.stat().st_mtime < older_than:
            keep = "made lately"
        yield Item(
            kind="result",
            name=stored.name,
            paths=(stored.folder,),
            size=_size([stored.folder]),
            used=stored.folder.stat().st_mtime,
            detail=f"{record.stack}: {record.outcome}" if record else BROKEN_OFF,
            keep=keep,
        )


# ---------------------------------------------------------------- the cache


def _used(
    built: Sequence[tuple[Path, BuiltImage | None, BuildRecord | None]], own: Sequence[Own]
) -> dict[str, str]:
    """sha256 (hex) → by what it is needed."""
    used: dict[str, str] = {}
    for path, image, _ in built:
        for layer in image.image.layers if image else ():
            used[layer.descriptor.digest.hex] = f"a layer of images/{path.name}"
    here = {record.lock for _, _, record in built if record}
    for o in own:
        if o.shipped and o.digest not in here:
            continue
        for digest in (*(w.sha256 for w in o.lock.wheels), *(d.sha256 for d in o.lock.debs)):
            used[digest.hex] = f"in the lock of {o.stack}"
        if o.lock.base is not None:
            for base in filter(None, (o.lock.base.index, o.lock.base.manifest)):
                used[base.hex] = f"the base of {o.stack}"
    return used


def _artefacts(cache: Cache, used: dict[str, str], now: float, older_than: float) -> Iterator[Item]:
    for folder in _entries(cache.root / "artefacts" / "sha256"):
        for path in _entries(folder):
            with suppress(FileNotFoundError):
                status = path.stat()
                keep = used.get(path.name, "")
                yield _cached("artefact", path, status, keep or _lately(status, now, older_than))


def _records(cache: Cache, now: float, older_than: float) -> Iterator[Item]:
    for kind in _entries(cache.root / "records"):
        for folder in _entries(kind):
            for path in _entries(folder):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield _cached("record", path, status, _lately(status, now, older_than), kind.name)


def _cached(kind: str, path: Path, status: os.stat_result, keep: str, detail: str = "") -> Item:
    used = max(status.st_atime, status.st_mtime)
    size = status.st_size if status.st_nlink == 1 else 0  # else an image shares it: nothing is freed
    return Item(kind=kind, name=path.name, paths=(path,), size=size, used=used, detail=detail, keep=keep)


def _lately(status: os.stat_result, now: float, older_than: float) -> str:
    return "used lately" if now - max(status.st_atime, status.st_mtime) < older_than else ""


def _leftovers(cache: Cache, now: float) -> Iterator[Item]:
    """What killed processes left; `Cache.prune` decides which of it is stale."""
    for path in (*_entries(cache.root / "partial"), *_entries(cache.root / "tmp")):
        with suppress(OSError):
            yield Item(
                kind="leftover", name=path.name, paths=(path,), size=_size([path]), used=path.stat().st_mtime
            )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(paths: Sequence[Path]) -> int:
    """Bytes below these, without hard links (their files lie elsewhere too) and what vanishes meanwhile."""
    total = 0
    for path in paths:
        below = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        for file in below if path.is_dir() else (path,):
            with suppress(OSError):
                status = file.lstat()
                total += status.st_size if status.st_nlink == 1 else 0
    return total


def day(moment: float) -> str:
    """For people."""
    return f"{datetime.fromtimestamp(moment, tz=timezone.utc):%Y-%m-%d}"
