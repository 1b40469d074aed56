"""Fixtures of the index tests: a loopback server, an empty cache, settings that reach nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.index.http import Session
from imagebuilder.settings import Settings
from tests.support.http_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache", timeout=240.0)


@pytest.fixture
def cache(settings: Settings) -> Cache:
    return Cache(settings.cache_dir)


@dataclass
class Pauses:
    """Instead of sleeping: what would have been slept."""

    seconds: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def http(settings: Settings, pauses: Pauses) -> Iterator[Session]:
    with Session(settings, pause=pauses) as session:
        yield session
