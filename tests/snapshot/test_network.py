"""A real environment of more than 50 packages from PyPI, one edited by hand → stack → lock → image: the same
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uv

from imagebuilder.lock import Lock, read_lock
from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import read_layout
from imagebuilder.settings import load
from tests.support.command import ROOT, Machine
from tests.support.engine import TestEngine
from tests.support.schemas import validated
from tests.support.tree import Node, tree_of

PYTHON = f"3.{sys.version_info.minor}"
SITE = f"lib/python{PYTHON}/site-packages"
EDITED = f"{SITE}/requests/api.py"
pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(PYTHON not in ("3.11", "3.13"), reason="Debian has 3.11 and 3.13"),
]


@dataclass(kw_only=True)
class Rebuilt:
    """An environment, what its snapshot said, and the image that was built of it."""

    machine: Machine
    venv: Path
    said: dict[str, Any]
    image: Image
    tree: dict[str, Node]

    @property
    def freeze(self) -> dict[str, str]:
        return freeze(subprocess.run(
            [str(self.venv / "bin" / "python"), "-m", "pip", "freeze", "--all"],
            check=True, capture_output=True, text=True,
        ).stdout)  # fmt: skip

    def lock(self, name: str) -> Lock:
        return read_lock(self.machine.work / "stacks" / f"pylock.{name}.toml")


def freeze(text: str) -> dict[str, str]:
    """name → version, the mark of a patched one taken off (it is there, so that everybody sees it)."""
    pairs = (line.split("==") for line in text.splitlines())
    return {name: version.partition("+patched.")[0] for name, version in pairs}


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rebuilt]:
    root = tmp_path_factory.mktemp("snapshot")
    settings = load(os.environ)
    machine = Machine(
        root=root, environment={**os.environ, "IMAGEBUILDER_CACHE_DIR": str(settings.cache_dir)}
    )
    venv = root / "service"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    words = [
        "pip",
        "install",
        "--quiet",
        "--python",
        str(venv / "bin" / "python"),
        "--no-deps",
        "--link-mode",
        "copy",
    ]
    reaching = {**os.environ, "UV_CACHE_DIR": str(root / "uv"), "UV_NO_PROGRESS": "1"}
    if settings.default_index:
        reaching["UV_DEFAULT_INDEX"] = settings.default_index
    requirements = ROOT / "tests" / "data" / "snapshot" / "requirements.txt"
    subprocess.run([uv.find_uv_bin(), *words, "-r", str(requirements)], check=True, env=reaching)
    edited = venv / EDITED
    edited.write_text(edited.read_text().replace("def get(", "# edited by hand\ndef get(", 1))
    outcome = machine.run("snapshot", "--python", str(venv), "--json")
    assert outcome.code == 0, outcome.out + outcome.err
    said = validated("snapshot", outcome.out)
    assert said["stack"] == "service"
    machine.build("service", "--locked")
    (stored,) = read_layout(machine.work / "images" / "service")
    yield Rebuilt(machine=machine, venv=venv, said=said, image=stored.image, tree=tree_of(stored.image))
    shutil.rmtree(root, ignore_errors=True)


def test_every_package_is_proven_and_one_patched(rebuilt: Rebuilt) -> None:
    assert rebuilt.said["complete"] and rebuilt.said["summary"]["packages"] > 50
    assert all(p["proven"] for p in rebuilt.said["packages"])
    assert [p["name"] for p in rebuilt.said["packages"] if p["state"] == "patched"] == ["requests"]
    locked = {w.name: w.version for w in rebuilt.lock("service").wheels}
    assert locked == {p["name"]: p["version"] for p in rebuilt.said["packages"]}


def test_every_file_of_the_image_is_that_of_the_environment(rebuilt: Rebuilt) -> None:
    """All of site-packages, byte by byte, but for what installers write about themselves."""
    ours = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
    here = {
        path.relative_to(rebuilt.venv / SITE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (rebuilt.venv / SITE).rglob("*")
        if path.is_file()
        and path.suffix != ".pyc"
        and path.name not in (*ours, "_virtualenv.py", "_virtualenv.pth")
    }
    lead = f"opt/venv/{SITE}/"
    there = {
        path.removeprefix(lead): str(node[4])
        for path, node in rebuilt.tree.items()
        if path.startswith(lead) and node[0] == "file" and path.rpartition("/")[2] not in ours
    }
    marked = {p for p in here.keys() ^ there.keys() if ".dist-info/" not in p}
    assert not marked
    assert {p for p in here.keys() & there.keys() if here[p] != there[p]} == set()
    patched = {p.partition("/")[0] for p in here.keys() ^ there.keys()}
    assert {p.partition("-")[0] for p in patched} == {"requests"}
    assert there["requests/api.py"] == here["requests/api.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_pip_freeze_in_the_image_says_the_same(rebuilt: Rebuilt, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for layer in rebuilt.image.layers:
        unpack = ["tar", "--numeric-owner", "-xzpf", str(layer.path), "-C", str(root)]
        subprocess.run(unpack, check=True)
    done = subprocess.run(
        ["chroot", str(root), "python3", "-m", "pip", "freeze", "--all"],
        env={**dict(rebuilt.image.config.env), "HOME": "/root"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert freeze(done.stdout) == rebuilt.freeze
    assert "requests==2.34.2+patched." in done.stdout
    shutil.rmtree(root)


def test_a_snapshot_of_the_image_has_the_same_wheels(rebuilt: Rebuilt) -> None:
    outcome = rebuilt.machine.run("snapshot", "--image", "images/service", "--name", "again")
    assert outcome.code == 0, outcome.out + outcome.err
    first, second = rebuilt.lock("service"), rebuilt.lock("again")
    assert [(w.filename, w.sha256) for w in second.wheels] == [(w.filename, w.sha256) for w in first.wheels]
    assert {d.name: d.version for d in second.debs} == {d.name: d.version for d in first.debs}
    assert [p.sha256 for p in second.patches] == [p.sha256 for p in first.patches]


@pytest.mark.docker
def test_a_container_that_was_changed_by_hand(rebuilt: Rebuilt, containerd_engine: TestEngine) -> None:
    """Loaded and run: pip freeze there; then edited in the running container, and taken a snapshot of."""
    engine, name = containerd_engine, f"imagebuilder-snapshot-{os.getpid()}"
    tag = f"{name}:test"
    machine = Machine(
        root=rebuilt.machine.root, environment={**rebuilt.machine.environment, **engine.environment}
    )
    built = machine.run("build", "service", "--locked", "--builder", "direct", "--load", "--tag", tag)
    assert built.code == 0, built.err
    try:
        said = engine.docker("run", "--rm", "--name", f"{name}-freeze", tag, "pip", "freeze", "--all")
        assert freeze(said) == rebuilt.freeze
        engine.docker("run", "--detach", "--name", name, tag, "sleep", "600")
        edit = f"echo '# in a container' >> /opt/venv/{SITE}/click/core.py; rm /opt/venv/{SITE}/rich/abc.py"
        engine.docker("exec", name, "sh", "-c", edit)
        outcome = machine.run("snapshot", "--container", name, "--name", "inside", "--json")
        assert outcome.code == 0, outcome.out + outcome.err
        found = {p["name"]: p for p in json.loads(outcome.out)["packages"] if p["state"] == "patched"}
        assert sorted(found) == ["click", "requests", "rich"]
        assert [(c["what"], c["how"]) for c in found["rich"]["changes"]] == [("deleted", "patch")]
        outcome = machine.run("snapshot", "--image", tag, "--name", "of-engine")
        assert outcome.code == 0, outcome.out + outcome.err
        assert "as the engine has it" in outcome.err
        wheels = rebuilt.lock("of-engine").wheels
        assert [w.sha256 for w in wheels] == [w.sha256 for w in rebuilt.lock("service").wheels]
        missing = machine.run("snapshot", "--container", f"{name}-none")
        assert missing.code == 2 and "has no container" in missing.err
    finally:
        engine.docker("rm", "--force", name, check=False)
        engine.docker("image", "rm", "--force", tag, check=False)
