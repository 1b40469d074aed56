"""Killed or interrupted at any moment: nothing that is there is wrong, and the next build is right.

Moments are drawn with a fixed seed from the steps of an undisturbed run, so no verdict depends on time.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagebuilder.cache import STALE, Cache
from imagebuilder.oci.layout import read_layout
from tests.support.command import WAIT, Machine, leftovers, outcome_of, wrong_artefacts
from tests.support.http_server import Server
from tests.support.killed import Ended, Killer
from tests.support.small import Small, noise

KILLS = 50
SEED = 20260225
BUILD = ("build", "--builder", "direct")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@dataclass(kw_only=True)
class World:
    """A stack on loopback, what a build of it must be, and a process that runs and kills commands."""

    killer: Killer
    small: Small
    root: Path
    wanted: str = ""
    lock: str = ""
    round: int = 0

    @property
    def cache(self) -> Path:
        """Of the present round."""
        return self.root / f"cache-{self.round}"

    def fresh(self, *, locked: bool) -> None:
        """A new round: an empty cache, no image, and no lock unless `locked`."""
        self.round += 1
        self.small.lock.unlink(missing_ok=True)
        if locked:
            self.small.lock.write_text(self.lock)

    @property
    def target(self) -> str:
        """Where this round's image goes: a layout, or every third time a tar file."""
        return f"out-{self.round}.tar" if self.round % 3 == 0 else f"out-{self.round}"

    def run(self, at: int = 0, with_signal: int = signal.SIGKILL) -> Ended:
        cache = {"IMAGEBUILDER_CACHE_DIR": str(self.cache)}
        arguments = (*BUILD, "s", "--output", self.target)
        return self.killer.run(
            *arguments, cwd=self.small.folder, environment=cache, at=at, signal=with_signal
        )

    def check_what_is_there(self) -> None:
        """Whatever has its final name is whole."""
        assert wrong_artefacts(self.cache) == []
        if self.small.lock.exists():
            assert self.small.lock.read_text() == self.lock
        target = self.small.folder / self.target
        if target.is_dir():
            assert read_layout(target)[0].image.digest.text == self.wanted
        record = target.with_name(f"{target.name}.build.json")
        if record.exists():
            assert json.loads(record.read_text())["manifest"] == self.wanted
            assert target.exists()

    def check_build(self) -> None:
        """A build that nobody disturbs is right, and prune leaves nothing of what was killed."""
        ended = self.run()
        assert ended.code == 0, ended.err
        assert (self.root / "killed.out").read_text().strip() == self.wanted
        self.check_what_is_there()
        hidden = [p.name for p in self.small.folder.rglob(".*")]
        assert hidden == []
        cache = Cache(self.cache)
        cache.prune(time.time() + STALE / 2)
        assert [p for p in leftovers(self.cache) if (self.cache / p).is_dir()] == []
        cache.prune(time.time() + 2 * STALE)
        assert leftovers(self.cache) == []


@pytest.fixture
def world(server: Server, tmp_path: Path) -> Iterator[World]:
    machine = Machine(root=tmp_path)
    small = Small(machine.work, server)
    for name, needs in (("one", ["two"]), ("two", []), ("three", [])):
        small.wheel(name, requires=needs, files={f"{name}/data.bin": noise(name, 300_000)})
    patch = (
        "--- a/three/__init__.py\n+++ b/three/__init__.py\n@@ -2,1 +2,2 @@\n __version__ = '1.0'\n+more = 1\n"
    )
    small.write("one", "three", tail='patches = ["*.patch"]\n[[file]]\npath = "/etc/x"\ncontent = "x"\n')
    (small.folder / "stacks" / "three.patch").write_text(patch)
    machine.environment |= small.environment
    with Killer(machine.variables(), tmp_path) as killer:
        made = World(killer=killer, small=small, root=tmp_path)
        ended = made.run()
        assert ended.code == 0, ended.err
        made.wanted = (tmp_path / "killed.out").read_text().strip()
        made.lock = small.lock.read_text()
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", made.wanted)
        yield made


def test_killed_at_fifty_moments_then_built(world: World) -> None:
    """Up to three kills in one cache, then a build; every other time locking is in it too."""
    draw = random.Random(SEED)
    killed: list[int] = []
    steps: dict[bool, int] = {}
    for locked in (True, False):  # an undisturbed run of each kind says how many steps there are
        world.fresh(locked=locked)
        ended = world.run()
        assert ended.code == 0, ended.err
        steps[locked] = ended.steps
    assert min(steps.values()) > 50, "too few steps to draw moments from"
    while len(killed) < KILLS:
        locked = world.round % 2 == 0
        world.fresh(locked=locked)
        for _ in range(draw.randint(1, 3)):
            ended = world.run(at=draw.randint(1, steps[locked]))
            if ended.code == -signal.SIGKILL:
                killed.append(ended.steps)
            else:  # there was less left to do than that
                assert ended.code == 0, ended.err
            world.check_what_is_there()
        world.check_build()
    assert len(set(killed)) > KILLS // 2


