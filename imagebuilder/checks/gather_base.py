"""The rim of the checks that reads a base image: its environment, and what the loader finds in its layers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, MachineLacks
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.layer import LayerFacts, image_system, known_layer, layer_facts
from imagebuilder.index.parallel import in_parallel
from imagebuilder.lock.model import Lock
from imagebuilder.oci.base import BaseImage, fetch_layers, read_base, resolve_base
from imagebuilder.oci.image import LayerRef
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack.model import DebianBase, OciBase, Stack

_UNREACHABLE = "base-unreachable-1"
_AGAIN = 3600.0  # seconds until a registry that did not answer is asked again
_MOST = 1 << 30  # bytes of layers that are fetched without being told to
_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class SeenBase:
    """What is known of the base. env: its environment. depth: how many layers it has; 0: not known, or none.

    layers: bottom first; empty where they were not read. unseen: why not; empty where they were, or where the
    base is no image. identity: of what was seen.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0
    layers: tuple[LayerFacts, ...] = ()
    unseen: str = ""
    identity: str = ""

    def system(self, stack: Stack) -> SystemFacts:
        """What the loader finds in it."""
        python = ".".join(map(str, stack.target.python.parts[:2]))
        return image_system(self.layers, stack.target.platform.triplet, python)


def see_base(
    stack: Stack, lock: Lock, *, settings: Settings, cache: Cache, reporter: Reporter, read: bool = False
) -> SeenBase:
    """The base image, from a layout on disk, from the cache, or from its registry where that answers.

    read: fetch its layers however large they are, and ask the registry even if it was just not there. A base
    that cannot be had is said in `unseen`, and no error.
    """
    if isinstance(stack.base, DebianBase):
        return SeenBase()
    try:
        base = _find(stack, lock, settings, cache, read)
    except (ArtefactUnusable, MachineLacks) as error:
        return SeenBase(unseen=_why(error))
    if base is None:
        return SeenBase(unseen="it is not locked by digest")
    manifest = SeenBase(
        env=dict(base.image.config.env),
        depth=len(base.image.layers),
        identity=f"{base.manifest_digest.text}, without layers",
    )
    known = [known_layer(layer.descriptor.digest, cache) for layer in base.image.layers]
    if not all(known):
        missing = [
            layer.descriptor
            for layer, facts in zip(base.image.layers, known, strict=True)
            if facts is None and layer.path is None and not cache.artefact(layer.descriptor.digest)
        ]
        size = sum(descriptor.size for descriptor in missing)
        if missing and (settings.offline or (size > _MOST and not read)):
            return replace(manifest, unseen=f"its layers are not here: {size / 1e9:.2f} GB to fetch")
        try:
            known = _read(base, settings, cache, reporter)
        except (ArtefactUnusable, MachineLacks) as error:
            return replace(manifest, unseen=_why(error))
    layers = tuple(facts for facts in known if facts)
    return replace(manifest, layers=layers, identity=base.manifest_digest.text)


def _find(stack: Stack, lock: Lock, settings: Settings, cache: Cache, read: bool) -> BaseImage | None:
    if isinstance(stack.base, OciBase) and stack.path is not None:
        return read_base(stack.path.parent / stack.base.path, stack.target.platform, cache)
    locked, platform = lock.base, stack.target.platform
    if locked is None or locked.ref is None or (locked.manifest or locked.index) is None:
        return None
    ref = replace(locked.ref, digest=locked.manifest or locked.index)
    try:
        return resolve_base(ref, platform, settings=replace(settings, offline=True), cache=cache)
    except (ArtefactUnusable, MachineLacks):
        if settings.offline:
            raise
        if not read and (why := _was_unreachable(str(ref), cache)):
            raise ArtefactUnusable(why, hint="--read-base asks again") from None
    try:
        return resolve_base(ref, platform, settings=settings, cache=cache)
    except (ArtefactUnusable, MachineLacks) as error:
        said = {"at": time.time(), "why": _why(error)}
        cache.write_record(_UNREACHABLE, str(ref), json.dumps(said).encode())
        raise


def _was_unreachable(ref: str, cache: Cache) -> str:
    """Why, where its registry did not answer within the last hour; else empty."""
    record = cache.read_record(_UNREACHABLE, ref)
    said = json.loads(record) if record else {"at": 0.0}
    age = time.time() - said["at"]
    return f"{said['why']} ({age / 60:.0f} minutes ago)" if 0 <= age < _AGAIN else ""


def _read(base: BaseImage, settings: Settings, cache: Cache, reporter: Reporter) -> list[LayerFacts | None]:
    fetched = fetch_layers(base, settings=settings, cache=cache, reporter=reporter)
    layers = fetched.image.layers

    def one(layer: LayerRef) -> LayerFacts | None:
        assert layer.path is not None, "it was fetched"
        return layer_facts(layer.path, layer.descriptor.digest, cache)

    return in_parallel(reporter, "reading the base image", one, layers, workers=_WORKERS, unit="layer")


def _why(error: ImagebuilderError) -> str:
    return f"{error.what}: {error.seen}" if error.seen else error.what
