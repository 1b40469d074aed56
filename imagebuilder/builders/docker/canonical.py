"""An image as an engine made it → the image that this lock always gives. Layers are made once and kept."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class Canonical:
    """The image, and those of its layers that the build put on its base."""

    image: Image
    own: tuple[CanonicalLayer, ...]


def canonical(
    raw: RawImage, *, own: int, epoch: int, cache: Cache, reporter: Reporter, workers: int
) -> Canonical:
    """Bring the last `own` layers into one form; those of the base stay as they are.

    epoch: the image's date in seconds; no file of ours is newer. Everything is in the cache afterwards.
    Raises ArtefactUnusable, BuildFailed, MachineLacks.
    """
    split = len(raw.layers) - own
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        sources = list(pool.map(_digest_of, raw.layers))
    base = [_base_layer(path, digest, diff_id, cache) for path, digest, diff_id in
            zip(raw.layers[:split], sources, raw.config.diff_ids, strict=False)]  # fmt: skip
    todo = list(zip(raw.layers[split:], sources[split:], strict=True))
    below = _Below([(layer.path, layer.descriptor.digest) for layer in base if layer.path], cache)
    drops = [below.add(path, digest) for path, digest in todo]
    total = sum(path.stat().st_size for path, _ in todo)
    stop = threading.Event()
    with reporter.task("bringing layers into one form", total=total) as task:

        def make(item: tuple[tuple[Path, Digest], frozenset[str]]) -> CanonicalLayer:
            (path, digest), drop = item
            size = path.stat().st_size
            made = _make(path, digest, drop=drop, epoch=epoch, cache=cache, stop=stop)
            task.advance(size)
            return made

        pool = ThreadPoolExecutor(max_workers=max(1, workers))
        try:
            layers = tuple(pool.map(make, zip(todo, drops, strict=True)))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    refs = (*base, *(layer.ref for layer in layers))
    kept = [
        ref for ref, layer in zip(refs, (*(None for _ in base), *layers), strict=True) if not _empty(layer)
    ]
    config = replace(raw.config, history=_history(raw.config, [ref not in kept for ref in refs]))
    return Canonical(image=Image.make(config, tuple(kept)), own=tuple(x for x in layers if not _empty(x)))


def _empty(layer: CanonicalLayer | None) -> bool:
    """Whether nothing is left of a layer, as of WORKDIR's where the folder was there already."""
    return layer is not None and layer.unpacked == len(tar.END)


def _history(config: ImageConfig, dropped: Sequence[bool]) -> tuple[History, ...]:
    """The history, where steps whose layer was dropped have made none."""
    gone = iter(dropped)
    return tuple(replace(step, empty=step.empty or next(gone, False)) for step in config.history)


class _Below:
    """The folders of the layers so far; a base's are only read when they are asked for, and remembered."""

    def __init__(self, base: Sequence[tuple[Path, Digest]], cache: Cache) -> None:
        self._base = base
        self._cache = cache
        self._own: list[Folders] = []

    def add(self, layer: Path, digest: Digest) -> frozenset[str]:
        """Put a layer on top; the folders that it only touched."""
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


def _make(
    path: Path, digest: Digest, *, drop: frozenset[str], epoch: int, cache: Cache, stop: threading.Event
) -> CanonicalLayer:
    key = f"{digest} {epoch} {sorted(drop)} {IDENTITY}"
    with cache.lock(f"layer-{Digest.of(key.encode()).hex}", stop.is_set):
        if found := _cached(key, cache):
            return found
        with cache.temporary() as scratch, storage_errors(scratch):
            target = scratch / "layer"
            with target.open("wb") as out:
                blob = normalise(path, out, latest=epoch, scratch=scratch, drop=drop)
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
