"""Pushing a whole image: its blobs in parallel, then the manifest by digest, then the tags."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from imagebuilder.errors import PushFailed
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.registry import Registry
from imagebuilder.oci.upload import FileBody
from imagebuilder.progress import Reporter, Silent, Task
from imagebuilder.values import Digest

Fetch = Callable[[LayerRef], Path]


class _Stopped(Exception):
    """Another upload failed, so this one is given up."""


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push did. digest: the manifest's. Blobs, config included: sent, linked, or there already.

    sent_bytes: of the blobs that were sent.
    """

    digest: Digest
    sent: int
    mounted: int
    existing: int
    sent_bytes: int


def push_image(
    registry: Registry,
    repository: str,
    image: Image,
    tags: Sequence[str] = (),
    *,
    mount_from: Sequence[str] = (),
    fetch: Fetch | None = None,
    reporter: Reporter | None = None,
    connections: int = 4,
) -> Pushed:
    """Pushes `image` by digest, then under each tag; nobody sees it before all its blobs are there.

    mount_from: repositories of the same registry that may have some of the blobs (the base's).
    fetch: brings a layer that has no file here, nor is in the registry. PushFailed, MachineLacks.
    """
    largest_first = sorted(image.layers, key=lambda layer: -layer.descriptor.size)
    layers = {layer.descriptor.digest: layer for layer in largest_first}
    sizes = [*(layer.descriptor.size for layer in layers.values()), len(image.config_bytes)]
    with (
        (reporter or Silent()).task(f"push {registry.host}/{repository}", total=sum(sizes)) as task,
        ThreadPoolExecutor(max(1, connections)) as pool,
    ):
        blobs = _Blobs(registry, repository, tuple(mount_from), fetch, task)
        futures = [pool.submit(blobs.push_layer, layer) for layer in layers.values()]
        futures.append(pool.submit(blobs.push_config, image))
        outcomes = _gather(futures, blobs.stop)
    manifest = (image.manifest_bytes, image.manifest.media_type)
    digest = registry.push_manifest(repository, *manifest)
    for tag in tags:
        registry.push_manifest(repository, *manifest, tag=tag)
    return Pushed(
        digest=digest,
        sent=outcomes.count("pushed"),
        mounted=outcomes.count("mounted"),
        existing=outcomes.count("exists"),
        sent_bytes=sum(s for s, outcome in zip(sizes, outcomes, strict=True) if outcome == "pushed"),
    )


@dataclass(frozen=True)
class _Blobs:
    """Pushes single blobs until `stop` is set."""

    registry: Registry
    repository: str
    mount_from: tuple[str, ...]
    fetch: Fetch | None
    task: Task
    stop: threading.Event = field(default_factory=threading.Event)

    def push_layer(self, layer: LayerRef) -> str:
        self._check()
        digest, size = layer.descriptor.digest, layer.descriptor.size
        bodies: list[FileBody] = []

        def body() -> FileBody:
            if not bodies:  # a second try sends the same one, so that progress stays right
                bodies.append(FileBody(self._file(layer), size, self.task.advance, self._check))
            return bodies[0]

        outcome = self.registry.push_blob(self.repository, digest, body, mount_from=self.mount_from)
        self.task.advance(size - sum(b.sent for b in bodies))  # what did not have to be sent
        return outcome

    def push_config(self, image: Image) -> str:
        self._check()
        outcome = self.registry.push_blob(self.repository, image.config_digest, image.config_bytes)
        self.task.advance(len(image.config_bytes))
        return outcome

    def _file(self, layer: LayerRef) -> Path:
        path = layer.path or (self.fetch(layer) if self.fetch else None)
        if path is None:
            raise PushFailed(
                f"layer {layer.descriptor.digest} is neither on this machine "
                f"nor in {self.registry.host}/{self.repository}"
            )
        return path

    def _check(self) -> None:
        if self.stop.is_set():
            raise _Stopped


def _gather(futures: list[Future[str]], stop: threading.Event) -> list[str]:
    """The results; where one fails or the user interrupts, the others are given up first."""
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        failed = [f for f in futures if f.done() and f.exception()]
        if failed:
            failed[0].result()
        return [future.result() for future in futures]
    except BaseException:
        stop.set()
        for future in futures:
            future.cancel()
        raise
