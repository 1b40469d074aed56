"""The image that another one is built on: found in a registry or on disk, its layers fetched when needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, ImagebuilderError
from imagebuilder.oci.archive import read_archive
from imagebuilder.oci.canonical import decode
from imagebuilder.oci.descriptor import INDEXES, LAYERS, MAX_CONFIG, MAX_MANIFEST, Descriptor, document_type
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layout import StoredImage, read_layout
from imagebuilder.oci.model import ImageIndex, Manifest
from imagebuilder.oci.problems import Missing
from imagebuilder.oci.registry import Registry
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.values import Digest, ImageRef, Platform

_TAGS_SHOWN = 12
_OF_A_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")  # tags that hold what refers to an image


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A base for one platform.

    ref: where it comes from; None: from disk. index: the image index it was reached through, if any.
    Layers have files once they were fetched.
    """

    ref: ImageRef | None
    index: Digest | None
    image: Image

    @property
    def manifest_digest(self) -> Digest:
        """Of the manifest for the platform."""
        return self.image.digest

    @property
    def index_digest(self) -> Digest:
        """What pins the base for all platforms: the index, or the manifest where there is none."""
        return self.index or self.image.digest


def resolve_base(
    ref: ImageRef, platform: Platform, *, settings: Settings, cache: Cache, registry: Registry | None = None
) -> BaseImage:
    """Finds manifest and config of `ref` for a platform; no layer is fetched. A digest wins over a tag.

    With a digest all of it comes from the cache where it was found before. ArtefactUnusable, MachineLacks.
    """
    registry = registry or Registry(ref.registry, settings)
    top = _by_digest(ref.repository, ref.digest, registry, cache, ref.tag or "") if ref.digest else None
    data, media_type = top or _by_tag(ref, registry, cache)
    index: Digest | None = None
    try:
        if media_type in INDEXES:
            index = Digest.of(data)
            chosen = ImageIndex.parse(data).choose(platform)
            data, _ = _by_digest(ref.repository, chosen.digest, registry, cache)
        config = _config(ref, data, registry, cache)
        image = Image.parse(data, config)
        _check_usable(image, platform)
    except ValueError as exc:
        raise ArtefactUnusable(f"{ref} cannot be a base", seen=str(exc)[:500]) from None
    return BaseImage(ref=ref, index=index, image=image)


def fetch_layers(
    base: BaseImage,
    *,
    settings: Settings,
    cache: Cache,
    reporter: Reporter,
    registry: Registry | None = None,
) -> BaseImage:
    """The base with all its layers' files in the cache, downloaded in parallel where they are missing."""
    if base.ref is None:
        return base
    layers, repository = base.image.layers, base.ref.repository
    source = registry or Registry(base.ref.registry, settings)
    wanted = {layer.descriptor.digest: layer.descriptor for layer in layers if layer.path is None}
    missing = [d for d in wanted.values() if not cache.artefact(d.digest)]
    total = sum(descriptor.size for descriptor in missing)
    cache.require_space(total)
    stopped: list[bool] = []
    with (
        reporter.task(f"image {base.ref.name}", total=total) as task,
        ThreadPoolExecutor(settings.connections) as pool,
    ):

        def fetch(descriptor: Descriptor) -> Path:
            return source.blob(
                repository, descriptor, cache, advance=task.advance, cancelled=lambda: bool(stopped)
            )

        try:
            list(pool.map(fetch, missing))
        except BaseException:
            stopped.append(True)
            pool.shutdown(cancel_futures=True)
            raise
    return replace(base, image=replace(base.image, layers=_with_files(layers, cache)))


def _with_files(layers: Sequence[LayerRef], cache: Cache) -> tuple[LayerRef, ...]:
    return tuple(
        replace(layer, path=layer.path or cache.artefact(layer.descriptor.digest)) for layer in layers
    )


def read_base(path: Path, platform: Platform, cache: Cache) -> BaseImage:
    """The only image for a platform in an OCI layout (a directory) or archive (a tar file).

    ArtefactUnusable: none, several, or malformed.
    """
    stored = read_layout(path) if path.is_dir() else read_archive(path, cache)
    fitting = [s for s in stored if s.image.config.platform.runs(platform)]
    if len({s.image.digest for s in fitting}) != 1:
        raise ArtefactUnusable(
            f"{path} does not hold one image for {platform}",
            seen=", ".join(_label(s) for s in stored)[:500] or "no image",
            hint="write an image of its own there, such as: skopeo copy docker://IMAGE oci:DIRECTORY",
        )
    found = fitting[0]
    try:
        _check_usable(found.image, platform)
    except ValueError as exc:
        raise ArtefactUnusable(f"{path} cannot be a base", seen=str(exc)[:500]) from None
    return BaseImage(ref=None, index=found.index, image=found.image)


def _label(stored: StoredImage) -> str:
    return f"{' '.join(stored.names) or stored.image.digest} ({stored.image.config.platform})"


def _check_usable(image: Image, platform: Platform) -> None:
    if not image.config.platform.runs(platform):
        raise ValueError(f"the image is for {image.config.platform}, wanted {platform}")
    for layer in image.layers:
        if layer.descriptor.media_type not in LAYERS:
            raise ValueError(
                f"a layer is {layer.descriptor.media_type}, which cannot be carried into an image"
            )


def _by_tag(ref: ImageRef, registry: Registry, cache: Cache) -> tuple[bytes, str]:
    tag = ref.tag or "latest"
    try:
        document = registry.manifest(ref.repository, tag)
    except Missing as error:
        error.hint = _tags_there(ref, tag, registry) or error.hint
        raise
    _keep(document.data, cache)
    return document.data, document.media_type


def _tags_there(ref: ImageRef, tag: str, registry: Registry) -> str:
    """Which tags one may have meant, the nearest first; empty where the registry tells of none."""
    try:
        told = registry.tags(ref.repository, most=1)
    except ImagebuilderError:
        return ""
    named = sorted(name for name in dict.fromkeys(told) if not _OF_A_DIGEST.match(name))
    near = get_close_matches(tag, named, _TAGS_SHOWN)
    shown = list(dict.fromkeys([*near, *named]))[:_TAGS_SHOWN]
    more = f" and {len(named) - len(shown)} more" if len(named) > len(shown) else ""
    return f"name a tag that is there ({ref.name}:{shown[0]}): {', '.join(shown)}{more}" if shown else ""


def _by_digest(
    repository: str, digest: Digest, registry: Registry, cache: Cache, tag: str = ""
) -> tuple[bytes, str]:
    """(bytes, media type) of a manifest or index."""
    if found := cache.artefact(digest):
        with found.open("rb") as file:  # bounded: a hostile index may name any large file of the cache
            data = file.read(MAX_MANIFEST + 1)
        return data, document_type(decode(data, limit=MAX_MANIFEST))
    document = registry.manifest(repository, digest, tag=tag)
    _keep(document.data, cache)
    return document.data, document.media_type


def _config(ref: ImageRef, manifest: bytes, registry: Registry, cache: Cache) -> bytes:
    descriptor = Manifest.parse(manifest).config
    if descriptor.size > MAX_CONFIG:
        raise ValueError(f"its config has {descriptor.size} bytes, at most {MAX_CONFIG} are read")
    return registry.blob(ref.repository, descriptor, cache).read_bytes()


def _keep(data: bytes, cache: Cache) -> None:
    with cache.put_artefact(Digest.of(data)) as incoming:
        if incoming is not None:
            incoming.restart()
            incoming.write(data)
