"""A command line in a folder and with a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagebuilder.cli.main import run


@dataclass(frozen=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def imagebuilder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`imagebuilder(*arguments)` in an empty folder; nothing of this user's configuration is seen."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err)

    return call