def test_interrupted_at_many_moments_then_built(world: World) -> None:
    """As Ctrl-C does it: exit 130, one line, no temporary file, and the next build is right."""
    draw = random.Random(SEED + 1)
    interrupted = 0
    while interrupted < 12:
        locked = world.round % 2 == 0
        world.fresh(locked=locked)
        ended = world.run(at=draw.randint(5, 120), with_signal=signal.SIGINT)
        if ended.code != 0:
            assert ended.code == 130, ended.err
            assert "interrupted" in ended.err and "Traceback" not in ended.err
            assert [p for p in leftovers(world.cache) if not p.startswith("partial/")] == []
            assert [p.name for p in world.small.folder.rglob(".*")] == []
            interrupted += 1
        world.check_what_is_there()
        world.check_build()


@pytest.mark.parametrize("options", [("--no-check",), ()], ids=["downloading", "checking"])
def test_interrupted_while_a_server_keeps_us_waiting(
    options: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    """Ctrl-C in the middle of a body that does not come: it ends at once; what was downloaded is resumed."""
    machine = Machine(root=tmp_path)
    small = Small(machine.work, server)
    small.wheel("one", files={"one/data.bin": noise("one", 2_000_000)})
    small.write("one")
    machine.environment |= small.environment
    assert machine.run("lock", "s").code == 0
    (path,) = [p for p in server.paths if p.endswith(".whl")]
    gate = server.hold(path)
    before = server.sent(path)
    process = machine.start(*BUILD, "s", *options)
    assert gate.reached.wait(WAIT)
    while options and not any(p.stat().st_size for p in (machine.cache / "partial").glob("?" * 64)):
        assert process.poll() is None  # the bytes are on their way
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    outcome = outcome_of(process)  # while the gate is still closed
    assert outcome.code == 130, outcome.err
    assert "Traceback" not in outcome.err
    assert not (machine.work / "images").exists()
    assert wrong_artefacts(machine.cache) == []
    gate.open()
    outcome = machine.run(*BUILD, "s", *options)
    assert outcome.code == 0, outcome.err
    if options:
        assert server.sent(path) - before < 2 * len(server.body(path))
        assert server.requests_for(path)[-1].headers.get("Range", "").startswith("bytes=")


def test_interrupted_while_another_build_makes_the_layer(server: Server, tmp_path: Path) -> None:
    """Ctrl-C while waiting for another process: it ends, and the other's work is not harmed."""
    machine = Machine(root=tmp_path)
    small = Small(machine.work, server)
    small.wheel("one")
    small.write("one")
    machine.environment |= small.environment
    first = machine.run(*BUILD, "s")
    assert first.code == 0, first.err
    names = [p.name for p in (machine.cache / "locks").iterdir() if p.name.startswith("layer-")]
    records = machine.cache / "records" / "layer"
    for path in [p for p in records.rglob("*") if p.is_file()]:
        path.unlink()
    held = Cache(machine.cache)
    with held.lock(names[0].removesuffix(".lock")), held.lock(names[1].removesuffix(".lock")):
        process = machine.start(*BUILD, "s", "--progress", "json")
        assert process.stderr is not None
        while '"building' not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert outcome_of(process).code == 130
    again = machine.run(*BUILD, "s")
    assert (again.code, again.out) == (0, first.out)


LINGERING = """
import signal, sys, threading, time
from imagebuilder.cli import main

def linger():
    while signal.getsignal(signal.SIGINT) is not main._leave:
        time.sleep(0.01)
    print("ended", flush=True)
    threading.Event().wait()

main.run = lambda argv: threading.Thread(target=linger).start() or 0
main.main()
"""


def test_interrupted_while_threads_come_to_their_end() -> None:
    """The second Ctrl-C: it ends at once, with the code of an interruption and nothing of Python's own."""
    words = [sys.executable, "-c", LINGERING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT)
    assert (process.returncode, said) == (130, "")


@pytest.mark.parametrize(
    "start", [["-m", "imagebuilder"], [str(Path(sys.executable).with_name("imagebuilder"))]]
)
def test_interrupted_while_it_starts(tmp_path: Path, start: list[str]) -> None:
    """Ctrl-C among its first imports: it is gone, without Python's own account of where it was."""
    slow = "import threading\nprint('importing', flush=True)\nthreading.Event().wait()\n"
    (tmp_path / "click.py").write_text(slow)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, *start, "list"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT)
    assert (process.returncode, said) == (-signal.SIGINT, "")
