from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imagebuilder.oci.image import Image
from imagebuilder.oci.registry import Registry
from imagebuilder.settings import Settings
from tests.support import images
from tests.support.fixtures import cache, each_registry, fake, imagebuilder, real_registry, settings, small

__all__ = ["cache", "each_registry", "fake", "imagebuilder", "real_registry", "settings", "small"]


@pytest.fixture
def connect(settings: Settings) -> Callable[[str], Registry]:
    """A registry's client that never really waits."""
    return lambda host: Registry(host, settings, pause=lambda seconds: None)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return images.make_image(tmp_path / "blobs", b"hello\n", b"x" * 300_000)


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., Image]:
    return partial(images.make_image, tmp_path / "blobs")
