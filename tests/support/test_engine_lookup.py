"""Engines are found whatever a test did to the environment before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import engine


def test_engines_are_found_under_another_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.engines.cache_clear()
    names = [e.name for e in engine.engines()]
    engine.engines.cache_clear()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert [e.name for e in engine.engines()] == names
