"""What lies in an image: files with owners, packages, licences. Each layer is read once, then cached."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from imagebuilder.cache import Cache
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.progress import Reporter
from imagebuilder.publish.layerscan import DebianPackage, Distribution, Entry, LayerContents, scan

KIND = "layer-contents-1"
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, kw_only=True)
class ImageContents:
    """An image: its layers put on top of each other."""

    files: Mapping[str, Entry]
    wheels: tuple[Distribution, ...]
    debs: tuple[DebianPackage, ...]
    licences: Mapping[str, str]


def read_image(image: Image, cache: Cache, reporter: Reporter, workers: int = 2) -> ImageContents:
    """The contents of an image whose layers have files. Raises ArtefactUnusable for a damaged layer."""
    return merged(read_layers(image.layers, cache, reporter, workers))


def read_layers(
    layers: Sequence[LayerRef], cache: Cache, reporter: Reporter, workers: int
) -> list[LayerContents]:
    """Each layer's contents; those that were not read before are, several at a time."""
    unread = [x for x in layers if cache.read_record(KIND, x.descriptor.digest.text) is None]
    if unread:
        total = sum(layer.descriptor.size for layer in unread)
        with (
            reporter.task(f"reading {len(unread)} layers", total=total) as task,
            ThreadPoolExecutor(workers) as pool,
        ):
            for layer in pool.map(lambda x: _read_and_keep(x, cache), unread):
                task.advance(layer.descriptor.size)
    return [read_layer(layer, cache) for layer in layers]


def read_layer(layer: LayerRef, cache: Cache) -> LayerContents:
    """One layer, from the cache where it was read before."""
    data = cache.read_record(KIND, layer.descriptor.digest.text)
    return _decode(data) if data is not None else _read_and_keep_contents(layer, cache)


def merged(layers: Sequence[LayerContents]) -> ImageContents:
    """Layers on top of each other, bottom first, with whiteouts. Source: OCI image-spec, layer.md."""
    files: dict[str, Entry] = {}
    wheels: dict[str, Distribution] = {}
    debs: tuple[DebianPackage, ...] = ()
    licences: dict[str, str] = {}
    for layer in layers:
        for path in _hidden(layer.files, files):
            del files[path]
        files.update((p, e) for p, e in layer.files.items() if not p.rpartition("/")[2].startswith(WHITEOUT))
        wheels.update(layer.wheels)
        debs = debs if layer.debs is None else layer.debs
        licences.update(layer.licences)
    kept = {folder: wheel for folder, wheel in wheels.items() if f"{folder}/METADATA" in files}
    return ImageContents(
        files=files,
        wheels=tuple(sorted(kept.values(), key=lambda w: w.name)),
        debs=tuple(sorted(debs, key=lambda d: (d.name, d.architecture))),
        licences=licences,
    )


def _hidden(layer: Mapping[str, Entry], below: Mapping[str, Entry]) -> list[str]:
    """The paths of the layers below that this layer removes, or replaces by something that is no folder."""
    gone: list[str] = []
    roots: set[str] = set()
    for path, entry in layer.items():
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            roots.add(f"{folder}/" if folder else "")
        elif name.startswith(WHITEOUT):
            target = f"{folder}/{name[4:]}" if folder else name[4:]
            gone += [target] if target in below else []
            roots.add(f"{target}/")
        elif entry.kind != "directory" and path in below and below[path].kind == "directory":
            roots.add(f"{path}/")
    if roots:
        prefixes = tuple(roots)
        gone += [path for path in below if path.startswith(prefixes)]
    return list(dict.fromkeys(gone))


# ---------------------------------------------------------------- reading one layer


def _read_and_keep(layer: LayerRef, cache: Cache) -> LayerRef:
    _read_and_keep_contents(layer, cache)
    return layer


def _read_and_keep_contents(layer: LayerRef, cache: Cache) -> LayerContents:
    assert layer.path is not None, "only layers that are here are read"
    contents = scan(layer.path)
    cache.write_record(KIND, layer.descriptor.digest.text, _encode(contents))
    return contents


# ---------------------------------------------------------------- the record


def _encode(contents: LayerContents) -> bytes:
    owners = list(dict.fromkeys(e.owner for e in contents.files.values()))
    number = {owner: i for i, owner in enumerate(owners)}
    value = {
        "owners": owners,
        "files": [[p, e.kind, e.size, e.mode, e.content, number[e.owner]] for p, e in contents.files.items()],
        "wheels": [[folder, w.name, w.version, w.licence] for folder, w in contents.wheels.items()],
        "debs": None
        if contents.debs is None
        else [[d.name, d.version, d.architecture] for d in contents.debs],
        "licences": contents.licences,
    }
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _decode(data: bytes) -> LayerContents:
    value = json.loads(zlib.decompress(data))
    owners = value["owners"]
    return LayerContents(
        files={
            path: Entry(kind=kind, size=size, mode=mode, content=content, owner=owners[owner])
            for path, kind, size, mode, content, owner in value["files"]
        },
        wheels={f: Distribution(name=n, version=v, licence=x) for f, n, v, x in value["wheels"]},
        debs=None
        if value["debs"] is None
        else tuple(DebianPackage(name=n, version=v, architecture=a) for n, v, a in value["debs"]),
        licences=value["licences"],
    )
