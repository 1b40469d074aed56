"""Which Docker Engines the tests may use.

Those that `scripts/engine start KIND` brought up are taken by name; besides them whatever DOCKER_HOST (or the
default socket) names serves for its own kind. Without any, tests marked `docker` are skipped and say so; with
IMAGEBUILDER_REQUIRE_DOCKER=1 (CI) they fail instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Engines are looked for once, perhaps in the middle of a test that has another HOME: what counts is this.
AT_START = dict(os.environ)
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "engine"
_PRIVATE = "own-"  # names of engines that belong to one test of one test process


@dataclass(frozen=True, kw_only=True)
class TestEngine:
    """A running engine. kind: containerd, classic, old or newest. variables: what leads clients to it."""

    __test__ = False

    name: str
    kind: str
    host: str
    variables: Mapping[str, str]
    log: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with the engine's variables on top."""
        path = (
            f"{self.variables['BIN']}:{os.environ['PATH']}" if "BIN" in self.variables else os.environ["PATH"]
        )
        return {**os.environ, **{k: v for k, v in self.variables.items() if k != "BIN"}, "PATH": path}

    def wait_until_gone(self, *listing: str) -> None:
        """Until all that `docker LISTING` prints now is gone; what others make meanwhile may come and go."""
        left = set(self.docker(*listing).split())
        deadline = time.monotonic() + 300
        while left := left & set(self.docker(*listing).split()):
            assert time.monotonic() < deadline, f"docker {' '.join(listing)}: {left} stay"
            time.sleep(0.1)

    def docker(self, *arguments: str, check: bool = True, data: bytes | None = None) -> str:
        """What `docker ARGUMENTS` prints on this engine."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, input=data or b"", capture_output=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode()


def find_engine(kind: str | None = None) -> TestEngine:
    """A running engine of that kind (None: any modern one); skips or fails the test where there is none."""
    for engine in engines():
        if engine.kind == kind or (kind is None and engine.kind != "old"):
            return engine
    how = f"no {kind or 'modern'} engine answers: scripts/engine start {kind or 'containerd'}"
    if kind == "old" and "VERSION_CODENAME=bookworm" not in Path("/etc/os-release").read_text():
        pytest.skip("Docker 20.10 is Debian 12's; its packages run on no later Debian")
    # What Debian is going to have may be in between two states: its tests run where it starts.
    if AT_START.get("IMAGEBUILDER_REQUIRE_DOCKER") == "1" and kind != "newest":
        pytest.fail(how)
    pytest.skip(how)


def find_gpu_engine() -> TestEngine:
    """An engine that takes GPU requests: with a stub, or with real GPUs."""
    listed = subprocess.run(
        [sys.executable, str(SCRIPT), "list"], env=AT_START, capture_output=True, text=True, check=True
    )
    for record in map(json.loads, listed.stdout.splitlines()):
        if record["pid"] and record["gpu_stub"] and not record["name"].startswith(_PRIVATE):
            leads = {"DOCKER_HOST": record["host"], "DOCKER_CONFIG": record["client"], "BIN": record["bin"]}
            return TestEngine(
                name=record["name"],
                kind=record["kind"],
                host=record["host"],
                variables=leads,
                log=record["log"],
            )
    how = "no engine takes GPU requests: scripts/engine start containerd --name gpu --gpu-stub"
    if AT_START.get("IMAGEBUILDER_REQUIRE_DOCKER") == "1":
        pytest.fail(how)
    pytest.skip(how)


@contextmanager
def private_engine(
    kind: TestEngine, name: str, size: str = "", *, gpu_stub: bool = False
) -> Iterator[TestEngine]:
    """Another engine of that kind, which a test may break; size: of its disk.

    No other test is given it, and each test process makes its own: what one breaks, none misses.
    """
    if kind.name != kind.kind or os.geteuid() != 0:
        pytest.skip("a second engine is started by scripts/engine, as root")
    name = f"{_PRIVATE}{name}-{os.getpid()}"
    folder = Path(kind.host.removeprefix("unix://")).parent.parent / name

    def script(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    try:
        if size:
            (folder / "data").mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder / "data")], check=True
            )
        more = ["--gpu-stub"] if gpu_stub else []
        script("start", kind.kind, "--name", name, *more)
        host = f"unix://{folder}/docker.sock"
        yield replace(kind, name=name, host=host, variables={**kind.variables, "DOCKER_HOST": host})
    finally:
        script("remove", name)


@cache
def engines() -> tuple[TestEngine, ...]:
    return (*_scripted(), *_ambient())


def _scripted() -> list[TestEngine]:
    listed = subprocess.run(
        [sys.executable, str(SCRIPT), "list"], env=AT_START, capture_output=True, text=True, check=True
    )
    found = []
    for line in listed.stdout.splitlines():
        record = json.loads(line)
        if record["pid"] and record["name"] == record["kind"]:  # others belong to whoever named them
            variables = {
                "DOCKER_HOST": record["host"],
                "DOCKER_CONFIG": record["client"],
                "BIN": record["bin"],
            }
            found.append(
                TestEngine(
                    name=record["name"],
                    kind=record["kind"],
                    host=record["host"],
                    variables=variables,
                    log=record["log"],
                )
            )
    return found


def _ambient() -> list[TestEngine]:
    import docker

    host = AT_START.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        client = docker.DockerClient(base_url=host, timeout=120)
        info: dict[str, Any] = client.info()
    except docker.errors.DockerException:
        return []
    client.close()
    if int(str(info["ServerVersion"]).partition(".")[0] or 0) < 23:
        kind = "old"
    else:
        status = [tuple(pair) for pair in info.get("DriverStatus") or []]
        kind = "containerd" if ("driver-type", "io.containerd.snapshotter.v1") in status else "classic"
    return [TestEngine(name="DOCKER_HOST", kind=kind, host=host, variables={"DOCKER_HOST": host})]
