"""The demo image in real engines, and containers that are gone after each test."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.builders.docker.engine import Engine
from imagebuilder.deploy.container import Container, container_of
from imagebuilder.deploy.switch import Switch
from imagebuilder.oci.layout import read_layout
from imagebuilder.progress import Silent, Task
from imagebuilder.settings import load
from imagebuilder.stack.model import DeployDocker
from imagebuilder.values import ImageRef
from tests.deploy.stacks import stack_of
from tests.support.command import Machine
from tests.support.engine import TestEngine, find_engine, find_gpu_engine
from tests.support.kube_api import KubeApi
from tests.support.ports import free_ports

Environment = Callable[[KubeApi], dict[str, str]]


def no_kubectl() -> str:
    """Why there is none that asks in the way that servers answer today; empty: there is one."""
    if shutil.which("kubectl") is None:
        return "no kubectl: apt-get install kubectl on Debian 13, or scripts/debian-tools FOLDER kubectl"
    asked = subprocess.run(
        ["kubectl", "version", "--client", "--output", "json"], capture_output=True, text=True, check=False
    )
    version = json.loads(asked.stdout)["clientVersion"]
    if int(version["minor"].rstrip("+")) < 27:
        return f"kubectl {version['gitVersion']} knows no OpenAPI v3, and the server here speaks nothing else"
    return ""


@pytest.fixture
def kubectl(tmp_path: Path) -> Callable[[KubeApi], dict[str, str]]:
    """The environment that leads a real kubectl to an API server."""
    if why := no_kubectl():
        if os.environ.get("IMAGEBUILDER_REQUIRE_TOOLS") == "1":
            pytest.fail(why)
        pytest.skip(why)

    def environment(api: KubeApi) -> dict[str, str]:
        config = tmp_path / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": api.url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config.write_text(
            json.dumps({
                "apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context],
                "users": [{"name": "u", "user": {}}], "current-context": "c",
            })
        )  # fmt: skip
        return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(config)}

    return environment


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The demo image, built once. layout: where it lies. name: what engines call it."""

    machine: Machine
    layout: Path
    name: ImageRef

    def load(self, engine: Engine) -> None:
        (stored,) = {s.image.digest: s for s in read_layout(self.layout)}.values()
        engine.load(stored.image, (self.name,), Silent())


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """With this user's cache, where its files are already."""
    cache = {"IMAGEBUILDER_CACHE_DIR": str(load(os.environ).cache_dir)}
    known = {k: v for k, v in os.environ.items() if k not in ("HOME", "TMPDIR")}
    machine = Machine(root=tmp_path_factory.mktemp("deploy"), environment=known | cache)
    record = machine.build("demo")
    return Demo(machine=machine, layout=Path(record["path"]), name=ImageRef.parse(record["names"][-1]))


@pytest.fixture(params=["containerd"])
def test_engine(request: pytest.FixtureRequest) -> TestEngine:
    """With containerd's store, unless a test names other kinds; `gpu`: one that takes GPU requests."""
    return find_gpu_engine() if request.param == "gpu" else find_engine(request.param)


@pytest.fixture
def engine(test_engine: TestEngine, demo: Demo) -> Iterator[Engine]:
    """Connected, and with the demo image in it."""
    with Engine.connect(test_engine.environment) as engine:
        demo.load(engine)
        yield engine


@dataclass
class Heard(Silent):
    """What a reporter was told."""

    lines: list[str] = field(default_factory=list)

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        self.lines.append(label)
        return super().task(label, total=total, unit=unit)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(text)


@dataclass
class Service:
    """One service on one engine: what to deploy, and what the engine then has of it. port: here."""

    engine: Engine
    image: str
    port: int
    name: str = field(default_factory=lambda: f"deploy-test-{secrets.token_hex(4)}")
    heard: Heard = field(default_factory=Heard)

    SERVER = ("python3", "-m", "http.server", "8000")

    def container(self, **settings: Any) -> Container:
        """Serves at once, unless told otherwise."""
        fields: dict[str, Any] = {
            "name": self.name,
            "command": self.SERVER,
            "port": 8000,
            "publish": f"127.0.0.1:{self.port}",
            "gpus": "none",
            "shm": 64 << 20,
            "ulimits": (),
            "health_path": "/",
            "startup_timeout": 600,
            "stop_timeout": 1,
        }
        return container_of(stack_of(docker=DeployDocker(**fields | settings)), self.image)

    def switch(
        self, container: Container | None = None, *, values: dict[str, str] | None = None, **settings: Any
    ) -> Switch:
        """Ready to deploy this."""
        return Switch(
            engine=self.engine,
            wanted=container or self.container(**settings),
            secrets=values or {},
            reporter=self.heard,
        )

    def listed(self) -> list[Any]:
        """Its containers; a command that runs beside a test may remove one while they are listed."""
        filters = {"name": f"^/{self.name}"}
        return list(self.engine.client.containers.list(all=True, filters=filters, ignore_removed=True))

    def seen(self) -> dict[str, Any]:
        """Suffix of the name → what the engine says of that container."""
        return {(c.name or "").removeprefix(self.name): c.attrs for c in self.listed()}

    def states(self) -> dict[str, str]:
        """Suffix of the name → status."""
        return {suffix: attrs["State"]["Status"] for suffix, attrs in self.seen().items()}

    def variable(self, suffix: str, name: str) -> str | None:
        """A variable of one container."""
        environment = dict(e.partition("=")[::2] for e in self.seen()[suffix]["Config"]["Env"])
        return environment.get(name)

    def close(self) -> None:
        for container in self.listed():
            container.remove(force=True, v=True)


@pytest.fixture
def make_service(demo: Demo) -> Iterator[Callable[[Engine], Service]]:
    with ExitStack() as held:

        def make(engine: Engine) -> Service:
            made = Service(engine=engine, image=str(demo.name), port=free_ports(1, held))
            held.callback(made.close)
            return made

        yield make


@pytest.fixture
def service(engine: Engine, make_service: Callable[[Engine], Service]) -> Service:
    """On that engine."""
    return make_service(engine)
