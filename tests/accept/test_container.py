"""Servers in containers of a real engine: what is asked of it, what is seen, and that nothing is left."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pytest

from imagebuilder.accept.container import (
    LABEL,
    DockerRuntime,
    is_leftover,
    owner_now,
)
from imagebuilder.accept.server import Launch, Script, wait_healthy
from imagebuilder.builders.docker.engine import Engine
from imagebuilder.cache import Cache
from imagebuilder.errors import MachineLacks, NotAccepted
from imagebuilder.oci.image import Image
from imagebuilder.progress import Silent
from imagebuilder.publish.built import read_built
from imagebuilder.stack.model import Mount
from imagebuilder.values import ImageRef
from tests.support.command import ROOT, WAIT
from tests.support.engine import TestEngine, find_gpu_engine

pytestmark = [pytest.mark.docker, pytest.mark.network]
NAME = ImageRef.parse("imagebuilder-test-accept:demo")
WORDS = ("python3", "-m", "sglang_simulator", "--model-path", "m", "--host", "0.0.0.0", "--port", "8000")


def loaded(found: TestEngine, layout: Path) -> Iterator[Engine]:
    """The engine with the demo image; without it, and without containers of ours, afterwards.

    One test at a time, in however many processes they run: leftovers are what these tests make and look for.
    """
    one = filelock.FileLock(Path(tempfile.gettempdir()) / "imagebuilder-test-accept.lock")
    with one, Engine.connect(found.environment) as engine:
        demo = read_built(layout, Cache(layout.parent / "cache")).image
        # Not the image that other tests have in this engine: one that goes away takes its namesakes along.
        own = replace(demo.config, labels=(*demo.config.labels, ("test", "accept")))
        engine.load(Image.make(own, demo.layers), (NAME,), Silent())
        yield engine
        left = [container for container in ours(engine) if container.status != "removing"]
        for container in left:
            container.remove(force=True)
        while ours(engine):  # the engine is still taking one away
            time.sleep(0.1)
        engine.remove(NAME)
        assert not left, "containers were left"


def ours(engine: Engine) -> list[Any]:
    """The containers of these tests that the engine knows."""
    filters = {"label": f"{LABEL}=test"}
    return list(engine.client.containers.list(all=True, filters=filters, ignore_removed=True))


@pytest.fixture
def with_image(engine: TestEngine, layout: Path) -> Iterator[Engine]:
    yield from loaded(engine, layout)


def launch(*flags: str, **changes: Any) -> Launch:
    usual = Launch(arm="eagle3", command=(*WORDS, *flags), port=8000, gpus="none", shm=64 << 20)
    return replace(usual, **changes)


def runtime(engine: Engine, owner: str | None = None) -> DockerRuntime:
    return DockerRuntime(engine, str(NAME), "test", owner or owner_now(), Silent())


def test_a_server_in_a_container(with_image: Engine, tmp_path: Path) -> None:
    asked = launch(
        env=(("A", "1"),),
        secrets={"HF_TOKEN": "s3cr3t"},
        mounts=(
            Mount(source=str(tmp_path), target="/models", read_only=True),
            Mount(source="imagebuilder-test-accept", target="/var/cache/x"),
        ),
    )
    server = runtime(with_image).start(asked)
    try:
        asyncio.run(wait_healthy(server, asked, WAIT, Silent()))
        assert server.ended() is None
        assert server.url.startswith("http://127.0.0.1:")
        seen = server._container.attrs
        host = seen["HostConfig"]
        assert host["ShmSize"] == 64 << 20
        assert host["PortBindings"]["8000/tcp"][0]["HostIp"] == "127.0.0.1"
        assert not host["DeviceRequests"]
        assert {"A=1", "HF_TOKEN=s3cr3t", "PYTHONUNBUFFERED=1"} <= set(seen["Config"]["Env"])
        assert {(m["Type"], m["Destination"], m["RW"]) for m in seen["Mounts"]} == {
            ("bind", "/models", False), ("volume", "/var/cache/x", True),
        }  # fmt: skip
        assert seen["Config"]["Labels"][LABEL] == "test"
        assert any("Uvicorn running" in line for line in server.log(10))
    finally:
        server.stop()
    assert server.ended() == "its container was removed"
    server.stop()
    with_image.client.volumes.get("imagebuilder-test-accept").remove()


def test_all_gpus_are_requested(layout: Path) -> None:
    found = find_gpu_engine()
    for engine in loaded(found, layout):
        server = runtime(engine).start(launch(gpus="all"))
        try:
            server._container.reload()
            [request] = server._container.attrs["HostConfig"]["DeviceRequests"]
            assert (request["Count"], request["Capabilities"]) == (-1, [["gpu"]])
        finally:
            server.stop()
        some = runtime(engine).start(launch(gpus=(0, 2)))
        some._container.reload()
        assert some._container.attrs["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["0", "2"]
        some.stop()
    assert "prestart" in (Path(found.log).parent / "gpu-requests.log").read_text()


def test_an_engine_without_gpus(classic_engine: TestEngine, layout: Path) -> None:
    for engine in loaded(classic_engine, layout):
        with pytest.raises(MachineLacks, match="no GPUs to give") as failed:
            runtime(engine).start(launch(gpus="all"))
        assert "nvidia-ctk runtime configure" in str(failed.value)


def test_a_server_that_crashes(with_image: Engine) -> None:
    asked = launch("--sim-fault", "start-crash")
    server = runtime(with_image).start(asked)
    with pytest.raises(NotAccepted, match=r"eagle3 server ended while starting \(exit status 1\)") as failed:
        asyncio.run(wait_healthy(server, asked, WAIT, Silent()))
    assert "CUDA out of memory" in str(failed.value)
    server.stop()


def test_a_container_that_somebody_else_removes(with_image: Engine) -> None:
    server = runtime(with_image).start(launch())
    server._container.remove(force=True)
    with pytest.raises(NotAccepted, match="its container was removed"):
        asyncio.run(wait_healthy(server, launch(), WAIT, Silent()))
    server.stop()


def test_scripts(with_image: Engine) -> None:
    run = runtime(with_image).run
    source = "import json, sys; print(json.dumps(json.load(open(sys.argv[1])))); print('x', file=sys.stderr)"
    assert json.loads(run(Script(name="s", source=source, data=b'{"a": "\xc3\xa9"}'), launch(), WAIT)) == {
        "a": "é"
    }
    with pytest.raises(NotAccepted, match="exit status 3"):
        run(Script(name="s", source="raise SystemExit(3)", data=b""), launch(), WAIT)
    with pytest.raises(NotAccepted, match="did not end within 1 s"):
        run(Script(name="s", source="import time; time.sleep(60)", data=b""), launch(), 1)


def test_what_a_killed_run_left_is_removed_and_nothing_else(with_image: Engine) -> None:
    code = (
        "import os, sys; from tests.accept.test_container import *\n"
        f"engine = Engine.connect({{'DOCKER_HOST': {with_image.facts.host!r}}})\n"
        "print(runtime(engine).start(launch())._container.id, flush=True)\n"
        "import time; time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = process.stdout.readline().strip()
    own = runtime(with_image).start(launch())
    assert runtime(with_image).clean() == 0, "both owners live"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert runtime(with_image).clean() == 1
    here = {container.id for container in ours(with_image)}
    assert left not in here
    assert own._container.id in here
    own.stop()


def test_a_command_that_is_not_in_the_image(with_image: Engine) -> None:
    asked = launch(command=("/no/such/program",))
    server = runtime(with_image).start(asked)
    try:
        with pytest.raises(NotAccepted, match="exit status 127") as failed:
            asyncio.run(wait_healthy(server, asked, WAIT, Silent()))
    finally:
        server.stop()
    assert "No such file or directory" in str(failed.value)


def test_owners() -> None:
    mine = owner_now()
    machine, _, rest = mine.partition("/")
    assert not is_leftover(mine)
    assert is_leftover(f"{machine}/999999999/5")
    assert is_leftover(f"{machine}/{rest.partition('/')[0]}/1")
    assert not is_leftover("another-machine/999999999/5")
    assert not is_leftover("nonsense")
