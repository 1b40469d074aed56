"""Switching containers on real engines: started, kept, put back, rolled back, taken up after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from imagebuilder.builders.docker.engine import Engine
from imagebuilder.deploy.container import Container, compose_file, run_words
from imagebuilder.deploy.text import yaml_document
from imagebuilder.errors import DeployFailed, MachineLacks
from imagebuilder.stack.model import Mount
from tests.deploy.conftest import Demo, Service
from tests.support.compose import compose_plugin
from tests.support.engine import TestEngine, find_gpu_engine

pytestmark = [pytest.mark.docker, pytest.mark.network]  # the image's files may have to be fetched

FAILS = ("python3", "-c", "import os, sys; print('boom', os.environ.get('HF_TOKEN')); sys.exit(3)")
SILENT = ("python3", "-c", "import time; print('still loading', flush=True); time.sleep(600)")


def answers(service: Service) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/", timeout=240) as answer:
        return int(answer.status) == 200


# ---------------------------------------------------------------- docker run and the SDK make the same

VOLUME = "of-the-service"
OPTIONS: list[dict[str, Any]] = [
    {},
    {"command": (), "env": (("A", 'it\'s $(id) "x", y'),), "restart": "on-failure"},
    {
        "gpus": "all",
        "mounts": (Mount(source="/usr", target="/a,b", read_only=True),),
        "ulimits": (("nofile", "512:1024"), ("core", "0")),
        "secrets": ("HF_TOKEN",),
        "publish": "30999",
        "shm": 3 << 20,
    },
    {"gpus": (0, 2), "mounts": (Mount(source=VOLUME, target="/cache"),), "restart": "no"},
]


def container_with(service: Service, options: dict[str, Any]) -> Container:
    """The container of these options; its volume is no other test's."""
    mounts = tuple(
        replace(mount, source=service.name) if mount.source == VOLUME else mount
        for mount in options.get("mounts", ())
    )
    return service.container(**options | {"mounts": mounts})


def comparable(attrs: dict[str, Any]) -> dict[str, Any]:
    """What a container is made from, without its own identity and what has two spellings."""
    config: dict[str, Any] = present({k: v for k, v in attrs["Config"].items() if k != "Hostname"})
    host: dict[str, Any] = present(attrs["HostConfig"])
    for name in ("AttachStdout", "AttachStderr"):  # of the client that made it, not of the container
        config.pop(name, None)
    config["Env"] = sorted(config["Env"])
    host["Ulimits"] = sorted(host.get("Ulimits", ()), key=lambda limit: limit["Name"])
    host.pop("ConsoleSize", None)
    if host["NetworkMode"] == "bridge":  # how newer engines spell the default of older clients
        host["NetworkMode"] = "default"
    return {"config": config, "host": host, "image": attrs["Image"], "path": (attrs["Path"], attrs["Args"])}


def present(value: Any) -> Any:
    """Without what is empty: null, "", [], {} and false all mean the default."""
    if isinstance(value, dict):
        return {k: found for k, v in value.items() if (found := present(v)) not in (None, "", [], {}, False)}
    return [present(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("test_engine", ["classic", "containerd", "old"], indirect=True)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "env", "gpus", "devices"])
