"""The engine through its SDK, as far as no engine is needed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from imagebuilder.builders.docker.engine import Engine, EngineFacts
from imagebuilder.errors import MachineLacks
from imagebuilder.progress import Silent
from imagebuilder.values import ImageRef
from tests.support.images import make_image

NAME = ImageRef.parse("large:1")
FACTS = EngineFacts(
    host="tcp://127.0.0.1:9",
    version="26.1.5",
    store="containerd",
    architecture="x86_64",
    root="",
    nvidia=False,
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    client = docker.DockerClient(base_url=FACTS.host, version="1.44", timeout=60)
    with Engine(client, FACTS) as made:
        yield made


def _load(engine: Engine, folder: Path) -> None:
    engine.load(make_image(folder, b"x"), [NAME], Silent())


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("load_image", _load),
        ("get_image", lambda engine, folder: engine.saved("large:1", folder / "saved", lambda c, f: None)),
        ("remove_image", lambda engine, folder: engine.remove(NAME)),
        ("push", lambda engine, folder: engine.push(NAME, None, Silent())),
    ],
)
def test_minutes_of_silence_are_no_failure(
    call: str,
    work: Callable[[Engine, Path], None],
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large image is unpacked, saved or removed before the engine says a word; questions stay short."""
    asked: list[float] = []

    def answer(*words: object, **more: object) -> list[object]:
        asked.append(engine.client.api.timeout)
        return [{"aux": {"Digest": f"sha256:{'0' * 64}"}}]

    monkeypatch.setattr(engine.client.api, call, answer)
    monkeypatch.setattr(Engine, "id_of", lambda self, name: None)
    monkeypatch.setattr(Engine, "_check", lambda self, name, image: None)
    work(engine, tmp_path)
    assert asked and min(asked) >= 1800
    assert engine.client.api.timeout == 60


def test_what_does_not_answer_is_said(engine: Engine) -> None:
    with pytest.raises(MachineLacks) as failed:
        engine.remove(NAME)
    assert "large:1 cannot be removed" in failed.value.what
