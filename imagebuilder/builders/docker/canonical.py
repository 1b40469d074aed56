"""An image as an engine made it → the image that this lock always gives. Layers are made once and kept."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from imagebuilder.builders.docker.normalise import IDENTITY, Folders, folders, normalise
from imagebuilder.builders.docker.saved import RawImage, digest_in_name
from imagebuilder.cache import Cache, storage_errors
from imagebuilder.oci import tar
from imagebuilder.oci.descriptor import OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, Descriptor
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layer import LayerBlob
from imagebuilder.oci.model import History, ImageConfig
from imagebuilder.progress import Reporter
from imagebuilder.values import Digest


@dataclass(frozen=True, kw_only=True)
class CanonicalLayer:
    """A layer of ours. unpacked: bytes of its tar. cached: it was there already."""

    ref: LayerRef
    unpacked: int
    cached: bool

    @property
    def empty(self) -> bool:
        """Whether nothing is left of it, as of WORKDIR's where the folder was there already."""
        return self.unpacked == len(tar.END)


@dataclass(frozen=True, kw_only=True)
class _Todo:
    """A layer as it came, its digest, and the paths to leave out."""

    path: Path
    digest: Digest
    drop: frozenset[str]
    epoch: int

    @property
    def key(self) -> str:
        """Of the record of its final form."""
        return f"{self.digest} {self.epoch} {sorted(self.drop)} {IDENTITY}"


@dataclass(frozen=True, kw_only=True)
class Canonical:
    """The image, those of its layers that the build put on its base, and what all layers were made from.

    instructions: of the Dockerfile, one for each of `own`, in BuildKit's words; none of a remembered image.
    """

    image: Image
    own: tuple[CanonicalLayer, ...]
    sources: tuple[Source, ...]
    instructions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A layer as an engine gave it. key: of the record of its final form; empty for a base's."""

    digest: Digest
    size: int
    key: str = ""


class Hollow(Exception):
    """The contents of a layer are needed after all, and its file is hollow."""


def canonical(
    raw: RawImage,
    *,
    titles: Sequence[str],
    created: str,
    cache: Cache,
    reporter: Reporter,
    workers: int,
    hollow: Collection[Digest] = (),
) -> Canonical:
    """Bring the layers that the build made into one form; those of its base stay as they are.

    created: the image's date (RFC 3339); no file of ours is newer. titles: of the plan's layers, for the
    history; where a template made other layers, BuildKit's words stay. All is in the cache afterwards.
    The layer that WORKDIR makes of a folder that no other has is left out, as the direct builder has none:
    engines make that folder when they start a container.
    hollow: layers whose files have no contents; Hollow is raised where one is not known here after all.
    Raises ArtefactUnusable, BuildFailed, MachineLacks.
    """
    steps = _steps(raw.config, created)
    split = len(raw.layers) - len(steps)
    if len(steps) == len(titles) + 1 and steps[-1].startswith("WORKDIR "):
        raw, steps = replace(raw, layers=raw.layers[:-1]), steps[:-1]
    workers = max(1, workers)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        sources = list(zip(raw.layers, pool.map(_digest_of, raw.layers), strict=True))
    base = [
        _base_layer(path, digest, diff_id, cache)
        for (path, digest), diff_id in zip(sources[:split], raw.config.diff_ids[:split], strict=True)
    ]
    below = _Below([(layer.path, layer.descriptor.digest) for layer in base if layer.path], cache)
    epoch = int(datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp())
    todo = [
        _Todo(path=path, digest=digest, drop=below.add(path, digest, hollow), epoch=epoch)
        for path, digest in sources[split:]
    ]
    for item in todo:
        if item.digest in hollow and _cached(item.key, cache) is None:
            raise Hollow
    layers = _make_all(todo, cache, reporter, workers)
    history = _history(raw.config, created, titles, steps, layers)
    own = tuple(layer for layer in layers if not layer.empty)
    told = tuple(_told(step) for step, layer in zip(steps, layers, strict=True) if not layer.empty)
    refs = (*base, *(layer.ref for layer in own))
    seen = [Source(digest=ref.descriptor.digest, size=ref.descriptor.size) for ref in base]
    seen += [Source(digest=x.digest, size=x.path.stat().st_size, key=x.key) for x in todo]
    image = Image.make(replace(raw.config, history=history), refs)
    return Canonical(image=image, own=own, sources=tuple(seen), instructions=told)


def _first_own(config: ImageConfig, created: str) -> int:
    """Where the build's steps begin: BuildKit dates them by SOURCE_DATE_EPOCH, a base its own otherwise."""
    ours = len(config.history)
    while ours and config.history[ours - 1].created == created:
        ours -= 1
    return ours


def _steps(config: ImageConfig, created: str) -> list[str]:
    """BuildKit's words for each layer that is not the base's."""
    own = config.history[_first_own(config, created) :]
    return [step.created_by for step in own if not step.empty]


def _told(step: str) -> str:
    """`RUN sh /mnt/tools/install-wheels …` of BuildKit's `RUN /bin/sh -c sh … # buildkit`."""
    return " ".join(step.replace("/bin/sh -c ", "", 1).removesuffix("# buildkit").split())


