"""One stack of real wheels, built by the direct builder and by every engine; each only once in a session."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import read_layout
from imagebuilder.settings import load
from tests.support.command import ROOT, Machine, give_files
from tests.support.engine import TestEngine

STACK = ROOT / "tests" / "data" / "docker-stack"


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a build gave: its record, the image with its layers' files, and what it said meanwhile."""

    record: dict[str, Any]
    image: Image
    told: str


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """A machine with the stack, its lock and all its files, so that every build starts from the same."""

    root: Path
    files: dict[str, str]

    def machine(self, name: str, engine: TestEngine | None = None) -> Machine:
        """A machine with a cache of its own, and this engine."""
        machine = Machine(root=self.root / name, environment=environment_of(engine))
        if not (machine.work / "stack").exists():
            shutil.copytree(self.root / "stack", machine.work / "stack")
            give_files(self.files, machine.cache)
            # The Debian base is the same for all: what the direct builder made of it need not be made again.
            made = self.root / "direct" / "cache"
            if made.exists():
                shutil.copytree(made, machine.cache, copy_function=_link, dirs_exist_ok=True)
        return machine

    def build(self, machine: Machine, *options: str, prefix: Sequence[str] = ()) -> Made:
        """Build the stack there."""
        outcome = machine.run("build", "stack/real.toml", "--locked", *options, "--json", prefix=prefix)
        assert outcome.code == 0, f"exit {outcome.code}: {outcome.out}{outcome.err}"
        record: dict[str, Any] = json.loads(outcome.out)
        (stored,) = read_layout(Path(record["path"]))
        return Made(record=record, image=stored.image, told=outcome.err)


def _link(source: str, target: str) -> None:
    if not Path(target).exists():
        os.link(source, target)


def environment_of(engine: TestEngine | None) -> dict[str, str]:
    """This user's settings but for the cache, and what leads to the engine."""
    known = engine.environment if engine else dict(os.environ)
    return {k: v for k, v in known.items() if k not in ("HOME", "TMPDIR", "IMAGEBUILDER_CACHE_DIR")}


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """The stack, locked now (a lock of last month may name packages that are gone), and fetched."""
    root = tmp_path_factory.mktemp("docker")
    shutil.copytree(STACK, root / "stack")
    here = {"IMAGEBUILDER_CACHE_DIR": str(load(os.environ).cache_dir)}
    reaching = Machine(root=root / "reaching", environment=environment_of(None) | here)
    locked = reaching.run("lock", str(root / "stack" / "real.toml"))
    assert locked.code == 0, locked.err
    fetched = reaching.run("fetch", str(root / "stack" / "real.toml"), "--json")
    assert fetched.code == 0, fetched.err
    return Workplace(root=root, files=json.loads(fetched.out)["files"])


@pytest.fixture(scope="session")
def direct(workplace: Workplace) -> Made:
    """The stack as the direct builder makes it."""
    return workplace.build(workplace.machine("direct"), "--builder", "direct")


@pytest.fixture(scope="session")
def with_engine(workplace: Workplace, direct: Made) -> Callable[[TestEngine], Made]:
    """The stack as an engine makes it."""
    known: dict[str, Made] = {}

    def make(engine: TestEngine) -> Made:
        if engine.kind not in known:
            machine = workplace.machine(engine.kind, engine)
            known[engine.kind] = workplace.build(
                machine, "--builder", "docker", "--tag", "imagebuilder-test:real"
            )
        return known[engine.kind]

    return make