def test_the_printed_command_makes_the_same_container(
    service: Service, test_engine: TestEngine, options: dict[str, Any]
) -> None:
    wanted = container_with(service, options)
    switch = service.switch(wanted, values=dict.fromkeys(wanted.secrets, "hf_value"))
    made = switch._create("-sdk").attrs
    words = list(run_words(wanted))
    assert words[:3] == ["docker", "run", "--detach"]
    words[1:5] = ["create", "--name", f"{service.name}-cli"]
    done = subprocess.run(
        words,
        env={**test_engine.environment, "HF_TOKEN": "hf_value"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    try:
        ours, theirs = comparable(made), comparable(service.seen()["-cli"])
        for part in ours:
            assert ours[part] == theirs[part]
    finally:
        service.close()
        for volume in service.engine.client.volumes.list(filters={"name": service.name}):
            volume.remove(force=True)


# What compose adds or spells otherwise: its own labels and network, and the image by its name.
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "env", "gpus", "devices"])
def test_compose_makes_the_same_container(
    service: Service, test_engine: TestEngine, options: dict[str, Any]
) -> None:
    wanted = container_with(service, options)
    made = service.switch(wanted, values=dict.fromkeys(wanted.secrets, "hf_value"))._create("-sdk").attrs
    document = compose_file(wanted)
    (described,) = document["services"].values()
    described["container_name"] = f"{service.name}-compose"
    command = [compose_plugin(), "--project-name", service.name, "--file", "-"]
    environment = {**test_engine.environment, "HF_TOKEN": "hf_value"}

    def compose(*words: str) -> subprocess.CompletedProcess[bytes]:
        text = yaml_document(document).encode()
        return subprocess.run(
            [*command, *words], input=text, env=environment, capture_output=True, check=False
        )

    try:
        done = compose("create", "--pull", "never")
        assert done.returncode == 0, done.stderr
        ours, theirs = comparable(made), comparable(service.seen()["-compose"])
        for one in (ours, theirs):
            one["host"].pop("NetworkMode")
            labels = one["config"]["Labels"]
            one["config"]["Labels"] = {
                k: v for k, v in labels.items() if not k.startswith("com.docker.compose")
            }
        for part in ours:
            assert ours[part] == theirs[part]
    finally:
        compose("down", "--volumes")
        service.close()


# ---------------------------------------------------------------- the ordinary way


