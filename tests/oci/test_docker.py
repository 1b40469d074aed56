"""Real engines take what is written: by `docker load`, and by `docker pull` from where it was pushed."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.oci.archive import read_archive, stream_archive, write_archive
from imagebuilder.oci.image import Image
from imagebuilder.oci.push import push_image
from imagebuilder.oci.registry import Registry
from imagebuilder.settings import Settings
from imagebuilder.values import Digest, ImageRef
from tests.support.engine import TestEngine, find_engine
from tests.support.registry import TestRegistry

pytestmark = pytest.mark.docker


@pytest.fixture(params=["containerd", "classic", "old"])
def any_engine(request: pytest.FixtureRequest) -> TestEngine:
    return find_engine(request.param)


@pytest.fixture
def name(any_engine: TestEngine, tmp_path: Path) -> Iterator[ImageRef]:
    """A name for this test alone; the image is removed from the engine at the end."""
    ref = ImageRef.parse(f"imagebuilder-test/oci-{Digest.of(str(tmp_path).encode()).short}:1.0")
    yield ref
    any_engine.docker("rmi", "-f", str(ref), check=False)


@pytest.fixture
def image(image: Image, tmp_path: Path) -> Image:
    """An image for this test alone: an engine that takes one away forgets who else names it just now."""
    return Image.make(replace(image.config, env=(("TEST", str(tmp_path)),)), image.layers)


def check_image(engine: TestEngine, ref: str, image: Image) -> None:
    """The engine has this very image: its config, its layers, its files."""
    (seen,) = json.loads(engine.docker("image", "inspect", ref))
    assert seen["RootFS"]["Layers"] == [d.text for d in image.config.diff_ids]
    assert seen["Config"]["Labels"] == {"org.example.stack": "demo"}
    # A containerd store names an image by its manifest, the others by its config.
    assert seen["Id"] in (image.config_digest.text, image.digest.text)
    container = engine.docker("create", ref).strip()
    try:
        content = subprocess.run(
            ["docker", "export", container], env=engine.environment, capture_output=True, check=True
        ).stdout
    finally:
        engine.docker("rm", container)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        file = tar.extractfile("opt/file0")
        assert file and file.read() == b"hello\n"
        assert tar.getmember("opt/file1").size == 300_000
        assert tar.getmember("opt/file1").mtime == 1_000_000_000


def test_docker_load(any_engine: TestEngine, name: ImageRef, image: Image, tmp_path: Path) -> None:
    write_archive(tmp_path / "image.tar", image, [name])
    said = any_engine.docker("load", "-i", str(tmp_path / "image.tar"))
    assert "Loaded image" in said and name.repository in said
    check_image(any_engine, str(name), image)


def test_docker_load_from_a_stream(any_engine: TestEngine, name: ImageRef, image: Image) -> None:
    out = io.BytesIO()
    stream_archive(out, image, [name])
    any_engine.docker("load", data=out.getvalue())
    check_image(any_engine, str(name), image)


def test_docker_pull_of_what_was_pushed(
    any_engine: TestEngine, real_registry: TestRegistry, settings: Settings, image: Image, tmp_path: Path
) -> None:
    repository = f"pulled/{Digest.of(str(tmp_path).encode()).short}"
    push_image(Registry(real_registry.host, settings), repository, image, ["1.0"])
    ref = f"{real_registry.host}/{repository}@{image.digest}"
    any_engine.docker("pull", ref)
    try:
        check_image(any_engine, ref, image)
    finally:
        any_engine.docker("rmi", "-f", ref, check=False)


def test_docker_save_is_read_back(
    name: ImageRef, any_engine: TestEngine, image: Image, cache: Cache, tmp_path: Path
) -> None:
    if any_engine.kind == "old":
        pytest.skip("`docker save` writes OCI layouts since 25")
    write_archive(tmp_path / "image.tar", image, [name])
    any_engine.docker("load", "-i", str(tmp_path / "image.tar"))
    any_engine.docker("save", "-o", str(tmp_path / "saved.tar"), str(name))
    (stored,) = read_archive(tmp_path / "saved.tar", cache)
    assert stored.image.config_digest == image.config_digest
    assert stored.names == (str(name),)
