"""What is measured: four real wheels of over 1 GB, as the lock of cu128-debian pins them, and SGLang's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.lock.fetch import fetch
from imagebuilder.lock.model import Lock
from imagebuilder.lock.pylock import read_lock
from imagebuilder.plan import Plan, make_plan
from imagebuilder.progress import Silent
from imagebuilder.settings import Settings, load
from imagebuilder.stack import Stack, load_stack, lock_path, shipped_folder

BIG = ("flashinfer-cubin", "nvidia-nccl-cu12", "sgl-kernel", "triton")
STACK = "cu128-debian"


def settings() -> Settings:
    """This user's."""
    return load(os.environ)


def stack_and_lock(names: tuple[str, ...]) -> tuple[Stack, Lock]:
    """The shipped stack, and its lock cut down to these wheels, without Debian packages."""
    path = shipped_folder() / f"{STACK}.toml"
    stack = load_stack(path)
    lock = read_lock(lock_path(path, STACK))
    wheels = tuple(wheel for wheel in lock.wheels if wheel.name in names)
    patches = tuple(patch for patch in lock.patches if patch.package in names)
    return stack, replace(lock, wheels=wheels, debs=(), base=None, patches=patches)


def whole_lock(stack: str) -> Lock:
    """A shipped stack's lock, as it is."""
    return read_lock(lock_path(shipped_folder() / f"{stack}.toml", stack))


def plan_of(names: tuple[str, ...]) -> tuple[Stack, Plan]:
    """Only the layers of these wheels."""
    stack, lock = stack_and_lock(names)
    plan = make_plan(stack, lock)
    return stack, replace(plan, layers=tuple(layer for layer in plan.layers if layer.wheels))


def wheel_files(names: tuple[str, ...]) -> dict[str, Path]:
    """Each wheel's file by its file name, downloaded if it is not in the cache yet."""
    stack, lock = stack_and_lock(names)
    here = settings()
    files = fetch(lock, stack, here, Cache(here.cache_dir), Silent())
    return {wheel.filename: files[wheel.sha256] for wheel in lock.wheels}
