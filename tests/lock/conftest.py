"""Fixtures of the lock tests: loopback indexes, an empty cache, settings that reach nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.cache import Cache
from imagebuilder.lock.model import Lock
from imagebuilder.lock.resolve import lock_stack
from imagebuilder.progress import Silent
from imagebuilder.settings import Settings
from imagebuilder.stack import Stack, load_stack
from tests.support.http_server import Server, SimpleIndex
from tests.support.mirror import publish

BASE = "sha256:" + "8b" * 32


class Told(Silent):
    """A reporter that keeps what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@dataclass
class World:
    """One machine: a server with a default index, a cache, settings."""

    server: Server
    default: SimpleIndex
    settings: Settings
    folder: Path
    told: Told = field(default_factory=Told)

    @property
    def cache(self) -> Cache:
        return Cache(self.settings.cache_dir)

    def put(self, name: str, version: str, *, index: SimpleIndex | None = None, **more: Any) -> str:
        if index is None:
            more.setdefault("upload_time", "2025-06-01T00:00:00Z")
        return publish(index or self.default, self.folder, name, version, **more)

    def stack(
        self,
        *requirements: str,
        top: str = "",
        target: str = "",
        python: str = "3.12",
        base: str = f'image = "example/cuda:13.0-ubuntu24.04@{BASE}"',
    ) -> Stack:
        """A stack of one layer; `top`: more TOML behind it."""
        text = f"""schema = 1
name = "s"
[target]
platform = "linux/amd64"
python = "{python}"
{target}
[base]
{base}
[[layer]]
name = "all"
requirements = {list(requirements)!r}
{top}
"""
        path = self.folder / "stacks" / "s.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return load_stack(path)

    def lock(self, stack: Stack, **more: Any) -> Lock:
        return lock_stack(stack, self.settings, self.cache, self.told, **more)

    def elsewhere(self, **changes: Any) -> World:
        """Another machine with an empty cache."""
        cache = self.folder / f"cache-{len(list(self.folder.glob('cache*')))}"
        cache.mkdir()
        settings = replace(self.settings, **{"cache_dir": cache, **changes})
        return World(self.server, self.default, settings, self.folder)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def world(server: Server, tmp_path: Path) -> World:
    default = server.index("/simple", form="json")
    settings = Settings(cache_dir=tmp_path / "cache", timeout=240.0, default_index=default.url)
    (tmp_path / "cache").mkdir()
    return World(server, default, settings, tmp_path)
