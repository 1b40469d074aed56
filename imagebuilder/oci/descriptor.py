"""Media types, limits, and the descriptor: how one part of an image names another.

Source: opencontainers/image-spec 1.1 media-types.md and descriptor.md; Docker's schema 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from imagebuilder.oci.canonical import Fields
from imagebuilder.values import Digest, Platform

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"

MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES = (OCI_INDEX, DOCKER_INDEX)
# Same bytes under two names: a layer or config of a Docker image, used in an OCI manifest.
AS_OCI = {DOCKER_LAYER: OCI_LAYER, DOCKER_LAYER_GZIP: OCI_LAYER_GZIP, DOCKER_CONFIG: OCI_CONFIG}
LAYERS = (OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, DOCKER_LAYER, DOCKER_LAYER_GZIP)

REF_NAME = "org.opencontainers.image.ref.name"
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"

MAX_MANIFEST = 4 << 20  # bytes; what registries must take at least (distribution-spec, "Pushing Manifests")
MAX_CONFIG = 8 << 20
MAX_LAYERS = 512  # overlayfs stops at about 127
MAX_ENTRIES = 4096  # manifests in an index

Pairs = tuple[tuple[str, str], ...]

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w.+!#$&^-]{0,126}/[A-Za-z0-9][\w.+!#$&^-]{0,126}", re.ASCII)


def without_nothing(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that say nothing are left out, so that equal images are equal bytes."""
    return {k: v for k, v in fields.items() if v not in (None, "", (), {}, [])}


def media_type_of(fields: Fields, key: str, default: str | None = None) -> str:
    """The media type in this field."""
    text = fields.text(key, default)
    if text != default and not _MEDIA_TYPE.fullmatch(text):
        raise fields.wrong(key, "a media type such as application/json")
    return text


@dataclass(frozen=True, kw_only=True)
class ImagePlatform:
    """A platform as an index states it; any system, not only those that imagebuilder builds for."""

    os: str
    architecture: str
    variant: str = ""
    os_version: str = ""

    @classmethod
    def of(cls, platform: Platform) -> ImagePlatform:
        """The same platform in OCI's terms."""
        return cls(os=platform.os, architecture=platform.architecture)

    @classmethod
    def parse(cls, fields: Fields) -> ImagePlatform:
        """From the `platform` object of a descriptor, or from a config."""
        return cls(
            os=fields.text("os"),
            architecture=fields.text("architecture"),
            variant=fields.text("variant", ""),
            os_version=fields.text("os.version", ""),
        )

    def runs(self, platform: Platform) -> bool:
        """Whether an image for this platform runs on `platform` (arm64 is v8, amd64 is v1)."""
        usual = {"amd64": ("", "v1"), "arm64": ("", "v8")}[platform.architecture]
        same = (self.os, self.architecture) == (platform.os, platform.architecture)
        return same and self.variant in usual

    def as_json(self) -> dict[str, Any]:
        """The object that `parse` reads."""
        return without_nothing(
            {
                "os": self.os,
                "architecture": self.architecture,
                "variant": self.variant,
                "os.version": self.os_version,
            }
        )

    def __str__(self) -> str:
        return "/".join(p for p in (self.os, self.architecture, self.variant) if p)


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Names a blob or manifest: what it is, its digest and its size in bytes."""

    media_type: str
    digest: Digest
    size: int
    annotations: Pairs = ()
    platform: ImagePlatform | None = None
    artifact_type: str = ""

    @classmethod
    def parse(cls, fields: Fields) -> Descriptor:
        """From a descriptor object; `urls` and `data` are ignored: content comes from the registry."""
        return cls(
            media_type=media_type_of(fields, "mediaType"),
            digest=fields.digest("digest"),
            size=fields.integer("size"),
            annotations=fields.mapping("annotations"),
            platform=ImagePlatform.parse(fields.object("platform")) if fields.has("platform") else None,
            artifact_type=media_type_of(fields, "artifactType", ""),
        )

    @classmethod
    def of(cls, media_type: str, data: bytes, annotations: Pairs = ()) -> Descriptor:
        """Of these bytes."""
        return cls(
            media_type=media_type,
            digest=Digest.of(data),
            size=len(data),
            annotations=tuple(sorted(annotations)),
        )

    def as_oci(self) -> Descriptor:
        """The same bytes under OCI's media type."""
        return replace(self, media_type=AS_OCI.get(self.media_type, self.media_type))

    def as_json(self) -> dict[str, Any]:
        """The object that `parse` reads."""
        return without_nothing(
            {
                "mediaType": self.media_type,
                "digest": self.digest.text,
                "annotations": dict(self.annotations),
                "platform": self.platform.as_json() if self.platform else None,
                "artifactType": self.artifact_type,
            }
        ) | {"size": self.size}


def document_type(fields: Fields) -> str:
    """What a manifest or index is. A document that could be read as both is refused (CVE-2021-41190)."""
    if fields.integer("schemaVersion") != 2:
        raise fields.wrong("schemaVersion", "2 (Docker's schema 1 is not supported)")
    many = fields.has("manifests")
    if many and (fields.has("config") or fields.has("layers")):
        raise ValueError("the document is a manifest and an index at once")
    return media_type_of(fields, "mediaType", OCI_INDEX if many else OCI_MANIFEST)
