"""Locking from the real default index, as this machine is configured to reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tomli
import uv
from packaging.utils import parse_wheel_filename

from imagebuilder.lock.fetch import fetch, link_wheels
from imagebuilder.lock.pylock import format_lock, write_lock
from imagebuilder.settings import Settings, load
from tests.lock.conftest import Told, World
from tests.support.command import trusting
from tests.support.http_server import Server

pytestmark = pytest.mark.network

AS_OF = "2025-06-01T00:00:00Z"
LAYER = f"""
[resolve]
as-of = {AS_OF}

[[override]]
requirement = "urllib3==2.2.3"
reason = "a test"
"""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load(os.environ)


@pytest.fixture
def real(settings: Settings, tmp_path: Path) -> Iterator[World]:
    with Server() as server:
        here = replace(settings, cache_dir=tmp_path / "cache", index_urls={})
        yield World(server, server.index("/unused"), here, tmp_path, Told())


def test_a_real_stack_for_another_python(real: World) -> None:
    """CPython 3.12 from whatever runs this test; uv's own lock of the same is the oracle for the files."""
    requirements = ["requests[socks]==2.32.3", "charset-normalizer", "markupsafe", "numpy<2"]
    stack = real.stack(*requirements, top=LAYER)
    lock = real.lock(stack)
    found = {w.name: w for w in lock.wheels}
    assert found["urllib3"].version == "2.2.3" and found["pysocks"].version == "1.7.1"
    assert found["requests"].extras == ("socks",)
    assert found["requests"].requires == ("certifi", "charset-normalizer", "idna", "pysocks", "urllib3")
    assert "cp312-cp312-manylinux" in found["numpy"].filename
    assert [p.name for p in lock.passed_over] == ["numpy", "urllib3"]
    assert real.elsewhere().lock(stack) == lock and "://" not in format_lock(lock)
    assert {n: w.sha256.hex for n, w in found.items()} == _uvs_own(real, requirements)
    fetched = fetch(lock, stack, real.settings, real.cache, real.told)
    assert {d.hex for d in fetched} == {w.sha256.hex for w in lock.wheels}


def _uvs_own(real: World, requirements: list[str]) -> dict[str, str]:
    """name → sha256 of the wheel that uv prefers."""
    inputs, output = real.folder / "in.txt", real.folder / "pylock.uv.toml"
    inputs.write_text("\n".join(requirements))
    (real.folder / "over.txt").write_text("urllib3==2.2.3\n")
    arguments = [
        "pip", "compile", "--no-config", "--no-build", "--python-version", "3.12", "--python-platform",
        "x86_64-manylinux_2_39", "--exclude-newer", AS_OF, "--overrides", "over.txt",
        "--format", "pylock.toml", "--no-python-downloads", "--python", sys.executable,
        "-o", str(output), str(inputs),
    ]  # fmt: skip
    if real.settings.default_index:
        arguments += ["--default-index", real.settings.default_index]
    done = subprocess.run(
        [uv.find_uv_bin(), *arguments],
        cwd=real.folder,
        env=trusting(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    best: dict[str, str] = {}
    for package in tomli.loads(output.read_text())["packages"]:
        wheels = [w["url"].rpartition("/")[2].replace("%2B", "+") for w in package["wheels"]]
        native = [n for n in wheels if any(t.interpreter == "cp312" for t in parse_wheel_filename(n)[3])]
        chosen = max(native or wheels)
        best[package["name"]] = package["wheels"][wheels.index(chosen)]["hashes"]["sha256"]
    return best


def test_uv_installs_the_lock(real: World) -> None:
    """With the wheels beside it, and without a network."""
    stack = real.stack("markupsafe", "idna==3.10", python=".".join(map(str, sys.version_info[:2])))
    lock = real.lock(stack)
    fetch(lock, stack, real.settings, real.cache, real.told)
    write_lock(real.folder / "l" / "pylock.s.toml", lock)
    link_wheels(lock, real.cache, real.folder / "l")
    command = [
        uv.find_uv_bin(), "pip", "install", "--no-config", "--offline", "--python", sys.executable,
        "--target", str(real.folder / "site"), "-r", str(real.folder / "l" / "pylock.s.toml"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (real.folder / "site" / "idna").is_dir() and (real.folder / "site" / "markupsafe").is_dir()


def test_what_has_no_wheel_and_what_contradicts(real: World) -> None:
    from imagebuilder.errors import Unresolvable

    with pytest.raises(Unresolvable, match="flash-attn has only source distributions"):
        real.lock(real.stack("flash-attn"))
    with pytest.raises(Unresolvable, match="contradict") as caught:
        real.lock(real.stack("torch==2.10.0", "cuda-python>=13"))
    assert "cuda-bindings" in caught.value.seen


def test_the_build_tag_is_named(real: World) -> None:
    """torch 2.10.0 exists in three builds under one version; nothing of it is downloaded but its METADATA."""
    stack = real.stack("torch==2.10.0", top="\n[resolve]\nas-of = 2026-06-01T00:00:00Z\n")
    wheel = real.lock(stack).by_name["torch"]
    assert wheel.filename == "torch-2.10.0-3-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert wheel.size > 900_000_000 and "triton" in wheel.requires