@pytest.mark.parametrize("test_engine", ["classic", "containerd", "old"], indirect=True)
def test_start_again_switch_and_roll_back(service: Service) -> None:
    first = service.switch(env=(("V", "1"),)).deploy()
    assert first.what == "started"
    assert answers(service)
    assert service.switch(env=(("V", "1"),)).deploy().what == "unchanged"
    second = service.switch(env=(("V", "2"),)).deploy()
    assert second.what == "started"
    assert service.states() == {"": "running", "-previous": "exited"}
    assert (service.variable("", "V"), service.variable("-previous", "V")) == ("2", "1")
    # What is kept does not start by itself; what serves does.
    policies = {suffix: a["HostConfig"]["RestartPolicy"]["Name"] for suffix, a in service.seen().items()}
    assert policies == {"": "unless-stopped", "-previous": "no"}
    third = service.switch(env=(("V", "3"),)).deploy()
    assert (service.variable("", "V"), service.variable("-previous", "V")) == ("3", "2")
    back = service.switch(env=(("V", "3"),)).rollback()
    assert (back.what, back.container) == ("rolled back", second.container)
    assert service.states() == {"": "running", "-previous": "exited"}
    assert service.seen()["-previous"]["Id"] == third.container
    assert service.seen()[""]["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert answers(service)


def test_another_secret_is_another_container(service: Service) -> None:
    one = service.switch(secrets=("T",), values={"T": "first-value"}).deploy()
    assert service.switch(secrets=("T",), values={"T": "first-value"}).deploy().what == "unchanged"
    two = service.switch(secrets=("T",), values={"T": "second-value"}).deploy()
    assert (two.what, two.container == one.container) == ("started", False)


def test_nothing_to_roll_back_to(service: Service) -> None:
    with pytest.raises(DeployFailed, match="nothing to roll"):
        service.switch().rollback()


# ---------------------------------------------------------------- the new one fails


@pytest.mark.parametrize(
    ("command", "timeout", "why"),
    [(FAILS, 60, "ended with status 3"), (SILENT, 2, "is not healthy after 2 s")],
    ids=["ends", "silent"],
)
def test_the_old_one_is_put_back(service: Service, command: tuple[str, ...], timeout: int, why: str) -> None:
    old = service.switch(env=(("V", "1"),)).deploy()
    older = service.switch(env=(("V", "2"),)).deploy()
    switch = service.switch(
        command=command, startup_timeout=timeout, secrets=("HF_TOKEN",), values={"HF_TOKEN": "hf_canary"}
    )
    passed = 0

    def sleep(_: float) -> None:  # its time is up when it has said something, however fast this machine is
        nonlocal passed
        time.sleep(0.05)
        if b"still loading" in service.engine.client.containers.get(service.name).logs():
            passed = timeout + 1

    switch.sleep, switch.clock = sleep, lambda: passed
    with pytest.raises(DeployFailed, match=why) as caught:
        switch.deploy()
    assert "boom (redacted)" in caught.value.seen or "still loading" in caught.value.seen
    assert "hf_canary" not in f"{caught.value}{service.heard.lines}"
    assert service.states() == {"": "running", "-previous": "exited"}
    assert [service.seen()[s]["Id"] for s in ("", "-previous")] == [older.container, old.container]
    assert service.seen()[""]["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert answers(service)
    assert any("serves again as before" in line for line in service.heard.lines)


def test_a_first_one_that_fails_leaves_nothing(service: Service) -> None:
    with pytest.raises(DeployFailed, match="ended with status 3"):
        service.switch(command=FAILS).deploy()
    assert service.states() == {}


def test_an_interrupt_puts_the_old_one_back(service: Service) -> None:
    old = service.switch(env=(("V", "1"),)).deploy()
    switch = service.switch(command=SILENT)

    def interrupt(_: float) -> None:
        switch.sleep = time.sleep
        raise KeyboardInterrupt

    switch.sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        switch.deploy()
    assert service.states() == {"": "running"}
    assert service.seen()[""]["Id"] == old.container
    assert answers(service)


def test_what_the_engine_refuses_stops_nothing(service: Service) -> None:
    old = service.switch().deploy()
    wrong = service.container(mounts=(Mount(source="/nowhere/at/all", target="/x"),))
    with pytest.raises(DeployFailed, match="cannot be made") as caught:
        service.switch(wrong).deploy()
    assert "/nowhere/at/all" in caught.value.seen
    unknown = service.switch()
    unknown.wanted = type(unknown.wanted)(**{**vars(unknown.wanted), "image": "imagebuilder-test/none:1"})
    with pytest.raises(DeployFailed, match="cannot be made"):
        unknown.deploy()
    assert (
        service.seen()[""]["State"]["StartedAt"]
        == service.engine.client.containers.get(old.container).attrs["State"]["StartedAt"]
    )
    assert service.states() == {"": "running"}
    assert not any("stopping" in line for line in service.heard.lines)


def test_a_rollback_that_fails_is_undone(service: Service) -> None:
    service.switch(env=(("V", "1"),)).deploy()
    service.switch(env=(("V", "2"),)).deploy()
    taken = service.engine.client.containers.get(f"{service.name}-previous")
    taken.remove()
    broken = service.switch(command=FAILS)._create("-previous")
    with pytest.raises(DeployFailed, match="ended with status 3"):
        service.switch(env=(("V", "2"),)).rollback()
    assert service.seen()["-previous"]["Id"] == broken.id
    assert service.states()[""] == "running"
    assert answers(service)


# ---------------------------------------------------------------- somebody else's, and broken off


def test_a_container_of_somebody_else_is_not_touched(service: Service, demo: Demo) -> None:
    other = service.engine.client.containers.create(str(demo.name), list(SILENT), name=service.name)
    with pytest.raises(DeployFailed, match="that imagebuilder did not make"):
        service.switch().deploy()
    assert service.seen()[""]["Id"] == other.id


@pytest.mark.parametrize("new_is_well", [True, False])
def test_a_killed_switch_is_taken_up(service: Service, new_is_well: bool) -> None:
    """As it lies there when the command was killed while it waited for the new container."""
    old = service.switch(env=(("V", "1"),)).deploy()
    running = service.engine.client.containers.get(old.container)
    running.update(restart_policy={"Name": "no"})
    running.stop(timeout=1)
    running.rename(f"{service.name}-replaced")
    new = service.switch(command=Service.SERVER if new_is_well else SILENT, env=(("V", "2"),))
    started = new._start(new._create(""))
    if new_is_well:
        new._wait(started)
    outcome = service.switch(env=(("V", "2"),)).deploy()
    assert service.states() == {"": "running", "-previous": "exited"}
    assert (service.variable("", "V"), service.variable("-previous", "V")) == ("2", "1")
    assert (outcome.container == started.id) is new_is_well
    assert any("was broken off" in line for line in service.heard.lines)


def test_a_killed_command_for_real(service: Service, test_engine: TestEngine) -> None:
    """SIGKILL at some moment of the switch; the next command makes it whole."""
    service.switch(env=(("V", "1"),)).deploy()
    child = os.fork()
    if child == 0:  # the SDK's connections are not shared: a new one
        try:
            with Engine.connect(test_engine.environment) as engine:
                other = Service(engine=engine, image=service.image, name=service.name, port=service.port)
                other.switch(command=SILENT, env=(("V", "2"),)).deploy()
        finally:
            os._exit(0)
    try:
        until = time.monotonic() + 60
        while "-replaced" not in service.states() and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert service.switch(env=(("V", "3"),)).deploy().what == "started"
    assert service.variable("", "V") == "3"
    assert set(service.states()) == {"", "-previous"}
    assert answers(service)


# ---------------------------------------------------------------- GPUs


@pytest.mark.parametrize("test_engine", ["gpu"], indirect=True)
def test_gpus_are_asked_for(service: Service) -> None:
    service.switch(gpus="all").deploy()
    status, visible = service.engine.client.containers.get(service.name).exec_run(
        ["python3", "-c", "print(open('/proc/1/environ').read().replace(chr(0), chr(10)))"]
    )
    (request,) = service.seen()[""]["HostConfig"]["DeviceRequests"]
    assert (request["Count"], request["Capabilities"]) == (-1, [["gpu"]])
    assert status == 0
    assert b"NVIDIA_VISIBLE_DEVICES=all" in visible
    assert answers(service)
    service.switch(gpus=(0, 1)).deploy()
    (request,) = service.seen()[""]["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["0", "1"]


@pytest.mark.parametrize("test_engine", ["classic"], indirect=True)
def test_no_gpu_runtime_is_advice_and_the_old_one_serves(service: Service) -> None:
    if service.engine.facts.nvidia:
        pytest.skip("this engine has GPUs")
    service.switch().deploy()
    with pytest.raises(MachineLacks, match="no GPUs to give") as caught:
        service.switch(gpus="all").deploy()
    assert "nvidia-ctk" in caught.value.hint
    assert service.states() == {"": "running"}
    assert answers(service)


def test_limits_that_the_engine_may_not_raise(service: Service) -> None:
    """With them where they can be raised, else told and without."""
    service.switch(ulimits=(("memlock", "-1"),)).deploy()
    limits = service.seen()[""]["HostConfig"]["Ulimits"]
    told = any("may not raise limits" in line for line in service.heard.lines)
    assert bool(limits) is not told
    assert service.switch(ulimits=(("memlock", "-1"),)).deploy().what == "unchanged"
    assert service.states() == {"": "running"}


# ---------------------------------------------------------------- the command


def test_the_command(demo: Demo, make_service: Callable[[Engine], Service]) -> None:
    """Build, refuse, deploy, find unchanged; and what --dry-run prints is started by a shell alike."""
    found = find_gpu_engine()
    machine = demo.machine
    with Engine.connect(found.environment) as engine:
        service = make_service(engine)
        stack = machine.run("init", "demo")
        assert stack.code == 0, stack.err
        file = machine.work / "stacks" / "demo.toml"
        content = file.read_text().replace("[deploy.docker]", f'[deploy.docker]\nname = "{service.name}"')
        file.write_text(
            content.replace('"127.0.0.1:8000"', f'"127.0.0.1:{service.port}"').replace('"none"', '"all"')
        )
        machine.environment.update({k: v for k, v in found.environment.items() if k.startswith("DOCKER_")})
        built = machine.run("build", "demo", "--builder", "direct")
        assert built.code == 0, built.err
        refused = machine.run("deploy", "docker", "demo")
        assert refused.code == 8, refused.err
        assert "--unaccepted" in refused.err
        assert service.states() == {}
        line = machine.run("deploy", "docker", "demo", "--dry-run")
        assert line.code == 0, line.err
        started = subprocess.run(
            ["sh", "-c", line.out], env=found.environment, capture_output=True, text=True, check=False
        )
        assert started.returncode == 0, started.stderr
        until = time.monotonic() + 60
        while True:
            again = machine.run("deploy", "docker", "demo", "--unaccepted")
            assert again.code == 0, again.err
            if again.out == started.stdout or time.monotonic() > until:
                break
        assert service.states()[""] == "running"
        nothing = machine.run("deploy", "docker", "demo", "--rollback")
        assert nothing.code in (0, 10)
