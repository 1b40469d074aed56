"""Whole acceptances of the demo image in an engine that may be broken: what it is asked, what kills leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from imagebuilder.accept import results
from imagebuilder.accept.container import OWNER, DockerRuntime, owner_now
from imagebuilder.accept.model import RunResult
from imagebuilder.accept.record import Record
from imagebuilder.accept.schema import schema_of
from imagebuilder.accept.server import Launch, Script
from imagebuilder.builders.docker.engine import Engine
from imagebuilder.errors import MachineLacks
from imagebuilder.progress import Silent
from tests.accept.test_cli import placed
from tests.support.command import WAIT, Machine, outcome_of
from tests.support.engine import SCRIPT, TestEngine, find_engine, private_engine

pytestmark = [pytest.mark.docker, pytest.mark.network]
LONG = "rounds = 300"


@pytest.fixture(scope="module")
def own_engine() -> Iterator[TestEngine]:
    """An engine of this module's own (and of this test process), with the GPU-request stub."""
    with private_engine(find_engine("containerd"), "acc", gpu_stub=True) as found:
        yield found
        start(found)  # removing it asks it to stop its containers


def start(engine: TestEngine) -> None:
    words = [sys.executable, str(SCRIPT), "start", engine.kind, "--name", engine.name, "--gpu-stub"]
    subprocess.run(words, check=True, capture_output=True)


def ready(folder: Path, layout: Path, engine: TestEngine, *changes: tuple[str, str]) -> Machine:
    """A machine with the built demo, led to this engine."""

    def changed(text: str) -> str:
        text = text.replace("concurrency = [2]", "concurrency = [8]")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return text

    machine = placed(folder, changed)
    shutil.copytree(layout, machine.work / "images" / "demo", copy_function=os.link)
    machine.environment |= {"DOCKER_HOST": engine.host}
    return machine


def containers(engine: TestEngine) -> list[dict[str, Any]]:
    """Those of acceptances that the engine knows, inspected."""
    ids = engine.docker("ps", "--all", "--quiet", "--filter", f"label={OWNER}").split()
    found: list[dict[str, Any]] = json.loads(engine.docker("inspect", *ids, check=False)) if ids else []
    return found


def servers(engine: TestEngine) -> list[dict[str, Any]]:
    """Of these containers those that serve; the others run a script and end."""
    return [c for c in containers(engine) if "sglang_simulator" in str(c["Args"]) and c["State"]["Running"]]


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"it ended: {process.communicate()}")
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)


def kept(machine: Machine) -> RunResult | None:
    """What was measured so far."""
    found = sorted((machine.work / "results").rglob("run.json.gz"))
    return results.read_run(found[-1].parent) if found else None


def units(machine: Machine) -> int:
    run = kept(machine)
    return run.units if run else 0


def nothing_left_after_the_next_run(machine: Machine, engine: TestEngine) -> str:
    done = machine.run("accept", "demo", "--smoke-only")
    assert done.code == 0, done.err
    assert containers(engine) == []
    return done.err


def test_all_gpus_are_asked_for_and_both_servers_run(
    own_engine: TestEngine, layout: Path, tmp_path: Path
) -> None:
    machine = ready(tmp_path, layout, own_engine, ("rounds = 2", "rounds = 3\nstart-variation = 0.002"))
    process = machine.start("accept", "demo", "--gpus", "all", "--json")
    seen: dict[str, dict[str, Any]] = {}

    def both() -> bool:
        seen.update({c["Name"]: c for c in servers(own_engine)})
        return len(seen) == 2

    until(both, process)
    for arm in ("baseline", "eagle3"):
        [server] = [c for name, c in seen.items() if f"-{arm}-" in name]
        [request] = server["HostConfig"]["DeviceRequests"]
        assert (request["Count"], request["Capabilities"]) == (-1, [["gpu"]])
        assert server["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostIp"] == "127.0.0.1"
        assert ("EAGLE3" in server["Args"]) is (arm == "eagle3")
    assert (
        "prestart" in (Path(own_engine.host.removeprefix("unix://")).parent / "gpu-requests.log").read_text()
    )
    done = outcome_of(process)
    assert done.code in (0, 8), done.err  # a busy machine may leave it unclear
    told = json.loads(done.out)
    folder, record = Path(told["folder"]), told["record"]
    jsonschema.validate(record, schema_of(Record))
    assert record["runtime"] == "docker"
    assert record["config_digest"].removeprefix("sha256:") == folder.parent.name
    assert record["outcome"] == ("pass" if done.code == 0 else "inconclusive"), done.err
    assert {p.name for p in folder.iterdir()} == {"verdict.json", "run.json.gz", "report.md", "report.html"}
    assert containers(own_engine) == []
    again = machine.run("accept", "demo", "--gpus", "all", "--runtime", "auto", "--if-needed")
    assert ("nothing to do" in again.err) is (done.code == 0)


