"""Where the environment comes from: an image on disk, in an engine or in a registry, or a container."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from imagebuilder.builders.docker.saved import RawImage, read_saved
from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.oci.base import fetch_layers, resolve_base
from imagebuilder.oci.image import Image
from imagebuilder.oci.model import ImageConfig
from imagebuilder.oci.untar import Members
from imagebuilder.publish.built import is_image, read_built
from imagebuilder.publish.contents import read_layers
from imagebuilder.publish.layerscan import scan, scan_stream
from imagebuilder.snapshot.image import LayerFiles, environment_of, parse_config
from imagebuilder.snapshot.make import Means
from imagebuilder.snapshot.model import Environment
from imagebuilder.values import ImageRef, Platform

if TYPE_CHECKING:
    from imagebuilder.builders.docker.engine import Engine


def image_here(path: Path, label: str, prefix: str | None, means: Means) -> Environment:
    """Of a layout or archive on disk."""
    built = read_built(path, means.cache)
    return _of_image(built.image, label, path.name.removesuffix(".tar"), prefix, means)


def image_in_registry(
    ref: ImageRef, platform: Platform, label: str, prefix: str | None, means: Means
) -> Environment:
    """Of an image in a registry; its layers are fetched into the cache."""
    found = resolve_base(ref, platform, settings=means.settings, cache=means.cache)
    found = fetch_layers(found, settings=means.settings, cache=means.cache, reporter=means.reporter)
    return _of_image(found.image, label, name_of(ref), prefix, means)


@contextmanager
def image_in_engine(
    engine: Engine, ref: ImageRef, label: str, prefix: str | None, means: Means
) -> Iterator[Environment]:
    """Of an image in an engine, saved into the cache's temporary folder while the block runs."""
    with means.cache.temporary() as folder:
        with means.reporter.task(f"saving {ref} from the engine"):
            raw: RawImage = engine.saved(str(ref), folder / "image", read_saved)
        layers = [scan(path) for path in raw.layers]
        files = LayerFiles.of_blobs(layers, raw.layers)
        yield environment_of(files, raw.config, label=label, name=name_of(ref), prefix=prefix)


def container(engine: Engine, identity: str, prefix: str | None, means: Means) -> Environment:
    """Of a container, running or not: its file system is exported, nothing in it is run.

    Volumes are no part of it. MachineLacks: the engine has no such container.
    """
    found = engine.container(identity)
    with means.reporter.task(f"reading the files of {identity}"), engine.exporting(identity) as chunks:
        contents = scan_stream(_stream(chunks), identity)

    @contextmanager
    def opened(_: int) -> Iterator[Members]:
        with engine.exporting(identity) as chunks:
            yield Members(_stream(chunks), identity)

    files = LayerFiles([contents], opened)
    config = _config(found, engine, identity)
    name = str(found.get("Name", "")).strip("/") or identity
    return environment_of(files, config, label=f"container {identity}", name=name, prefix=prefix)


def _of_image(image: Image, label: str, name: str, prefix: str | None, means: Means) -> Environment:
    layers = read_layers(image.layers, means.cache, means.reporter, means.settings.workers)
    blobs = [cast("Path", layer.path) for layer in image.layers]
    files = LayerFiles.of_blobs(layers, blobs)
    return environment_of(files, image.config, label=label, name=name, prefix=prefix)


def _config(found: Mapping[str, Any], engine: Engine, identity: str) -> ImageConfig:
    """A container's settings in the form of an image's, which they were made from."""
    run = dict(found.get("Config") or {})
    image = engine.image(str(found.get("Image") or run.get("Image") or ""))
    document = {
        "architecture": str(image.get("Architecture") or ""),
        "os": str(image.get("Os") or "linux"),
        "config": {
            key: run[key]
            for key in ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels", "ExposedPorts", "Volumes")
            if run.get(key)
        },
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    return parse_config(json.dumps(document).encode(), f"container {identity}")


def _stream(chunks: Iterator[bytes]) -> IO[bytes]:
    from imagebuilder.builders.docker.saved import reader_of

    return cast("IO[bytes]", io.BufferedReader(reader_of(chunks), 1 << 20))


def name_of(ref: ImageRef) -> str:
    """A name for a stack, after an image."""
    last = ref.repository.rpartition("/")[2]
    return f"{last}-{ref.tag}" if ref.tag and ref.tag != "latest" else last


def stack_name(text: str) -> str:
    """The nearest name that a stack may have."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")
    return name or "snapshot"


def on_disk(path: Path) -> bool:
    """Whether an image lies there."""
    return is_image(path)


def reference(text: str) -> ImageRef:
    """UsageProblem where it is none."""
    try:
        return ImageRef.parse(text)
    except ValueError as error:
        raise UsageProblem(
            f"--image {error}", wanted="a layout, an archive (.tar), or the reference of an image"
        ) from None


def engine_or_none(environment: Mapping[str, str], note: Callable[[str], None]) -> Engine | None:
    """The engine that this environment leads to; None where none answers, and the reason to `note`."""
    from imagebuilder.builders.docker.engine import Engine

    try:
        return Engine.connect(environment)
    except MachineLacks as error:
        note(f"{error.what}: the image is looked for in its registry only")
        return None
