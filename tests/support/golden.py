"""The digests that builds must have: files in tests/data/golden, made by `make golden`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

from imagebuilder.settings import load
from tests.support.command import ROOT, Machine

FOLDER = ROOT / "tests" / "data" / "golden"
WHEELS = ROOT / "tests" / "data" / "wheels-stack"


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """What of a build record does not depend on machine, day or version: text first, digest last."""
    fields = ("name", "title", "unpacked", "size", "diff-id", "digest")
    return {
        "stack": record["stack"],
        "platform": record["platform"],
        "layers": [{field: layer[field] for field in fields} for layer in record["layers"]],
        "config": record["config"],
        "manifest": record["manifest"],
    }


def golden(stack: str) -> dict[str, Any]:
    """What the build of this stack must be."""
    found: dict[str, Any] = json.loads((FOLDER / f"{stack}.json").read_text(encoding="utf-8"))
    return found


def check(record: dict[str, Any]) -> None:
    """The build is what it must be. AssertionError says which layer is another one."""
    wanted = golden(record["stack"])
    assert summary(record) == wanted, "other bytes: if that is wanted, run `make golden` and say why"


def place_wheels(machine: Machine) -> str:
    """Copy the stack of real wheels, with its lock, to a machine; the argument that names it."""
    shutil.copytree(WHEELS, machine.work / "stack", dirs_exist_ok=True)
    return "stack/wheels.toml"


def place_demo(machine: Machine) -> str:
    """The demo is shipped: nothing to place."""
    return "demo"


STACKS: dict[str, Callable[[Machine], str]] = {"wheels": place_wheels, "demo": place_demo}


def fetch(stack: str, machine: Machine) -> dict[str, str]:
    """The files of a stack's lock by sha256, through this user's settings and in this user's cache."""
    reaching = Machine(
        root=machine.root,
        environment={**os.environ, "IMAGEBUILDER_CACHE_DIR": str(load(os.environ).cache_dir)},
    )
    outcome = reaching.run("fetch", STACKS[stack](reaching), "--json")
    assert outcome.code == 0, outcome.err
    files: dict[str, str] = json.loads(outcome.out)["files"]
    return files
