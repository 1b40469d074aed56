"""What is remembered of earlier builds: images by what decides them, and engines' layers already seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from imagebuilder.builders.docker.canonical import Canonical, CanonicalLayer, Source, layer_is_here
from imagebuilder.builders.docker.normalise import IDENTITY
from imagebuilder.cache import Cache
from imagebuilder.dockerfile import PIP
from imagebuilder.oci.descriptor import Descriptor
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layout import blob_path
from imagebuilder.oci.model import ImageConfig
from imagebuilder.plan import Plan
from imagebuilder.values import Digest


def image_key(plan: Plan, dockerfile: str, tools: Mapping[str, bytes]) -> str:
    """The hash of everything that decides an image of this builder. Engines and mirrors do not."""
    parts = {
        "dockerfile": dockerfile,
        "tools": {name: Digest.of(text).text for name, text in tools.items()},
        "pip": PIP.sha256.text,
        "layers": [layer.key.text for layer in plan.layers],
        "created": plan.created.isoformat(),
        "platform": str(plan.platform),
        "identity": IDENTITY,
        "form": 2,  # no layer for a working folder
    }
    return Digest.of(json.dumps(parts, sort_keys=True).encode()).text


def read_image(key: str, cache: Cache) -> tuple[Canonical, dict[str, str]] | None:
    """The image under this key and the tools that built it; None where a layer of it is no longer here."""
    data = cache.read_record("docker-image", key)
    if data is None:
        return None
    record = json.loads(data)
    layers = [_read_layer(layer, cache) for layer in record["layers"]]
    here = [layer for layer in layers if layer is not None]
    if len(here) < len(layers):
        return None
    config = ImageConfig.parse(record["config"].encode())
    image = Image.make(config, tuple(layer.ref for layer in here))
    own = tuple(here[len(here) - record["own"] :]) if record["own"] else ()
    return Canonical(image=image, own=own, sources=()), record["tools"]


def write_image(key: str, made: Canonical, tools: Mapping[str, str], cache: Cache) -> None:
    """Remember an image whose layers are in the cache."""
    base = len(made.image.layers) - len(made.own)
    unpacked = [0] * base + [layer.unpacked for layer in made.own]
    record = {
        "config": made.image.config_bytes.decode(),
        "own": len(made.own),
        "tools": dict(tools),
        "layers": [
            {
                "descriptor": ref.descriptor.as_json(),
                "diff_id": ref.diff_id.text,
                "unpacked": size,
            }
            for ref, size in zip(made.image.layers, unpacked, strict=True)
        ],
    }
    cache.write_record("docker-image", key, json.dumps(record).encode())


def _read_layer(record: Mapping[str, Any], cache: Cache) -> CanonicalLayer | None:
    stored = record["descriptor"]
    descriptor = Descriptor(
        media_type=stored["mediaType"], digest=Digest(stored["digest"]), size=stored["size"]
    )
    path = cache.artefact(descriptor.digest)
    if path is None or path.stat().st_size != descriptor.size:
        return None
    ref = LayerRef(descriptor=descriptor, diff_id=Digest(record["diff_id"]), path=path)
    return CanonicalLayer(ref=ref, unpacked=record["unpacked"], cached=True)


def write_sources(stack_name: str, sources: Iterable[Source], cache: Cache) -> None:
    """Remember which layers an engine gave for this stack."""
    record = [{"digest": s.digest.text, "size": s.size, "key": s.key} for s in sources]
    cache.write_record("docker-sources", stack_name, json.dumps(record).encode())


def place_hollow(stack_name: str, layout: Path, cache: Cache) -> frozenset[Digest]:
    """Put hollow files in the place of layers whose final form is in the cache; their digests.

    BuildKit's export to a folder passes over blobs that are there already. So a rebuild moves, and writes to
    disk, only what changed.
    """
    data = cache.read_record("docker-sources", stack_name)
    hollow: set[Digest] = set()
    for record in json.loads(data) if data else ():
        source = Source(digest=Digest(record["digest"]), size=record["size"], key=record["key"])
        if layer_is_here(source, cache):
            path = layout / blob_path(source.digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(source.size)
            hollow.add(source.digest)
    return frozenset(hollow)
