"""An image to a registry: blobs, the manifest by digest, proof that all of it is there, evidence, then tags.

Nobody finds the image under a tag before it is whole, verified and accompanied by its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, NotAccepted, PushFailed
from imagebuilder.oci.image import Image
from imagebuilder.oci.push import Pushed, push_image
from imagebuilder.oci.registry import Registry
from imagebuilder.progress import Reporter
from imagebuilder.publish.carried import Artefact, put
from imagebuilder.publish.evidence import Evidence, attach
from imagebuilder.publish.keys import Signer
from imagebuilder.publish.sign import sign
from imagebuilder.values import Digest, ImageRef

CONNECTIONS = 4
_REMEMBERED = "pushed"  # kind of the records that say where a blob was brought to
_MOUNT_SOURCES = 3  # repositories that are asked for a blob before it is sent

Acceptance = Callable[[Digest], str | None]
"""Asked with a config digest: None where the image has a passing acceptance, else why it counts as none."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a push did. evidence: (kind, digest of its manifest). signatures: how many were made."""

    reference: ImageRef
    tags: tuple[str, ...]
    blobs: Pushed
    evidence: tuple[tuple[str, Digest], ...]
    signatures: int = 0


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a push would do: layers and config that are there already, and those that are not, with sizes."""

    present: tuple[tuple[Digest, int], ...]
    missing: tuple[tuple[Digest, int], ...]

    @property
    def bytes_to_send(self) -> int:
        """At most: a registry that has a blob elsewhere may link it."""
        return sum(size for _, size in self.missing)


def require_acceptance(image: Image, channel: str, acceptance: Acceptance, *, stack: str) -> None:
    """NotAccepted where an image without a passing acceptance would be given out as `channel`."""
    why_not = acceptance(image.config_digest)
    if why_not is not None:
        raise NotAccepted(
            f"the image of {stack} is not accepted, so the channel {channel} is not moved to it",
            seen=why_not,
            wanted=f"a passing acceptance of config {image.config_digest}",
            hint=f"imagebuilder accept {stack}, with a Docker engine; or push it --unaccepted",
        )


def publish(
    registry: Registry,
    repository: str,
    image: Image,
    tags: Sequence[str],
    *,
    evidence: Sequence[Evidence] = (),
    carried: tuple[Artefact, ...] = (),
    signer: Signer | None = None,
    mount_from: Iterable[str] = (),
    cache: Cache,
    reporter: Reporter,
) -> Published:
    """Push, verify, attach the evidence, sign, tag.

    carried: what came with a pulled image, put back as it was. signer: signs the image and the evidence.
    mount_from: repositories of this registry that may have some of the blobs. PushFailed, ArtefactUnusable.
    """
    sources = _mount_sources(registry.host, repository, image, mount_from, cache)
    pushed = push_image(
        registry,
        repository,
        image,
        mount_from=sources,
        reporter=reporter,
        connections=CONNECTIONS,
    )
    verify_stored(registry, repository, image)
    _remember(registry.host, repository, image, cache)
    put(registry, repository, carried)
    attached = [(item.kind, attach(registry, repository, image.descriptor, item)) for item in evidence]
    brought = [(item.evidence, Digest.of(item.data)) for item in carried]
    attached += [(item.kind, digest) for item, digest in brought if item is not None]
    signatures = 0
    if signer is not None:
        documents = [*evidence, *(item for item, _ in brought if item is not None)]
        signatures = sign(registry, repository, image.digest, documents, signer=signer, cache=cache)
    for tag in tags:
        registry.push_manifest(repository, image.manifest_bytes, image.manifest.media_type, tag=tag)
        _verify_tag(registry, repository, tag, image)
    reference = ImageRef(registry.host, repository, None, image.digest)
    return Published(
        reference=reference, tags=tuple(tags), blobs=pushed, evidence=tuple(attached), signatures=signatures
    )


def preview(registry: Registry, repository: str, image: Image) -> Preview:
    """What `publish` would have to send. Asks the registry, writes nothing."""
    blobs = dict.fromkeys((layer.descriptor.digest, layer.descriptor.size) for layer in image.layers)
    blobs[(image.config_digest, len(image.config_bytes))] = None
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        there = list(pool.map(lambda blob: registry.blob_exists(repository, blob[0]), blobs))
    return Preview(
        present=tuple(blob for blob, exists in zip(blobs, there, strict=True) if exists),
        missing=tuple(blob for blob, exists in zip(blobs, there, strict=True) if not exists),
    )


def verify_stored(registry: Registry, repository: str, image: Image) -> None:
    """Ask for the manifest and for every blob, whatever the uploads were answered. PushFailed."""
    name = f"{registry.host}/{repository}@{image.digest}"
    _stored(registry, repository, image.digest)
    lost = preview(registry, repository, image).missing
    if lost:
        raise PushFailed(
            f"{len(lost)} blobs of {name} are not there after they were pushed",
            seen=", ".join(digest.text for digest, _ in lost[:3]),
            hint=f"run it again; if it stays, look at the log and the disk of {registry.host}",
        )


def _stored(registry: Registry, repository: str, reference: str | Digest) -> bytes:
    try:
        return registry.manifest(repository, reference, mirrors=False).data
    except ArtefactUnusable as error:
        raise PushFailed(
            f"what was pushed cannot be read back: {error.what}", seen=error.seen, hint=error.hint
        ) from None


def _verify_tag(registry: Registry, repository: str, tag: str, image: Image) -> None:
    seen = Digest.of(_stored(registry, repository, tag))
    if seen != image.digest:
        raise PushFailed(
            f"the tag {tag} of {registry.host}/{repository} is another image after it was set",
            seen=seen.text,
            wanted=image.digest.text,
            hint="somebody else moved it at the same moment, or the registry keeps tags immutable",
        )


def _mount_sources(
    host: str, repository: str, image: Image, given: Iterable[str], cache: Cache
) -> tuple[str, ...]:
    """Repositories of this registry that may have blobs of the image: the base's, and those we pushed to."""
    found = dict.fromkeys(given)
    for layer in image.layers:
        if data := cache.read_record(_REMEMBERED, f"{host} {layer.descriptor.digest}"):
            found[str(json.loads(data))] = None
    return tuple(name for name in found if name != repository)[:_MOUNT_SOURCES]


def _remember(host: str, repository: str, image: Image, cache: Cache) -> None:
    for layer in image.layers:
        cache.write_record(_REMEMBERED, f"{host} {layer.descriptor.digest}", json.dumps(repository).encode())
