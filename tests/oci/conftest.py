from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.oci.model import History, ImageConfig, ImagePlatform
from imagebuilder.settings import Settings
from imagebuilder.values import Platform
from tests.support.fake_registry import FakeRegistry
from tests.support.registry import TestRegistry, run_registry

AMD64 = Platform("linux", "amd64")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache", timeout=10)


@pytest.fixture
def cache(settings: Settings) -> Cache:
    return Cache(settings.cache_dir)


@pytest.fixture
def pauses() -> list[float]:
    """What was waited for: nothing really waits."""
    return []


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture(scope="session")
def real_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestRegistry]:
    """A real registry without logins, for the whole run: use repositories of your own."""
    with run_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


def make_layer(path: Path, name: str, content: bytes) -> LayerRef:
    """A real layer with one file."""
    out = io.BytesIO()
    writer = LayerWriter(out)
    writer.directory("opt")
    writer.file_bytes(f"opt/{name}", content, mtime=1_000_000_000)
    blob = writer.finish()
    path.write_bytes(out.getvalue())
    return LayerRef.of(blob, path)


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., Image]:
    """Makes an image whose layers hold these contents, one file each."""
    folder = tmp_path / "made"
    folder.mkdir()

    def make(*contents: bytes, platform: Platform = AMD64) -> Image:
        layers = tuple(
            make_layer(folder / f"{len(list(folder.iterdir()))}.layer", f"file{i}", content)
            for i, content in enumerate(contents)
        )
        config = ImageConfig(
            platform=ImagePlatform.of(platform),
            created="2026-02-25T00:00:00Z",
            env=(("PATH", "/usr/bin"), ("A", "b=c")),
            command=("/opt/run",),
            labels=(("org.example.stack", "demo"),),
            history=tuple(History(created_by=f"layer {i}") for i in range(len(layers))),
        )
        return Image.make(config, layers)

    return make


@pytest.fixture
def image(make_image: Callable[..., Image]) -> Image:
    return make_image(b"hello\n", b"x" * 300_000)
