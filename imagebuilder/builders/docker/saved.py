"""An image as it comes out of an engine: a stream of `docker save`, or a layout that BuildKit exported."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.layout import read_layout
from imagebuilder.oci.model import ImageConfig
from imagebuilder.tarheaders import SmallHeaders
from imagebuilder.values import Digest

_MAX_JSON = 8 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RawImage:
    """Config and layers, bottom first, as files; each layer's diff_id is in the config."""

    config: ImageConfig
    layers: tuple[Path, ...]


def read_exported(folder: Path) -> RawImage:
    """The one image in a layout that BuildKit wrote."""
    stored = read_layout(folder, verify=False)
    if len(stored) != 1:
        raise ArtefactUnusable("BuildKit exported not one image", seen=f"{len(stored)}", wanted="1")
    image = stored[0].image
    return RawImage(config=image.config, layers=tuple(cast("Path", layer.path) for layer in image.layers))


def read_saved(chunks: Iterable[bytes], folder: Path) -> RawImage:
    """The one image in a stream of `docker save`, unpacked into `folder`.

    Both forms are read through manifest.json: that of Docker 25 and newer (blobs by digest) and the older one
    (a folder for each layer). Nothing is written outside `folder`. ArtefactUnusable: it is no such stream.
    """
    links: dict[str, str] = {}
    try:
        stream = io.BufferedReader(cast("io.RawIOBase", _Reader(iter(chunks))), _CHUNK)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=SmallHeaders, encoding="utf-8") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name.startswith("/") or ".." in name.split("/"):
                    raise ArtefactUnusable(f"the saved image has an entry {member.name!r}")
                if member.issym():  # a layer that the image has twice, in the older form
                    links[name] = _joined(name, member.linkname)
                elif member.isreg():
                    _unpack(archive, member, folder / name)
        while stream.read(_CHUNK):  # the end of the answer, so that the connection can be used again
            pass
        manifest = json.loads(_small(folder / "manifest.json"))
        (entry,) = manifest
        config = ImageConfig.parse(_small(folder / entry["Config"]))
        layers = tuple(folder / links.get(name, name) for name in entry["Layers"])
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError) as error:
        if (
            isinstance(error, OSError)
            and error.errno is not None
            and not isinstance(error, FileNotFoundError)
        ):
            raise
        raise ArtefactUnusable("the engine's `docker save` cannot be read", seen=str(error)[:300]) from error
    if len(layers) != len(config.diff_ids) or not all(path.is_file() for path in layers):
        raise ArtefactUnusable(
            "the engine's `docker save` lacks layers", wanted=f"{len(config.diff_ids)} layers"
        )
    return RawImage(config=config, layers=layers)


def digest_in_name(path: Path) -> Digest | None:
    """The digest that a blob's file is called by; None for other names."""
    try:
        return Digest.from_hex(path.name)
    except ValueError:
        return None


def reader_of(chunks: Iterator[bytes]) -> io.RawIOBase:
    """A file of what comes in pieces."""
    return _Reader(chunks)


class _Reader(io.RawIOBase):
    """A file of what comes in pieces."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        while not self._rest:
            try:
                self._rest = next(self._chunks)
            except StopIteration:
                return 0
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None, "a regular file has content"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        shutil.copyfileobj(content, out, _CHUNK)


def _joined(name: str, target: str) -> str:
    """Where a relative link of the archive leads, within the archive."""
    parts = name.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _small(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MAX_JSON + 1)
    if len(data) > _MAX_JSON:
        raise ValueError(f"{path.name} is larger than {_MAX_JSON} bytes")
    return data
