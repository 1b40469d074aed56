"""An image that can be written or pushed: its config, its manifest, and where the bytes of its layers are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from imagebuilder.oci.descriptor import OCI_CONFIG, OCI_LAYER_GZIP, Descriptor, Pairs
from imagebuilder.oci.layer import LayerBlob
from imagebuilder.oci.model import ImageConfig, Manifest
from imagebuilder.values import Digest


@dataclass(frozen=True, kw_only=True)
class LayerRef:
    """A layer: its blob, the digest of the tar in it, and the blob's file.

    path: None while the blob is only in a registry (a base's layer that nobody needed here).
    """

    descriptor: Descriptor
    diff_id: Digest
    path: Path | None = None

    @classmethod
    def of(cls, blob: LayerBlob, path: Path | None, annotations: Pairs = ()) -> LayerRef:
        """A gzip layer that was written here."""
        descriptor = Descriptor(
            media_type=OCI_LAYER_GZIP, digest=blob.digest, size=blob.size, annotations=annotations
        )
        return cls(descriptor=descriptor, diff_id=blob.diff_id, path=path)


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image for one platform. `Image.make` for one of ours, `Image.parse` for one that exists already.

    The bytes of config and manifest are kept, since their digests are what others know the image by.
    """

    config: ImageConfig
    manifest: Manifest
    layers: tuple[LayerRef, ...]
    config_bytes: bytes
    manifest_bytes: bytes

    @classmethod
    def make(cls, config: ImageConfig, layers: tuple[LayerRef, ...], annotations: Pairs = ()) -> Image:
        """An OCI image of this config and these layers, bottom first.

        The config's diff_ids are set from the layers. Annotations go to the manifest.
        """
        config = replace(config, diff_ids=tuple(layer.diff_id for layer in layers))
        config_bytes = config.to_bytes()
        manifest = Manifest(
            config=Descriptor.of(OCI_CONFIG, config_bytes),
            layers=tuple(layer.descriptor.as_oci() for layer in layers),
            annotations=tuple(sorted(annotations)),
        )
        return cls(
            config=config,
            manifest=manifest,
            layers=layers,
            config_bytes=config_bytes,
            manifest_bytes=manifest.to_bytes(),
        )

    @classmethod
    def parse(cls, manifest_bytes: bytes, config_bytes: bytes) -> Image:
        """An image from elsewhere; its layers have no files yet. ValueError where it contradicts itself."""
        manifest = Manifest.parse(manifest_bytes)
        if Digest.of(config_bytes) != manifest.config.digest:
            raise ValueError(
                f"the config is {Digest.of(config_bytes)}, the manifest wants {manifest.config.digest}"
            )
        config = ImageConfig.parse(config_bytes)
        if len(config.diff_ids) != len(manifest.layers):
            raise ValueError(
                f"the manifest has {len(manifest.layers)} layers, the config {len(config.diff_ids)} diff_ids"
            )
        layers = tuple(
            LayerRef(descriptor=descriptor, diff_id=diff_id)
            for descriptor, diff_id in zip(manifest.layers, config.diff_ids, strict=True)
        )
        return cls(
            config=config,
            manifest=manifest,
            layers=layers,
            config_bytes=config_bytes,
            manifest_bytes=manifest_bytes,
        )

    @property
    def config_digest(self) -> Digest:
        """What identifies the image across stores and pushes."""
        return Digest.of(self.config_bytes)

    @property
    def digest(self) -> Digest:
        """The digest of the manifest: what a registry knows the image by."""
        return Digest.of(self.manifest_bytes)

    @property
    def descriptor(self) -> Descriptor:
        """The manifest's descriptor, with the platform, as an index holds it."""
        named = Descriptor.of(self.manifest.media_type, self.manifest_bytes)
        return replace(named, platform=self.config.platform)