def _history(
    config: ImageConfig,
    created: str,
    titles: Sequence[str],
    steps: Sequence[str],
    layers: Sequence[CanonicalLayer],
) -> tuple[History, ...]:
    """The base's history, then one step for each layer that is left, as the direct builder writes it."""
    words = [f"imagebuilder {title}" for title in titles] if len(titles) == len(steps) else steps
    ours = (
        History(created=created, created_by=text)
        for text, layer in zip(words, layers, strict=True)
        if not layer.empty
    )
    return (*config.history[: _first_own(config, created)], *ours)


class _Below:
    """The folders of the layers so far; a base's are only read when they are asked for, and remembered."""

    def __init__(self, base: Sequence[tuple[Path, Digest]], cache: Cache) -> None:
        self._base = base
        self._cache = cache
        self._own: list[Folders] = []

    def add(self, layer: Path, digest: Digest, hollow: Collection[Digest]) -> frozenset[str]:
        """Put a layer on top; the folders that it only touched. Hollow where it would have to be read."""
        if digest in hollow and self._cache.read_record("layer-folders", digest.text) is None:
            raise Hollow
        found = self._folders(layer, digest)
        only_touched: frozenset[str] = frozenset()
        if found.leaves:
            state: dict[str, tuple[int, int, int]] = {}
            for lower in (*(self._folders(path, known) for path, known in self._base), *self._own):
                state = lower.over(state)
            only_touched = found.only_touched(state)
        self._own.append(found)
        return only_touched

    def _folders(self, layer: Path, digest: Digest) -> Folders:
        stored = self._cache.read_record("layer-folders", digest.text)
        if stored is not None:
            record = json.loads(stored)
            return Folders(
                attributes={path: (a[0], a[1], a[2]) for path, a in record["attributes"].items()},
                leaves=frozenset(record["leaves"]),
                removed=tuple(record["removed"]),
            )
        found = folders(layer)
        record = {
            "attributes": dict(found.attributes),
            "leaves": sorted(found.leaves),
            "removed": found.removed,
        }
        self._cache.write_record("layer-folders", digest.text, json.dumps(record).encode())
        return found


def _make_all(todo: Sequence[_Todo], cache: Cache, reporter: Reporter, workers: int) -> list[CanonicalLayer]:
    """At once; where one fails or the user interrupts, the others are given up."""
    stop = threading.Event()
    total = sum(item.path.stat().st_size for item in todo)
    with reporter.task("bringing layers into one form", total=total) as task:

        def make(item: _Todo) -> CanonicalLayer:
            size = item.path.stat().st_size
            made = _make(item, cache, stop)
            task.advance(size)
            return made

        pool = ThreadPoolExecutor(max_workers=workers)
        try:
            return list(pool.map(make, todo))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _make(todo: _Todo, cache: Cache, stop: threading.Event) -> CanonicalLayer:
    key = todo.key
    with cache.lock(f"layer-{Digest.of(key.encode()).hex}", stop.is_set):
        if found := _cached(key, cache):
            return found
        with cache.temporary() as scratch, storage_errors(scratch):
            target = scratch / "layer"
            with target.open("wb") as out:
                blob = normalise(todo.path, out, latest=todo.epoch, scratch=scratch, drop=todo.drop)
            cache.adopt(target, blob.digest, proven=True)  # hashed while it was written
        record = {
            "digest": blob.digest.text,
            "size": blob.size,
            "diff_id": blob.diff_id.text,
            "unpacked": blob.uncompressed_size,
        }
        cache.write_record("docker-layer", key, json.dumps(record).encode())
    made = _cached(key, cache)
    assert made is not None, "a layer that was just written is in the cache"
    return replace(made, cached=False)


def layer_is_here(source: Source, cache: Cache) -> bool:
    """Whether the final form of an engine's layer is in the cache, so that the layer itself is not needed."""
    if not source.key:
        return cache.artefact(source.digest) is not None
    return _cached(source.key, cache) is not None


def _cached(key: str, cache: Cache) -> CanonicalLayer | None:
    data = cache.read_record("docker-layer", key)
    if data is None:
        return None
    record = json.loads(data)
    path = cache.artefact(Digest(record["digest"]))
    if path is None or path.stat().st_size != record["size"]:
        return None
    blob = LayerBlob(
        digest=Digest(record["digest"]),
        size=record["size"],
        diff_id=Digest(record["diff_id"]),
        uncompressed_size=record["unpacked"],
    )
    return CanonicalLayer(ref=LayerRef.of(blob, path), unpacked=record["unpacked"], cached=True)


def _base_layer(path: Path, digest: Digest, diff_id: Digest, cache: Cache) -> LayerRef:
    """A layer of the base image, as it came, in the cache."""
    with path.open("rb") as file:
        magic = file.read(4)
    packed = {b"\x1f\x8b": OCI_LAYER_GZIP, b"\x28\xb5": OCI_LAYER_ZSTD}
    size = path.stat().st_size
    kept = cache.artefact(digest) or cache.adopt(path, digest, proven=True)
    descriptor = Descriptor(media_type=packed.get(magic[:2], OCI_LAYER), digest=digest, size=size)
    return LayerRef(descriptor=descriptor, diff_id=diff_id, path=kept)


def _digest_of(path: Path) -> Digest:
    """The sha256 of a layer as it came: engines name blobs by it, old ones do not."""
    if named := digest_in_name(path):
        return named
    hashing = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hashing.update(chunk)
    return Digest.from_hex(hashing.hexdigest())
