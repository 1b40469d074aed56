from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imagebuilder.oci.image import Image
from tests.support import images
from tests.support.fixtures import cache, fake, real_registry, settings

__all__ = ["cache", "fake", "real_registry", "settings"]


@pytest.fixture
def pauses() -> list[float]:
    """What was waited for: nothing really waits."""
    return []


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., Image]:
    """Makes an image whose layers hold these contents, one file each."""
    return partial(images.make_image, tmp_path / "made")


@pytest.fixture
def image(make_image: Callable[..., Image]) -> Image:
    return make_image(b"hello\n", b"x" * 300_000)
