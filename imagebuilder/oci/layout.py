"""Images on disk: an OCI image layout that `docker load` and skopeo's `docker-archive:` read as well.

    oci-layout  index.json  manifest.json (docker save)  blobs/sha256/<hex>

All read the same blobs: containerd, skopeo and umoci through index.json, Docker 20.10 through manifest.json.
Source: opencontainers/image-spec 1.1 image-layout.md; moby/docker-image-spec v1.2 ("Combined Image JSON").
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.files import check_directory, link_or_copy, new_directory
from imagebuilder.oci.canonical import decode, encode
from imagebuilder.oci.descriptor import INDEXES, MANIFESTS, MAX_CONFIG, MAX_MANIFEST, REF_NAME, Descriptor
from imagebuilder.oci.image import Image
from imagebuilder.oci.model import ImageIndex, Manifest
from imagebuilder.values import Digest, ImageRef

MARKER = "oci-layout"
_SAVED = "manifest.json"  # as `docker save` calls it
_OTHERS = (MARKER, "index.json", "blobs")
CONTAINERD_NAME = "io.containerd.image.name"  # what `docker load` names an image in a containerd store
_ATTESTATION = "vnd.docker.reference.type"

Blob = Callable[[Digest], Path]


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image found in a layout or archive.

    names: as annotated (`registry/repository:tag` or a bare tag).
    index: the image index it was reached through, where it is one of several platforms.
    """

    image: Image
    names: tuple[str, ...]
    index: Digest | None = None


def documents(image: Image, names: Sequence[ImageRef]) -> dict[str, bytes]:
    """The small files of a layout by path, manifest and config included. ValueError: a name without a tag."""
    for name in names:
        if name.tag is None or name.digest is not None:
            raise ValueError(f"{name} cannot name an image on disk: a tag, and no digest")
    full = sorted({f"{name.name}:{name.tag}": name.tag or "" for name in names}.items())
    entries = [
        replace(image.descriptor, annotations=((CONTAINERD_NAME, name), (REF_NAME, tag)))
        for name, tag in full
    ] or [image.descriptor]
    saved = {
        "Config": blob_path(image.config_digest),
        "RepoTags": [name for name, _ in full] or None,
        "Layers": [blob_path(layer.descriptor.digest) for layer in image.layers],
    }
    return {
        blob_path(image.config_digest): image.config_bytes,
        blob_path(image.digest): image.manifest_bytes,
        MARKER: encode({"imageLayoutVersion": "1.0.0"}),
        "index.json": ImageIndex(manifests=tuple(entries)).to_bytes(),
        _SAVED: encode([saved]),
    }


def blob_path(digest: Digest) -> str:
    """Where a blob lies in a layout."""
    return f"blobs/sha256/{digest.hex}"


def layer_files(image: Image) -> dict[str, Path]:
    """The files of the layers' blobs by path in a layout, each of the right size.

    ArtefactUnusable: a blob that is not here, or not of its size.
    """
    files: dict[str, Path] = {}
    for layer in image.layers:
        digest = layer.descriptor.digest
        if layer.path is None:
            raise ArtefactUnusable(f"layer {digest} of the image is not on this machine")
        files[blob_path(digest)] = layer.path
        _check_size(layer.path, layer.descriptor)
    return files


def write_layout(directory: Path, image: Image, names: Sequence[ImageRef] = ()) -> None:
    """Writes the image as an OCI layout at `directory`, replacing one of this form there in one step.

    Blobs are hard links to the layers' files where the file system allows it. A killed process leaves the old
    layout, or the new one. ArtefactUnusable, MachineLacks, UsageProblem; ValueError: a name without a tag.
    """
    files = layer_files(image)
    small = documents(image, names)
    with new_directory(directory, marker=_SAVED, others=_OTHERS) as new:
        (new / "blobs/sha256").mkdir(parents=True)
        for path, data in small.items():
            with (new / path).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, source in files.items():
            link_or_copy(source, new / path)


def check_layout_place(directory: Path) -> None:
    """UsageProblem where `write_layout` would refuse to replace what stands there."""
    check_directory(directory, marker=_SAVED, others=_OTHERS)


def read_layout(directory: Path, *, verify: bool = True) -> tuple[StoredImage, ...]:
    """The images in an OCI layout, with their layers' files; attestations and other artefacts are left out.

    verify: hash every layer (manifests and configs always are). ArtefactUnusable: it is no layout, a blob is
    missing or not what its name says, or a document is malformed.
    """
    _check_marker(_read(directory / MARKER, 1024), directory / MARKER)

    def blob(digest: Digest) -> Path:
        return directory / blob_path(digest)

    return read_images(_read(directory / "index.json", MAX_MANIFEST), blob, str(directory), verify=verify)


