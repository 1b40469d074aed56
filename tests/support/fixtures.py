"""Fixtures that some test folders share; their conftest.py imports those that it wants.

from tests.support.fixtures import imagebuilder, small

__all__ = ["imagebuilder", "small"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.cli.main import run
from imagebuilder.settings import Settings
from tests.support.command import Outcome
from tests.support.fake_registry import FakeRegistry
from tests.support.http_server import Server
from tests.support.registry import TestRegistry, run_crane, run_registry
from tests.support.small import Small


@pytest.fixture
def imagebuilder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`imagebuilder(*arguments)` in a folder `work`; nothing of this user's configuration is seen."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def small(
    imagebuilder: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Small]:
    """The stack `s` of two wheels, written into the folder `work`."""
    with Server() as server:
        made = Small(tmp_path / "work", server)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        made.wheel("one")
        made.wheel("two")
        made.write("one", "two")
        yield made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """With a cache of its own."""
    return Settings(cache_dir=tmp_path / "cache", timeout=240)


@pytest.fixture
def cache(settings: Settings) -> Cache:
    """That of `settings`."""
    return Cache(settings.cache_dir)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    """A registry in this process, which can be told to misbehave."""
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture(scope="session")
def real_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestRegistry]:
    """A real registry without logins, for the whole run: use repositories of your own."""
    with run_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="session", params=["docker-registry", "crane"])
def each_registry(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestRegistry]:
    """The same of two implementations that share no code."""
    start = {"docker-registry": run_registry, "crane": run_crane}[request.param]
    with start(tmp_path_factory.mktemp("registry")) as registry:
        yield registry
