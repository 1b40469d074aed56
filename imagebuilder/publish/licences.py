"""Licences of what is in an image, found without reading what need not be read.

A wheel's stands in its METADATA: in the cached wheel. A Debian package's stands in its copyright file: in the
layers that hold Debian packages. Both are kept by sha256.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.lock.model import Lock
from imagebuilder.oci.image import Image
from imagebuilder.progress import Reporter
from imagebuilder.publish.contents import ImageContents, merged, read_layers
from imagebuilder.publish.layerscan import wheel_licence
from imagebuilder.values import Digest

_KIND = "wheel-licence"
_MAX_METADATA = 16 << 20


def wheel_licences(lock: Lock, cache: Cache) -> Mapping[str, str]:
    """By name, of the locked wheels that are in the cache; those that say nothing are left out."""
    found = {wheel.name: _of_wheel(wheel.sha256, cache) for wheel in lock.wheels}
    return {name: licence for name, licence in found.items() if licence}


def system_contents(
    image: Image, ours: Collection[Digest], cache: Cache, reporter: Reporter, workers: int
) -> ImageContents:
    """Of the layers that may hold Debian packages: all but `ours`, those of wheels and files."""
    layers = [layer for layer in image.layers if layer.descriptor.digest not in ours]
    return merged(read_layers(layers, cache, reporter, workers))


def _of_wheel(sha256: Digest, cache: Cache) -> str:
    stored = cache.read_record(_KIND, sha256.hex)
    if stored is not None:
        return stored.decode()
    path = cache.artefact(sha256)
    if path is None:
        return ""
    licence = wheel_licence(_metadata(path))
    cache.write_record(_KIND, sha256.hex, licence.encode())
    return licence


def _metadata(wheel: Path) -> bytes:
    """The METADATA of a wheel that was verified; empty where it has none that can be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                folder, _, name = info.filename.partition("/")
                if name == "METADATA" and folder.endswith(".dist-info") and info.file_size <= _MAX_METADATA:
                    return archive.read(info)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        pass  # what is broken about a wheel is told by those who install it
    return b""
