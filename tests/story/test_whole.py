"""The shipped stacks in full size: built by the direct builder, taken by real engines, entered and used.

Some 5 GB of wheels and 20 GB of disk for each, so only where IMAGEBUILDER_WHOLE=1 asks for it (`make whole`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.lock.model import Lock
from imagebuilder.lock.pylock import read_lock
from imagebuilder.stack import Stack, load_stack, lock_path, shipped_folder
from tests.support.engine import TestEngine, find_engine
from tests.support.registry import find_program, run_registry

pytestmark = [
    pytest.mark.docker,
    pytest.mark.network,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("IMAGEBUILDER_WHOLE") != "1", reason="stacks of full size are built by `make whole`"
    ),
]

STACKS = ("cu128-debian", "cu130-debian")

# Run in the image, without a GPU. Prints one line of JSON at its end.
PROBE = r"""
import importlib.metadata as metadata, json, os, subprocess, sys
import sglang, torch, torchvision, transformers

def words(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()

scripts = [e.name for e in metadata.entry_points(group="console_scripts")]
lacking = [name for name in scripts if not os.access(os.path.join(sys.prefix, "bin", name), os.X_OK)]
site = os.path.dirname(os.path.dirname(sglang.__file__))
print(json.dumps({
    "prefix": sys.prefix, "torch": torch.__version__, "cuda": torch.version.cuda,
    "sum": float(torch.ones(3).sum()), "scripts": len(scripts), "lacking": lacking,
    "help": words("torchrun", "--help")[0], "ninja": words("ninja", "--version")[0],
    "list": dict((d.metadata["Name"], d.version) for d in metadata.distributions()),
    "check": words(sys.executable, "-m", "pip", "check"), "audit": words("dpkg", "--audit"),
    "debs": len(words("dpkg-query", "-W")[1].splitlines()),
    "files": {path: open(os.path.join(site, path)).read() for path in sys.argv[1:]},
}))
"""

# Just-in-time compilation, where the stack has a compiler for it: nvcc and g++, for the stack's GPU.
COMPILES = """
printf '__global__ void k(int *a) { a[0] = 1; }\\nint main() { k<<<1, 1>>>(0); return 0; }\\n' > /tmp/a.cu &&
"$CUDA_HOME/bin/nvcc" -arch=sm_120a -o /tmp/a /tmp/a.cu
"""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A stack of full size, built."""

    stack: Stack
    lock: Lock
    folder: Path
    record: dict[str, Any]


def imagebuilder(folder: Path, *arguments: str, engine: TestEngine | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "imagebuilder", *arguments],
        cwd=folder,
        env=dict(engine.environment if engine else os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=STACKS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp(request.param)
    path = shipped_folder() / f"{request.param}.toml"
    record = json.loads(
        imagebuilder(folder, "build", request.param, "--locked", "--builder", "direct", "--json")
    )
    yield Whole(
        stack=load_stack(path),
        lock=read_lock(lock_path(path, request.param)),
        folder=folder,
        record=record,
    )
    shutil.rmtree(folder)


def test_skopeo_copies_it_to_a_registry(whole: Whole, tmp_path: Path) -> None:
    skopeo = find_program("skopeo", "skopeo")
    name = whole.stack.name
    with run_registry(tmp_path) as registry:
        target = f"docker://{registry.host}/whole:1"
        source = f"oci:{whole.folder}/images/{name}:{name}"
        subprocess.run([skopeo, "copy", "-q", "--dest-tls-verify=false", source, target], check=True)
        asked = [skopeo, "inspect", "--tls-verify=false", "--format", "{{.Digest}}", target]
        digest = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    assert digest == whole.record["manifest"]


@pytest.mark.parametrize("kind", ["old", "containerd"])
def test_it_works_in_an_engine(whole: Whole, kind: str) -> None:
    engine = find_engine(kind)
    name = f"imagebuilder-test:whole-{whole.stack.name}"
    arguments = ("--locked", "--builder", "direct", "--no-check", "--load", "--tag", name, "--output", kind)
    imagebuilder(whole.folder, "build", whole.stack.name, *arguments, engine=engine)
    try:
        files = sorted({file for patch in patches(whole) for file in patch})
        run = ("run", "--rm", "--entrypoint", "python3", name, "-c", PROBE, *files)
        said = json.loads(engine.docker(*run).splitlines()[-1])
        check(said, whole)
        for patch in patches(whole):
            for file, lines in patch.items():
                missing = [line for line in lines if line not in said["files"][file].splitlines()]
                assert missing == [], file
        if "nvidia-cuda-nvcc" in whole.lock.by_name:  # CUDA 12's has no nvcc, and its stack no compiler
            engine.docker("run", "--rm", "--entrypoint", "sh", name, "-c", COMPILES)
    finally:
        engine.docker("image", "rm", "--force", name, check=False)


def check(said: dict[str, Any], whole: Whole) -> None:
    """What the image says of itself is what the lock says."""
    assert said["prefix"] == "/opt/venv" and said["sum"] == 3.0
    locked = {wheel.name: str(wheel.version) for wheel in whole.lock.wheels}
    assert said["torch"].partition("+")[0] == locked["torch"].partition("+")[0]
    assert said["cuda"].startswith("12.8" if whole.stack.name.startswith("cu128") else "13.")
    installed = {re.sub(r"[-_.]+", "-", key).lower(): version for key, version in said["list"].items()}
    assert installed.keys() == locked.keys()
    patched = {patch.package for patch in whole.lock.patches}
    for package, version in locked.items():
        suffix = r"\+patched\.\w+" if package in patched else r"(\+[\w.]+)?"
        assert re.fullmatch(re.escape(version) + suffix, installed[package]), package
    assert said["scripts"] > 30 and said["lacking"] == []
    assert (said["help"], said["ninja"]) == (0, 0)
    assert said["audit"] == [0, ""] and said["debs"] == len(whole.lock.debs)
    # `pip check` names what overrides broke on purpose, and nothing else.
    overridden = {
        re.split(r"[^\w.-]", str(override.requirement))[0].lower() for override in whole.lock.overrides
    }
    status, text = said["check"]
    broken = re.findall(r"has requirement ([\w.-]+)", text) + re.findall(r"requires ([\w.-]+), which", text)
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in broken} <= overridden, text
    assert (status == 0) == (broken == []), text


def patches(whole: Whole) -> list[dict[str, list[str]]]:
    """Of each patch, the lines that it adds to each file."""
    found: list[dict[str, list[str]]] = []
    for layer in whole.stack.layers:
        for patch in layer.patches:
            added: dict[str, list[str]] = {}
            for line in patch.content.decode().splitlines():
                if line.startswith("+++ b/"):
                    lines = added.setdefault(line.removeprefix("+++ b/").split("\t")[0], [])
                elif line.startswith("+"):
                    lines.append(line[1:])
            found.append(added)
    return found
