"""What is known of an image, attached to it in the registry: SBOM, provenance, reports.

Each is an OCI 1.1 artefact manifest whose subject is the image's manifest.
Source: image-spec 1.1, manifest.md, "Guidelines for Artifact Usage".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from imagebuilder.oci.descriptor import OCI_EMPTY, Descriptor, Pairs
from imagebuilder.oci.model import Manifest
from imagebuilder.oci.registry import Registry
from imagebuilder.values import Digest

SBOM_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_TYPE = "application/vnd.in-toto+json"
CHECKS_TYPE = "application/vnd.imagebuilder.checks.v1+json"
ACCEPTANCE_TYPE = "application/vnd.imagebuilder.acceptance.v1+json"
KINDS = {
    "sbom": SBOM_TYPE,
    "provenance": PROVENANCE_TYPE,
    "checks": CHECKS_TYPE,
    "acceptance": ACCEPTANCE_TYPE,
}
TITLE = "org.opencontainers.image.title"  # the file name that `oras pull` gives a blob
_EMPTY = b"{}"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One document. kind: a key of KINDS. annotations: of the manifest, shown where referrers are listed."""

    kind: str
    data: bytes
    annotations: Pairs = ()

    @property
    def media_type(self) -> str:
        """Of the document, and the artefact's type."""
        return KINDS[self.kind]

    @property
    def filename(self) -> str:
        """What it is called when it is saved."""
        return {"sbom": "sbom.cdx.json", "provenance": "provenance.intoto.json"}.get(
            self.kind, f"{self.kind}.json"
        )

    def manifest(self, subject: Descriptor) -> Manifest:
        """The artefact that refers to `subject`; equal documents give equal manifests."""
        blob = Descriptor.of(self.media_type, self.data, ((TITLE, self.filename),))
        return Manifest(
            config=Descriptor.of(OCI_EMPTY, _EMPTY),
            layers=(blob,),
            artifact_type=self.media_type,
            subject=replace(subject, platform=None, annotations=()),
            annotations=tuple(sorted(self.annotations)),
        )


def attach(registry: Registry, repository: str, subject: Descriptor, evidence: Evidence) -> Digest:
    """Put the document into the repository and list it as a referrer of the image. PushFailed."""
    manifest = evidence.manifest(subject)
    registry.push_blob(repository, manifest.config.digest, _EMPTY)
    registry.push_blob(repository, manifest.layers[0].digest, evidence.data)
    return registry.push_referrer(repository, manifest)
