"""Evidence that travels with a pulled image: what is attached to it and signed, in a layout beside the image.

`images/NAME.evidence` is an OCI layout of the artefacts alone; the tags of signatures are the names of their
manifests. `push` puts all of it beside the image again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.files import new_directory
from imagebuilder.oci.canonical import encode
from imagebuilder.oci.descriptor import MANIFESTS, MAX_MANIFEST, REF_NAME, Descriptor
from imagebuilder.oci.layout import MARKER, blob_path
from imagebuilder.oci.model import ImageIndex, Manifest
from imagebuilder.oci.problems import Missing
from imagebuilder.oci.registry import Document, Registry
from imagebuilder.publish import cosign
from imagebuilder.publish.evidence import KINDS, Evidence
from imagebuilder.values import Digest

SUFFIX = ".evidence"
MAX_ARTEFACTS = 256
MAX_BLOB = cosign.MAX_ENTRY
MAX_TOTAL = 256 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """One manifest with its blobs. tag: where signatures are kept; empty for a referrer."""

    manifest: Manifest
    data: bytes
    blobs: dict[Digest, bytes]
    tag: str = ""

    @property
    def evidence(self) -> Evidence | None:
        """The document of ours that it is, if it is one."""
        kind = next((k for k, media in KINDS.items() if media == self.manifest.artifact_type), None)
        if kind is None or len(self.manifest.layers) != 1:
            return None
        data = self.blobs[self.manifest.layers[0].digest]
        return Evidence(kind=kind, data=data, annotations=self.manifest.annotations)


def beside(image: Path) -> Path:
    """Where the evidence of the image at this place lies."""
    return image.with_name(image.name + SUFFIX)


def fetch(
    registry: Registry, repository: str, image: Digest, cache: Cache
) -> tuple[tuple[Artefact, ...], list[str]]:
    """(what is beside the image in the registry, what is too large to be carried). ArtefactUnusable."""
    found: list[Artefact] = []
    left: list[str] = []
    room = MAX_TOTAL
    for document, tag in _documents(registry, repository, image):
        try:
            manifest = Manifest.parse(document.data)
        except ValueError:
            left.append(f"{tag or document.digest.short}: no manifest")
            continue
        parts = (manifest.config, *manifest.layers)
        size = sum(part.size for part in parts)
        if size > room or any(part.size > MAX_BLOB for part in parts):
            left.append(f"{tag or document.digest.short}: {size} bytes")
            continue
        room -= size
        blobs = {part.digest: registry.blob(repository, part, cache).read_bytes() for part in parts}
        found.append(Artefact(manifest=manifest, data=document.data, blobs=blobs, tag=tag))
    return tuple(found), left


def _documents(registry: Registry, repository: str, image: Digest) -> Iterator[tuple[Document, str]]:
    for entry in registry.referrers(repository, image)[:MAX_ARTEFACTS]:
        if entry.media_type in MANIFESTS:
            yield registry.manifest(repository, entry.digest), ""
    for suffix in (cosign.SIGNATURE_SUFFIX, cosign.ATTESTATION_SUFFIX):
        tag = cosign.tag_of(image, suffix)
        try:
            yield registry.manifest(repository, tag, mirrors=False), tag
        except Missing:
            continue


def save(folder: Path, artefacts: tuple[Artefact, ...]) -> None:
    """Write them as a layout, replacing one that stands there. MachineLacks, UsageProblem."""
    entries = []
    files: dict[str, bytes] = {MARKER: encode({"imageLayoutVersion": "1.0.0"})}
    for item in artefacts:
        name = ((REF_NAME, item.tag),) if item.tag else ()
        entry = Descriptor.of(item.manifest.media_type, item.data, name)
        entries.append(replace(entry, artifact_type=item.manifest.artifact_type))
        files[blob_path(entry.digest)] = item.data
        files |= {blob_path(digest): data for digest, data in item.blobs.items()}
    files["index.json"] = ImageIndex(manifests=tuple(entries)).to_bytes()
    with new_directory(folder, marker=MARKER, others=("index.json", "blobs")) as new:
        (new / "blobs" / "sha256").mkdir(parents=True)
        for path, data in files.items():
            (new / path).write_bytes(data)


def load(folder: Path, image: Digest) -> tuple[Artefact, ...]:
    """What lies in such a layout; none where there is none. ArtefactUnusable: damaged, of another image."""
    if not (folder / MARKER).is_file():
        return ()
    try:
        index = ImageIndex.parse(_read(folder / "index.json", MAX_MANIFEST))
        return tuple(_artefact(folder, entry, image) for entry in index.manifests[:MAX_ARTEFACTS])
    except (ValueError, OSError) as error:
        raise ArtefactUnusable(
            f"the evidence in {folder} cannot be used",
            seen=str(error)[:300],
            hint=f"pull the image again, or remove {folder}",
        ) from None


def _artefact(folder: Path, entry: Descriptor, image: Digest) -> Artefact:
    data = _blob(folder, entry, MAX_MANIFEST)
    manifest = Manifest.parse(data)
    tag = dict(entry.annotations).get(REF_NAME, "")
    tags = [cosign.tag_of(image, s) for s in (cosign.SIGNATURE_SUFFIX, cosign.ATTESTATION_SUFFIX)]
    if tag not in ("", *tags) or (not tag and (manifest.subject is None or manifest.subject.digest != image)):
        raise ValueError(f"{tag or entry.digest.text} is of another image than {image}")
    blobs = {p.digest: _blob(folder, p, MAX_BLOB) for p in (manifest.config, *manifest.layers)}
    return Artefact(manifest=manifest, data=data, blobs=blobs, tag=tag)


def _blob(folder: Path, wanted: Descriptor, limit: int) -> bytes:
    data = _read(folder / blob_path(wanted.digest), limit)
    if Digest.of(data) != wanted.digest:
        raise ValueError(f"blob {wanted.digest} is not what its name says")
    return data


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} is larger than {limit} bytes")
    return data


def put(registry: Registry, repository: str, artefacts: tuple[Artefact, ...]) -> None:
    """Put them beside the image in this repository; signatures that are there already stay. PushFailed."""
    for item in artefacts:
        for digest, data in item.blobs.items():
            registry.push_blob(repository, digest, data)
        if item.tag:
            cosign.append_layers(registry, repository, item.tag, item.manifest.layers)
        else:
            registry.push_referrer(repository, item.manifest, item.data)
