"""The demo image, for tests that run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Machine, give_files
from tests.support.golden import fetch


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo image, built."""
    machine = Machine(root=tmp_path_factory.mktemp("demo"))
    give_files(fetch("demo", machine), machine.cache)
    machine.build("demo", "--offline")
    return machine.work / "images" / "demo"
