"""An image as one tar file: `docker load` takes it, skopeo as `oci-archive:` and as `docker-archive:`.

The same files as in a layout (`imagebuilder.oci.layout`), in a fixed order and without times or owners: equal
images are equal archives.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, UsageProblem
from imagebuilder.files import check_writable, new_file
from imagebuilder.oci.descriptor import MAX_MANIFEST
from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import (
    StoredImage,
    blob_path,
    check_layout_place,
    documents,
    layer_files,
    read_images,
    write_layout,
)
from imagebuilder.tarheaders import SmallHeaders
from imagebuilder.values import Digest, ImageRef

_BLOB = re.compile(r"(?:\./)?blobs/sha256/([0-9a-f]{64})")
_COPY = 1 << 20
_FOLDERS = ("blobs", "blobs/sha256")  # what an archive written here begins with


def write_image(target: Path, image: Image, names: Sequence[ImageRef] = ()) -> None:
    """Writes the image: a tar file where `target` ends in .tar, else a layout. Errors as `write_layout`."""
    write = write_archive if target.suffix == ".tar" else write_layout
    write(target, image, names)


def check_place(target: Path) -> None:
    """UsageProblem where `write_image` would have to destroy what is no image of this form."""
    if target.suffix == ".tar":
        _check_archive_place(target)
    else:
        check_layout_place(target)


def write_archive(file: Path, image: Image, names: Sequence[ImageRef] = ()) -> None:
    """Writes the image to a tar file, which appears whole or not at all. Errors as `write_layout`.

    What stands there is replaced when it is empty, or an archive written here.
    """
    _check_archive_place(file)
    layer_files(image)
    with new_file(file) as out:
        stream_archive(out, image, names)


def stream_archive(out: BinaryIO, image: Image, names: Sequence[ImageRef] = ()) -> None:
    """Writes the tar to a stream, such as one that `docker load` reads; flat in memory."""
    files = layer_files(image)
    small = documents(image, names)
    out.write(_beginning())
    for path in sorted({*files, *small}):
        if path in small:
            _write_member(out, path, io.BytesIO(small[path]), len(small[path]))
        else:
            with files[path].open("rb") as blob:
                _write_member(out, path, blob, files[path].stat().st_size)
    out.write(bytes(2 * tarfile.BLOCKSIZE))


def _check_archive_place(file: Path) -> None:
    check_writable(file)
    if not (file.is_symlink() or file.exists()):
        return
    try:
        with file.open("rb") if file.is_file() else io.BytesIO(b"?") as there:
            begins = there.read(len(_beginning()))
    except OSError:
        begins = b"?"
    if begins not in (b"", _beginning()):
        raise UsageProblem(
            f"{file} is there and is not an image written by imagebuilder: it is not replaced",
            hint="name another file, or remove this one yourself",
        )


def _beginning() -> bytes:
    return b"".join(_header(folder, tarfile.DIRTYPE, 0o755, 0) for folder in _FOLDERS)


def _keep(content: IO[bytes], digest: Digest, cache: Cache, where: Path) -> None:
    try:
        with cache.put_artefact(digest) as incoming:
            if incoming is None:
                return
            incoming.restart()
            while chunk := content.read(_COPY):
                incoming.write(chunk)
    except ArtefactUnusable as exc:
        raise ArtefactUnusable(
            f"{where}: {blob_path(digest)} is not what its name says", seen=exc.seen, wanted=exc.wanted
        ) from None


def _write_member(out: BinaryIO, path: str, content: BinaryIO, size: int) -> None:
    out.write(_header(path, tarfile.REGTYPE, 0o644, size))
    left = size
    while left and (chunk := content.read(min(_COPY, left))):
        out.write(chunk)
        left -= len(chunk)
    if left:
        raise ArtefactUnusable(f"{path} became shorter while it was read", seen=f"{left} bytes are missing")
    out.write(bytes(-size % tarfile.BLOCKSIZE))


def _header(path: str, kind: bytes, mode: int, size: int) -> bytes:
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.size = kind, mode, size
    return member.tobuf(format=tarfile.PAX_FORMAT)


def read_archive(file: Path, cache: Cache) -> tuple[StoredImage, ...]:
    """The images in an uncompressed tar of an OCI layout; its blobs go into the cache, verified on the way.

    Nothing else is unpacked. ArtefactUnusable: no such archive, or a blob is not what its name says.
    """
    index: bytes | None = None
    try:
        with tarfile.open(file, mode="r:", tarinfo=SmallHeaders, encoding="utf-8") as tar:
            for member in tar:
                if not member.isreg():
                    continue
                content = tar.extractfile(member)
                assert content is not None  # regular files have content
                if match := _BLOB.fullmatch(member.name):
                    _keep(content, Digest.from_hex(match[1]), cache, file)
                elif member.name.removeprefix("./") == "index.json":
                    index = content.read(MAX_MANIFEST + 1)
    except (OSError, tarfile.TarError) as exc:
        raise ArtefactUnusable(
            f"{file} cannot be read as an image archive",
            seen=str(exc)[:200],
            hint="write it again: imagebuilder build STACK --output FILE.tar, or docker save",
        ) from exc
    if index is None:
        raise ArtefactUnusable(
            f"{file} holds no index.json",
            wanted="an OCI archive: from imagebuilder, `docker save` of 25 or newer, or skopeo oci-archive:",
        )

    def blob(digest: Digest) -> Path:
        path = cache.artefact(digest)
        if path is None:
            raise ArtefactUnusable(f"{file} refers to {blob_path(digest)}, which is not in it")
        return path

    return read_images(index, blob, str(file), verify=False)
