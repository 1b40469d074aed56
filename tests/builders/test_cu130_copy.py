"""A copy of cu130 for Python 3.11 on Debian, its indexes a mirror of small wheels: built, entered, used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.oci.layout import read_layout
from imagebuilder.stack import shipped_folder
from tests.support.command import Machine
from tests.support.dockerfiles import mirror_variables
from tests.support.engine import TestEngine
from tests.support.golden import fetch
from tests.support.http_server import Server

pytestmark = pytest.mark.network


def copied() -> str:
    """The stack's text with Debian's base and package names, for Python 3.11."""
    text = (shipped_folder() / "cu130.toml").read_text()
    text = re.sub(r'^image = ".*"$', 'debian = { suite = "bookworm" }', text, flags=re.M)
    text = re.sub(r"^(glibc|snapshot|resolve) = .*\n", "", text, flags=re.M)
    return text.replace("python3.12", "python3.11").replace('python = "3.12"', 'python = "3.11"')


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with the copy, whose indexes are the mirror; its wheels are small stand-ins."""
    pip = tmp_path / "pip-26.3-py3-none-any.whl"
    for path in fetch("demo", Machine(root=tmp_path / "demo")).values():
        if path_is_pip(Path(path)):
            shutil.copyfile(path, pip)
    with Server() as server:
        made = Machine(root=tmp_path / "machine")
        made.environment = {**mirror_variables(server, tmp_path / "mirror", python="311", pip=pip)}
        made.environment["IMAGEBUILDER_CACHE_DIR"] = str(made.cache)
        stacks = made.work / "stacks"
        shutil.copytree(shipped_folder() / "patches", stacks / "patches")
        (stacks / "cu130.toml").write_text(copied())
        yield made


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_the_copy_builds_from_the_mirror_and_runs(machine: Machine, tmp_path: Path) -> None:
    machine.build("cu130", "--no-check")  # what the real wheels need of each other is not in the stand-ins
    (stored,) = read_layout(machine.work / "images" / "cu130")
    root = tmp_path / "root"
    root.mkdir()
    try:
        for layer in stored.image.layers:
            subprocess.run(["tar", "-xzpf", str(layer.path), "-C", str(root)], check=True)
        check_frozen(entered(root, dict(stored.image.config.env), "python3", "-m", "pip", "freeze"))
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.docker
def test_plain_docker_builds_the_rendered_context(machine: Machine, containerd_engine: TestEngine) -> None:
    """No imagebuilder around: what `render` wrote is all that `docker build` is given."""
    assert machine.run("lock", "cu130").code == 0
    rendered = machine.run("render", "cu130", "--vendored", "--output", "context")
    assert rendered.code == 0, rendered.err
    tag = "imagebuilder-test:cu130-copy"
    try:
        containerd_engine.docker("build", "--quiet", "--network", "none", "-t", tag, rendered.out.strip())
        check_frozen(containerd_engine.docker("run", "--rm", tag, "python3", "-m", "pip", "freeze"))
    finally:
        containerd_engine.docker("image", "rm", "--force", tag, check=False)


def check_frozen(listed: str) -> None:
    """The wheels of the vendor indexes, with their builds, and the patched one."""
    frozen = dict(line.split("==") for line in listed.splitlines())
    assert frozen["torch"] == "2.9.1+cu130"
    assert frozen["sgl-kernel"] == "0.3.21+cu130"
    assert frozen["flashinfer-jit-cache"] == "0.6.4+cu130"
    assert re.fullmatch(r"0\.5\.9\+patched\.[0-9a-f]{8}", frozen["sglang"])


def path_is_pip(path: Path) -> bool:
    """Whether this file of the cache is pip's wheel."""
    import zipfile

    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "pip-26.3.dist-info/METADATA" in archive.namelist()


def entered(root: Path, env: dict[str, str], *command: str) -> str:
    """What a command prints inside the unpacked image."""
    done = subprocess.run(
        ["chroot", str(root), *command], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