def _check_marker(data: bytes, where: Path) -> None:
    try:
        version = decode(data, limit=1024).text("imageLayoutVersion")
    except ValueError as exc:
        raise _malformed(str(where), exc) from None
    if version != "1.0.0":
        raise ArtefactUnusable(
            f"{where}: an unknown version of image layouts", seen=version[:80], wanted="1.0.0"
        )


def read_images(index_bytes: bytes, blob: Blob, where: str, *, verify: bool) -> tuple[StoredImage, ...]:
    """The images that an index.json reaches, over one level of image indexes; `blob` finds a blob's file."""
    found: dict[tuple[Digest, Digest | None], tuple[StoredImage, list[str]]] = {}
    checked: set[Digest] = set()
    for descriptor, names, index in _reachable(index_bytes, blob, where):
        key = (descriptor.digest, index)
        if key not in found:
            image = _image(descriptor, blob, where)
            if image is None:
                continue
            for layer in image.layers:
                _check_blob(layer.descriptor, blob, where, verify and layer.descriptor.digest not in checked)
                checked.add(layer.descriptor.digest)
            found[key] = (StoredImage(image=image, names=(), index=index), [])
        found[key][1].extend(names)
    return tuple(replace(stored, names=tuple(names)) for stored, names in found.values())


def _reachable(
    index_bytes: bytes, blob: Blob, where: str
) -> Iterator[tuple[Descriptor, tuple[str, ...], Digest | None]]:
    for top in _index(index_bytes, f"{where}: index.json").manifests:
        notes = dict(top.annotations)
        names = tuple(n for n in (notes.get(CONTAINERD_NAME) or notes.get(REF_NAME),) if n)
        if top.media_type in MANIFESTS:
            yield top, names, None
        elif top.media_type in INDEXES:
            data = _document(top, blob, where, MAX_MANIFEST)
            for below in _index(data, f"{where}: index {top.digest}").manifests:
                if below.media_type in MANIFESTS:
                    yield below, names, top.digest


def _image(descriptor: Descriptor, blob: Blob, where: str) -> Image | None:
    """The image of this manifest; None where it is an artefact of another kind."""
    if any(key == _ATTESTATION for key, _ in descriptor.annotations):
        return None
    manifest_bytes = _document(descriptor, blob, where, MAX_MANIFEST)
    label = f"{where}: manifest {descriptor.digest}"
    try:
        manifest = Manifest.parse(manifest_bytes)
        if not manifest.is_image:
            return None
        config_bytes = _document(manifest.config, blob, where, MAX_CONFIG)
        image = Image.parse(manifest_bytes, config_bytes)
    except ValueError as exc:
        raise _malformed(label, exc) from None
    layers = tuple(replace(layer, path=blob(layer.descriptor.digest)) for layer in image.layers)
    return replace(image, layers=layers)


def _index(data: bytes, where: str) -> ImageIndex:
    try:
        return ImageIndex.parse(data)
    except ValueError as exc:
        raise _malformed(where, exc) from None


def _document(descriptor: Descriptor, blob: Blob, where: str, limit: int) -> bytes:
    data = _read(blob(descriptor.digest), limit)
    if len(data) != descriptor.size or Digest.of(data) != descriptor.digest:
        raise ArtefactUnusable(
            f"{where}: blob {descriptor.digest} is not what its name says",
            seen=f"{Digest.of(data)}, {len(data)} bytes",
            wanted=f"{descriptor.digest}, {descriptor.size} bytes",
        )
    return data


def _check_blob(descriptor: Descriptor, blob: Blob, where: str, verify: bool) -> None:
    path = blob(descriptor.digest)
    _check_size(path, descriptor)
    if not verify:
        return
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    if hasher.hexdigest() != descriptor.digest.hex:
        raise ArtefactUnusable(
            f"{where}: blob {descriptor.digest} is not what its name says",
            seen=f"sha256:{hasher.hexdigest()}",
            wanted=descriptor.digest.text,
        )


def _check_size(path: Path, descriptor: Descriptor) -> None:
    try:
        status = path.stat()
    except OSError as exc:
        raise ArtefactUnusable(f"blob {descriptor.digest} is not at {path}", seen=exc.strerror or "") from exc
    if not stat.S_ISREG(status.st_mode) or status.st_size != descriptor.size:
        raise ArtefactUnusable(
            f"{path} is not blob {descriptor.digest}",
            seen=f"{status.st_size} bytes",
            wanted=f"a file of {descriptor.size} bytes",
        )


def _read(path: Path, limit: int) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ArtefactUnusable(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as exc:
        raise ArtefactUnusable(
            f"{path} cannot be read", seen=exc.strerror or "", wanted="an OCI image layout"
        ) from exc
    if len(data) > limit:
        raise ArtefactUnusable(f"{path} is too large", seen="more", wanted=f"at most {limit} bytes")
    return data


def _malformed(where: str, exc: ValueError) -> ArtefactUnusable:
    return ArtefactUnusable(f"{where} is malformed", seen=str(exc)[:500])