@pytest.mark.parametrize("when", ["starting", "measuring"])
def test_imagebuilder_is_killed(own_engine: TestEngine, layout: Path, tmp_path: Path, when: str) -> None:
    slow = [('"--sim-noise", "0"', '"--sim-startup", "600"')] if when == "starting" else []
    machine = ready(tmp_path, layout, own_engine, ("rounds = 2", LONG), *slow)
    process = machine.start("accept", "demo", "--quiet")
    count = 1 if when == "starting" else 2
    until(lambda: len(servers(own_engine)) == count, process)
    if when == "measuring":
        until(lambda: units(machine) > 1, process)
    process.kill()
    process.communicate()
    assert len(containers(own_engine)) == count, "nobody was there to remove them"
    if when == "measuring":
        assert units(machine) > 1, "what was measured is readable"
    told = nothing_left_after_the_next_run(machine, own_engine)
    assert f"removed {count} container" in told


def test_a_server_is_killed(own_engine: TestEngine, layout: Path, tmp_path: Path) -> None:
    machine = ready(tmp_path, layout, own_engine, ("rounds = 2", LONG))
    process = machine.start("accept", "demo", "--quiet")
    until(lambda: units(machine) > 1, process)
    [baseline] = [c for c in servers(own_engine) if "-baseline-" in c["Name"]]
    own_engine.docker("kill", baseline["Id"])
    done = outcome_of(process)
    assert done.code == 8, done.err
    assert re.search(r"the baseline server ended( under load)? \(exit status 137\)", done.err), done.err
    assert "Traceback" not in done.err
    run = kept(machine)
    assert run is not None and run.units > 1 and "exit status 137" in run.failure
    assert containers(own_engine) == []


def a_long_script(engine: TestEngine, image: str) -> bytes:
    with Engine.connect(engine.environment) as connected:
        nobody = owner_now().partition("/")[0] + "/999999999/1"  # so that it is left, and found
        runtime = DockerRuntime(connected, image, "test", nobody, Silent())
        script = Script(name="sleeping", source="import time; time.sleep(600)", data=b"")
        return runtime.run(script, Launch(arm="baseline", command=(), port=8000, gpus="none"), 600)


def test_the_engine_is_killed(own_engine: TestEngine, layout: Path, tmp_path: Path) -> None:
    machine = ready(tmp_path, layout, own_engine, ("rounds = 2", LONG))
    process = machine.start("accept", "demo", "--quiet")
    try:
        until(lambda: units(machine) > 1, process)
        script = ThreadPoolExecutor(1).submit(a_long_script, own_engine, servers(own_engine)[0]["Image"])
        until(lambda: len(containers(own_engine)) == 3, process)
        pid = int((Path(own_engine.host.removeprefix("unix://")).parent / "docker.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        done = outcome_of(process)
    finally:
        start(own_engine)
    with pytest.raises(MachineLacks, match="sleeping cannot be run in the image"):
        script.result(WAIT)
    assert done.code == 6, done.err
    assert "the Docker Engine stopped answering in the middle of the acceptance" in done.err
    assert "Traceback" not in done.err
    run = kept(machine)
    assert run is not None and run.units > 1 and "stopped answering" in run.failure
    [stored] = results.all_results(machine.work / "results")
    assert stored.record is None, "that says nothing about the image"
    nothing_left_after_the_next_run(machine, own_engine)
