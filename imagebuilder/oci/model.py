"""What an image says about itself: manifests, indexes and configs, as values.

`parse` reads the bytes of a file that somebody else wrote, of OCI or of Docker's schema 2, and raises
ValueError with the field, the value seen and the form wanted. `to_bytes` writes the canonical form
(`imagebuilder.oci.canonical`). An image from elsewhere keeps the bytes it came in: its digest is theirs.
Source: opencontainers/image-spec 1.1; moby/docker-image-spec for the fields of the config.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from imagebuilder.oci.canonical import Fields, decode, encode
from imagebuilder.oci.descriptor import (
    DOCKER_CONFIG,
    INDEXES,
    LAYERS,
    MANIFESTS,
    MAX_CONFIG,
    MAX_ENTRIES,
    MAX_LAYERS,
    MAX_MANIFEST,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    ImagePlatform,
    Pairs,
    document_type,
    media_type_of,
    without_nothing,
)
from imagebuilder.values import Digest, Platform

__all__ = [
    "Descriptor",
    "Healthcheck",
    "History",
    "ImageConfig",
    "ImageIndex",
    "ImagePlatform",
    "Manifest",
    "timestamp",
]

MAX_HISTORY = 4096
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_PORT = re.compile(r"\d{1,5}(-\d{1,5})?(/(tcp|udp|sctp))?", re.ASCII)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds: how `created` is written."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An image for one platform, or an artefact (`artifact_type`) such as an SBOM."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    media_type: str = OCI_MANIFEST
    annotations: Pairs = ()
    subject: Descriptor | None = None
    artifact_type: str = ""

    @property
    def is_image(self) -> bool:
        """Whether containers can be made of it; attestations, signatures and charts are not images."""
        layers = all(layer.media_type in LAYERS for layer in self.layers)
        return self.config.media_type in (OCI_CONFIG, DOCKER_CONFIG) and layers

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """From bytes; ValueError for anything but an image manifest."""
        fields = decode(data, limit=MAX_MANIFEST)
        media_type = document_type(fields)
        if media_type not in MANIFESTS:
            raise ValueError(f"the document is {media_type}, wanted an image manifest")
        if not fields.has("config") or not fields.has("layers"):
            raise ValueError("the manifest has no config or no layers")
        return cls(
            media_type=media_type,
            config=Descriptor.parse(fields.object("config")),
            layers=tuple(Descriptor.parse(f) for f in fields.objects("layers", limit=MAX_LAYERS)),
            annotations=fields.mapping("annotations"),
            subject=Descriptor.parse(fields.object("subject")) if fields.has("subject") else None,
            artifact_type=media_type_of(fields, "artifactType", ""),
        )

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return encode(
            {
                "schemaVersion": 2,
                "mediaType": self.media_type,
                "config": self.config.as_json(),
                "layers": [layer.as_json() for layer in self.layers],
            }
            | without_nothing(
                {
                    "annotations": dict(self.annotations),
                    "subject": self.subject.as_json() if self.subject else None,
                    "artifactType": self.artifact_type,
                }
            )
        )


@dataclass(frozen=True, kw_only=True)
class ImageIndex:
    """A list of manifests: the platforms of an image, the referrers of one, or what a layout holds."""

    manifests: tuple[Descriptor, ...]
    media_type: str = OCI_INDEX
    annotations: Pairs = ()
    subject: Descriptor | None = None
    artifact_type: str = ""

    @classmethod
    def parse(cls, data: bytes) -> ImageIndex:
        """From bytes; ValueError for anything but an index."""
        fields = decode(data, limit=MAX_MANIFEST)
        media_type = document_type(fields)
        if media_type not in INDEXES:
            raise ValueError(f"the document is {media_type}, wanted an image index")
        return cls(
            media_type=media_type,
            manifests=tuple(Descriptor.parse(f) for f in fields.objects("manifests", limit=MAX_ENTRIES)),
            annotations=fields.mapping("annotations"),
            subject=Descriptor.parse(fields.object("subject")) if fields.has("subject") else None,
            artifact_type=media_type_of(fields, "artifactType", ""),
        )

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return encode(
            {
                "schemaVersion": 2,
                "mediaType": self.media_type,
                "manifests": [m.as_json() for m in self.manifests],
            }
            | without_nothing(
                {
                    "annotations": dict(self.annotations),
                    "subject": self.subject.as_json() if self.subject else None,
                    "artifactType": self.artifact_type,
                }
            )
        )

    def choose(self, platform: Platform) -> Descriptor:
        """The manifest for this platform; ValueError lists the platforms there are.

        A plain variant is preferred; attestations (platform unknown/unknown) never match.
        """
        found = [d for d in self.manifests if d.platform and d.platform.runs(platform)]
        if not found:
            there = sorted({str(d.platform) for d in self.manifests if d.platform}) or ["none"]
            raise ValueError(f"there is no image for {platform}, only for: {', '.join(there)[:500]}")
        return min(found, key=lambda d: bool(d.platform and d.platform.variant))


@dataclass(frozen=True, kw_only=True)
class History:
    """How one layer came about; `empty` where the step made none."""

    created: str = ""
    created_by: str = ""
    comment: str = ""
    author: str = ""
    empty: bool = False

    @classmethod
    def parse(cls, fields: Fields) -> History:
        """From an entry of a config's history."""
        return cls(
            created=_time(fields, "created"),
            created_by=fields.text("created_by", ""),
            comment=fields.text("comment", ""),
            author=fields.text("author", ""),
            empty=fields.flag("empty_layer"),
        )

    def as_json(self) -> dict[str, Any]:
        """The object that `parse` reads."""
        return without_nothing(
            {
                "created": self.created,
                "created_by": self.created_by,
                "comment": self.comment,
                "author": self.author,
                "empty_layer": self.empty or None,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Healthcheck:
    """Docker's health check; times in nanoseconds, 0 = Docker's default."""

    test: tuple[str, ...]
    interval: int = 0
    timeout: int = 0
    start_period: int = 0
    start_interval: int = 0
    retries: int = 0

    @classmethod
    def parse(cls, fields: Fields) -> Healthcheck:
        """From the `Healthcheck` object of a config."""
        return cls(
            test=fields.texts("Test"),
            interval=fields.integer("Interval", 0),
            timeout=fields.integer("Timeout", 0),
            start_period=fields.integer("StartPeriod", 0),
            start_interval=fields.integer("StartInterval", 0),
            retries=fields.integer("Retries", 0),
        )

    def as_json(self) -> dict[str, Any]:
        """The object that `parse` reads."""
        times = {
            "Interval": self.interval,
            "Timeout": self.timeout,
            "StartPeriod": self.start_period,
            "StartInterval": self.start_interval,
            "Retries": self.retries,
        }
        return {"Test": list(self.test)} | {name: value for name, value in times.items() if value}


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """What a container of the image runs, and the diff_ids of its layers from the bottom up.

    The digest of its bytes identifies an image across stores and pushes. Times are RFC 3339 (`timestamp`).
    Fields of Docker that only matter while building (Shell, OnBuild) are not kept.
    """

    platform: ImagePlatform
    diff_ids: tuple[Digest, ...] = ()
    created: str = ""
    author: str = ""
    env: Pairs = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    labels: Pairs = ()
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    healthcheck: Healthcheck | None = None
    history: tuple[History, ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> ImageConfig:
        """From bytes; ValueError for anything but an image config."""
        fields = decode(data, limit=MAX_CONFIG)
        rootfs, run = fields.object("rootfs"), fields.object("config")
        if rootfs.text("type") != "layers":
            raise rootfs.wrong("type", "'layers'")
        ports = run.object("ExposedPorts").keys()
        if bad := [p for p in ports if not _PORT.fullmatch(p)]:
            raise ValueError(f"config.ExposedPorts has {bad[0][:80]!r}, wanted a port such as 8000/tcp")
        return cls(
            platform=ImagePlatform.parse(fields),
            diff_ids=rootfs.digests("diff_ids", limit=MAX_LAYERS),
            created=_time(fields, "created"),
            author=fields.text("author", ""),
            env=_env(run),
            entrypoint=run.texts("Entrypoint"),
            command=run.texts("Cmd"),
            user=run.text("User", ""),
            workdir=run.text("WorkingDir", ""),
            labels=run.mapping("Labels"),
            ports=tuple(sorted(ports)),
            volumes=tuple(sorted(run.object("Volumes").keys())),
            stop_signal=run.text("StopSignal", ""),
            healthcheck=Healthcheck.parse(run.object("Healthcheck")) if run.has("Healthcheck") else None,
            history=tuple(History.parse(f) for f in fields.objects("history", limit=MAX_HISTORY)),
        )

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        run = without_nothing(
            {
                "Env": [f"{name}={value}" for name, value in self.env],
                "Entrypoint": list(self.entrypoint),
                "Cmd": list(self.command),
                "User": self.user,
                "WorkingDir": self.workdir,
                "Labels": dict(self.labels),
                "ExposedPorts": {port: {} for port in self.ports},
                "Volumes": {path: {} for path in self.volumes},
                "StopSignal": self.stop_signal,
                "Healthcheck": self.healthcheck.as_json() if self.healthcheck else None,
            }
        )
        return encode(
            self.platform.as_json()
            | without_nothing(
                {
                    "created": self.created,
                    "author": self.author,
                    "history": [entry.as_json() for entry in self.history],
                }
            )
            | {
                "config": run,
                "rootfs": {"type": "layers", "diff_ids": [d.text for d in self.diff_ids]},
            }
        )


def _time(fields: Fields, key: str) -> str:
    text = fields.text(key, "")
    if text and not _TIME.fullmatch(text):
        raise fields.wrong(key, "a time such as 2026-02-25T00:00:00Z")
    return text


def _env(run: Fields) -> Pairs:
    pairs = []
    for item in run.texts("Env"):
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise ValueError(f"config.Env has {item[:80]!r}, wanted NAME=value")
        pairs.append((name, value))
    return tuple(pairs)
