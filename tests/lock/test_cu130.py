"""`stacks/cu130.toml`, unmodified, locks against a mirror of its indexes that the configuration names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.lock.fetch import fetch, link_wheels
from imagebuilder.lock.model import HASH_COMPUTED, HASH_FROM_INDEX
from imagebuilder.lock.pylock import format_lock
from imagebuilder.progress import Silent
from imagebuilder.settings import load
from imagebuilder.stack import load_stack, shipped_folder
from tests.lock.conftest import Told, World
from tests.support.http_server import Server
from tests.support.mirror import cu130_mirror

FOLDER = shipped_folder()


@pytest.fixture
def mirrored(server: Server, tmp_path: Path) -> World:
    """A machine whose environment names the mirror."""
    mirror = cu130_mirror(server, tmp_path, patches=FOLDER / "patches" / "sglang-0.5.9")
    environ = {"HOME": str(tmp_path), "IMAGEBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    for name, url in {**mirror.indexes, "default": mirror.default}.items():
        environ[f"IMAGEBUILDER_INDEX_{name.upper().replace('-', '_')}_URL"] = url
    settings = load(environ, root=tmp_path / "none", prefix=tmp_path / "none")
    return World(server, server.index("/unused"), settings, tmp_path, Told())


def test_cu130_locks_from_its_indexes(mirrored: World) -> None:
    stack = load_stack(FOLDER / "cu130.toml")
    lock = mirrored.lock(stack)
    found = {w.name: (w.version, w.index) for w in lock.wheels}
    assert found["torch"] == ("2.9.1+cu130", "pytorch-cu130")
    assert found["torchvision"] == ("0.24.1+cu130", "pytorch-cu130")
    assert found["torchaudio"] == ("2.9.1+cu130", "pytorch-cu130")
    assert found["sgl-kernel"] == ("0.3.21+cu130", "sglang-cu130")
    assert found["flashinfer-jit-cache"] == ("0.6.4+cu130", "flashinfer-cu130")
    assert found["flashinfer-python"] == ("0.6.4", "default")
    assert found["flashinfer-cubin"] == ("0.6.4", "default")
    assert found["torch-memory-saver"] == ("0.0.9.post1", "default")
    assert found["nvidia-cudnn-cu13"] == ("9.16.0.29", "default")
    assert "an-attacker" not in found and "nvidia-cudnn-cu12" not in found
    assert lock.by_name["sgl-kernel"].hash_origin == HASH_COMPUTED
    assert lock.by_name["torch"].hash_origin == HASH_FROM_INDEX
    assert lock.by_name["sglang"].requires == (
        "cuda-python", "flashinfer-cubin", "flashinfer-python", "numpy", "requests", "sgl-kernel", "torch",
        "torch-memory-saver", "torchaudio", "torchvision", "transformers",
    )  # fmt: skip
    assert {p.package for p in lock.patches} == {"sglang"} and len(lock.patches) == 2
    assert str(lock.glibc) == "2.39" and str(lock.python) == "3.12"
    assert lock.base is not None and lock.base.index == getattr(stack.base, "ref").digest  # noqa: B009
    assert "127.0.0.1" not in format_lock(lock) and "://" not in format_lock(lock)
    passed = {p.name: p for p in lock.passed_over}
    assert passed["torch"].version == "2.10.0+cu130"


def test_what_is_locked_can_be_fetched(mirrored: World) -> None:
    stack = load_stack(FOLDER / "cu130.toml")
    lock = mirrored.lock(stack)
    found = fetch(lock, stack, mirrored.settings, mirrored.cache, Silent())
    assert set(found) == {w.sha256 for w in lock.wheels}
    folder = link_wheels(lock, mirrored.cache, mirrored.folder / "out")
    assert folder == mirrored.folder / "out" / "wheels" / "cu130"
    assert {p.name for p in folder.iterdir()} == {w.filename for w in lock.wheels}
    offline = replace(mirrored.settings, offline=True)
    assert fetch(lock, stack, offline, mirrored.cache, Silent()) == found
