"""Plan → image: every layer is taken from the cache by its content key, or made; several at a time.

Layers are kept as artefacts (blobs by sha256), with a record that leads from the content key to the blob. A
layer is made by one process at a time; whoever waited takes what the other made. A killed build leaves only
temporary files.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.builders.direct import layers
from imagebuilder.cache import Cache, Cancelled, storage_errors
from imagebuilder.lock.model import DebPackage, Wheel
from imagebuilder.oci.descriptor import OCI_LAYER_GZIP, Descriptor, ImagePlatform
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.inflate import Buffer
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.oci.model import History, ImageConfig, timestamp
from imagebuilder.plan import VENV, LayerKind, Plan, PlannedLayer, merged_environment
from imagebuilder.plan.config import DEFAULT_COMMAND
from imagebuilder.progress import Reporter, Task
from imagebuilder.values import Digest

Obtain = Callable[[Sequence[Wheel], Sequence[DebPackage]], Mapping[Digest, Path]]
"""Brings artefacts to this machine, verified; gives each one's file by its sha256."""


@dataclass(frozen=True, kw_only=True)
class BuiltLayer:
    """A layer of the image. unpacked: bytes of its tar. cached: nothing had to be done."""

    planned: PlannedLayer
    ref: LayerRef
    unpacked: int
    cached: bool


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image and how its layers came about, those of a base image apart (they are in `image` only)."""

    plan: Plan
    image: Image
    layers: tuple[BuiltLayer, ...]

    @property
    def unchanged(self) -> bool:
        """Every layer came from the cache."""
        return all(layer.cached for layer in self.layers)


def build(
    plan: Plan,
    inputs: layers.Inputs,
    *,
    obtain: Obtain,
    cache: Cache,
    reporter: Reporter,
    workers: int,
) -> Built:
    """Build the image of this plan.

    Raises ArtefactUnusable, BuildFailed, MachineLacks; whatever was finished stays in the cache.
    """
    todo = [layer for layer in plan.layers if layer.image is None]
    done = {layer.key: found for layer in todo if (found := _cached(layer, cache))}
    missing = [layer for layer in todo if layer.key not in done]
    if missing:
        files = obtain(
            [w.wheel for layer in missing for w in layer.wheels], [d for layer in missing for d in layer.debs]
        )
        done |= _make_all(missing, replace(inputs, files=files), cache, reporter, workers)
    built = tuple(done[layer.key] for layer in todo)
    return Built(plan=plan, image=_image(plan, inputs.base, built), layers=built)


def _make_all(
    missing: Sequence[PlannedLayer], inputs: layers.Inputs, cache: Cache, reporter: Reporter, workers: int
) -> dict[Digest, BuiltLayer]:
    """Make these layers, the largest first so that no core waits for it at the end."""
    total = sum(_expected(layer) for layer in missing)
    cache.require_space(total)
    order = sorted(missing, key=lambda layer: -layer.size)
    with reporter.task(f"building {len(missing)} layers", total=total) as task:
        pool = ThreadPoolExecutor(max_workers=workers)
        try:
            futures = {pool.submit(_make, layer, inputs, cache, task): layer.key for layer in order}
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [f for f in futures if f.done() and f.exception()]
            return {key: future.result() for future, key in futures.items() if future in failed or not failed}
        finally:  # an error or Ctrl-C: what has not begun is given up, what runs ends at its next piece
            inputs.stop.set()
            pool.shutdown(cancel_futures=True)


def _expected(layer: PlannedLayer) -> int:
    """Bytes that will be written, about: of packages gzip makes half as much again as xz."""
    return layer.size * 3 // 2 if layer.debs else layer.size


def _make(layer: PlannedLayer, inputs: layers.Inputs, cache: Cache, task: Task) -> BuiltLayer:
    with cache.lock(f"layer-{_record_key(layer).hex}", inputs.stop.is_set):
        if found := _cached(layer, cache):
            task.advance(_expected(layer))
            return found
        with cache.temporary() as folder, storage_errors(folder):
            path = folder / "layer"
            with path.open("wb") as file:
                writer = LayerWriter(cast("BinaryIO", _Watched(file, task, inputs.stop)))
                layers.write(writer, layer, inputs, folder)
                blob = writer.finish()
            cache.adopt(path, blob.digest, proven=True)  # hashed while it was written
        record = {
            "digest": blob.digest.text,
            "size": blob.size,
            "diff_id": blob.diff_id.text,
            "unpacked": blob.uncompressed_size,
        }
        cache.write_record("layer", _record_key(layer).text, json.dumps(record).encode())
    made = _cached(layer, cache)
    assert made is not None, "a layer that was just written is in the cache"
    return replace(made, cached=False)


class _Watched:
    """A file that tells how much was written, and ends the work when the build was given up."""

    def __init__(self, file: BinaryIO, task: Task, stop: threading.Event) -> None:
        self._file, self._task, self._stop = file, task, stop

    def write(self, data: Buffer) -> int:
        if self._stop.is_set():
            raise Cancelled
        written = self._file.write(data)
        self._task.advance(written)
        return written


def _record_key(layer: PlannedLayer) -> Digest:
    """The plan's key, with what else decides the bytes in this builder."""
    return Digest.of(f"{layer.key} {layers.identity(layer)}".encode())


def _cached(layer: PlannedLayer, cache: Cache) -> BuiltLayer | None:
    data = cache.read_record("layer", _record_key(layer).text)
    if data is None:
        return None
    record = json.loads(data)
    path = cache.artefact(Digest(record["digest"]))
    if path is None or path.stat().st_size != record["size"]:
        return None
    descriptor = Descriptor(media_type=OCI_LAYER_GZIP, digest=Digest(record["digest"]), size=record["size"])
    return BuiltLayer(
        planned=layer,
        ref=LayerRef(descriptor=descriptor, diff_id=Digest(record["diff_id"]), path=path),
        unpacked=record["unpacked"],
        cached=True,
    )


def _image(plan: Plan, base: Image | None, built: Sequence[BuiltLayer]) -> Image:
    """Base image, layers and the stack's settings, as one image. A function of its arguments alone."""
    created = timestamp(plan.created)
    below = (
        base.config
        if base
        else ImageConfig(platform=ImagePlatform.of(plan.platform), command=DEFAULT_COMMAND)
    )
    run = plan.run
    history = [
        *(below.history or [History(comment="base") for _ in (base.layers if base else ())]),
        *(History(created=created, created_by=f"imagebuilder {x.planned.title}") for x in built),
    ]
    config = replace(
        below,
        created=created,
        env=merged_environment(below.env, run.environment, VENV),
        entrypoint=run.entrypoint or below.entrypoint,
        command=run.command or (() if run.entrypoint else below.command),
        user=run.user or below.user,
        workdir=run.workdir or below.workdir,
        labels=tuple(sorted({**dict(below.labels), **dict(run.labels)}.items())),
        ports=tuple(sorted({*below.ports, *run.ports})),
        history=tuple(history),
    )
    refs = (*(base.layers if base else ()), *(x.ref for x in built))
    return Image.make(config, refs)


def needs_engine(plan: Plan) -> PlannedLayer | None:
    """The layer that only a Docker build can make: apt packages on an image base, resolved while building."""
    return next((x for x in plan.layers if x.kind is LayerKind.SYSTEM and not x.debs), None)
