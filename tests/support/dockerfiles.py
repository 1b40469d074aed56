"""The Dockerfiles of the shipped stacks, to be compared with those in tests/data/golden (`make golden`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.dockerfile import render
from imagebuilder.lock.model import Lock
from imagebuilder.lock.pylock import read_lock
from imagebuilder.lock.resolve import lock_stack
from imagebuilder.plan import make_plan
from imagebuilder.progress import Silent
from imagebuilder.settings import load
from imagebuilder.stack import Stack, load_stack, lock_path, shipped_folder, shipped_stacks
from tests.support.command import ROOT
from tests.support.http_server import Server
from tests.support.mirror import cu130_mirror

FOLDER = ROOT / "tests" / "data" / "golden"
TEMPLATE = (ROOT / "templates" / "Dockerfile.j2").read_text(encoding="utf-8")

# The mirror's wheels are small; these sizes decide which layers there are.
SIZES = {
    "torch": 900_000_000,
    "sgl-kernel": 536_000_000,
    "flashinfer-jit-cache": 1_600_000_000,
    "flashinfer-cubin": 151_000_000,
    "nvidia-cudnn-cu13": 366_000_000,
}


def golden_path(stack: str) -> Path:
    """Where the Dockerfile of a stack is kept."""
    return FOLDER / f"{stack}.Dockerfile"


def names() -> list[str]:
    """The shipped stacks."""
    return [path.stem for path in shipped_stacks()]


def dockerfile_of(name: str, folder: Path) -> str:
    """The Dockerfile of a shipped stack, but for the hash of its plan, which any change of a lock changes."""
    file = shipped_folder() / f"{name}.toml"
    stack = load_stack(file)
    locked = lock_path(file, name)
    lock = read_lock(locked) if locked.is_file() else mirrored_lock(stack, folder)
    text = render(make_plan(stack, lock), stack, TEMPLATE)
    return re.sub(r'("dev\.imagebuilder\.plan"=)"sha256:[0-9a-f]{64}"', r'\1"…"', text)


def mirrored_lock(stack: Stack, folder: Path) -> Lock:
    """The stack, locked against a mirror of its vendor indexes."""
    with Server() as server:
        settings = load(mirror_variables(server, folder), root=folder / "none", prefix=folder / "none")
        lock = lock_stack(stack, settings, Cache(settings.cache_dir), Silent(), previous=None, upgrade=None)
    wheels = tuple(replace(wheel, size=SIZES.get(wheel.name, wheel.size)) for wheel in lock.wheels)
    return replace(lock, wheels=wheels)


def mirror_variables(
    server: Server, folder: Path, python: str = "312", pip: Path | None = None
) -> Mapping[str, str]:
    """The environment of a machine that is configured for the mirror."""
    patches = shipped_folder() / "patches" / "sglang-0.5.9"
    mirror = cu130_mirror(server, folder, python=python, patches=patches, pip=pip)
    variables = {"HOME": str(folder), "IMAGEBUILDER_CACHE_DIR": str(folder / "cache")}
    for name, url in {**mirror.indexes, "default": mirror.default}.items():
        variables[f"IMAGEBUILDER_INDEX_{name.upper().replace('-', '_')}_URL"] = url
    return variables
