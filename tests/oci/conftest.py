from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.oci.image import Image
from imagebuilder.settings import Settings
from tests.support import images
from tests.support.fake_registry import FakeRegistry
from tests.support.registry import TestRegistry, run_registry


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


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., Image]:
    """Makes an image whose layers hold these contents, one file each."""
    return partial(images.make_image, tmp_path / "made")


@pytest.fixture
def image(make_image: Callable[..., Image]) -> Image:
    return make_image(b"hello\n", b"x" * 300_000)
