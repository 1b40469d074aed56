"""`docker run` words and compose files: literal whatever the stack says, and what a stack may not ask for."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.deploy.container import compose_file, container_of, run_line, run_words
from imagebuilder.deploy.text import yaml_document
from imagebuilder.errors import StackInvalid, UsageProblem
from imagebuilder.stack import Stack, load_stack, shipped_stacks
from imagebuilder.stack.model import ImageSettings, Mount
from tests.deploy.stacks import SERVER, TEXT, docker_stack, docker_stacks, stack_of
from tests.support.compose import compose_plugin

IMAGE = "docker.io/library/imagebuilder:sample-0123abcd"


def values(words: tuple[str, ...], option: str) -> list[str]:
    """All that an option is given."""
    return [following for word, following in pairwise(words) if word == option]


def test_the_whole_line() -> None:
    stack = docker_stack(
        mounts=(
            Mount(source="/models", target="/models", read_only=True),
            Mount(source="cache", target="/var/cache/imagebuilder"),
        ),
        env=(("A", "it's"),),
        secrets=("HF_TOKEN",),
        gpus=(0, 3),
    )
    container = container_of(stack, IMAGE)
    words = run_words(container)
    health = shlex.join(container.health)
    assert words == (
        "docker", "run", "--detach", "--name", "sample", "--restart", "unless-stopped",
        "--gpus", '"device=0,3"', "--shm-size", "32g",
        "--ulimit", "memlock=-1", "--ulimit", "stack=67108864",
        "--publish", "127.0.0.1:30000:30000",
        "--mount", "type=bind,source=/models,target=/models,readonly",
        "--mount", "type=volume,source=cache,target=/var/cache/imagebuilder",
        "--env", "A=it's", "--env", "HF_TOKEN",
        "--health-cmd", health, "--health-interval", "30s", "--health-timeout", "30s",
        "--health-retries", "3", "--health-start-period", "1800s", "--stop-timeout", "120",
        "--label", "io.imagebuilder.deploy=sample",
        "--label", f"io.imagebuilder.deploy.identity={container.identity}",
        "--label", "io.imagebuilder.deploy.restart=unless-stopped",
        IMAGE, *SERVER, "--host", "0.0.0.0", "--port", "30000",
    )  # fmt: skip
    assert "127.0.0.1:30000/health" in health


@pytest.mark.parametrize(
    "path", [p for p in shipped_stacks() if load_stack(p).deploy_docker], ids=lambda p: p.stem
)
def test_shipped_stacks(path: Any) -> None:
    stack = load_stack(path)
    container = container_of(stack, IMAGE)
    assert stack.deploy_docker is not None
    assert container.words == stack.deploy_docker.command, "a shipped command is complete as it stands"
    assert not container.init, "shipped images start with tini"
    assert shlex.split(run_line(container)) == list(run_words(container))


@settings(max_examples=60)
@given(docker_stacks())
def test_a_shell_gets_the_words_as_they_are(stack: Stack) -> None:
    words = run_words(container_of(stack, IMAGE))
    assert shlex.split(shlex.join(words)) == list(words)
    for mount, text in zip(stack.deploy_docker.mounts, values(words, "--mount"), strict=True):  # type: ignore[union-attr]
        (fields,) = csv.reader([text])
        assert fields[1:3] == [f"source={mount.source}", f"target={mount.target}"]


@settings(max_examples=25)
@given(st.lists(TEXT, min_size=1, max_size=6))
def test_a_real_shell_too(words: list[str]) -> None:
    stack = docker_stack(command=tuple(words), env=tuple((f"V{n}", w) for n, w in enumerate(words)))
    container = container_of(stack, IMAGE)
    script = "docker() { printf '%s\\0' docker \"$@\"; }; " + run_line(container)
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, "-c", script], capture_output=True, check=True)
        assert done.stdout.decode().split("\0")[:-1] == list(run_words(container))
        assert done.stderr == b""


@settings(max_examples=60)
@given(docker_stacks())
def test_compose(stack: Stack) -> None:
    container = container_of(stack, IMAGE)
    document = compose_file(container)
    text = yaml_document(document)
    assert yaml.safe_load(text) == document
    service = interpolated(document)["services"]["sample"]
    assert service.get("command", []) == list(container.words)
    assert service["environment" if container.env or container.secrets else "labels"] == (
        [*(f"{k}={v}" for k, v in container.env), *container.secrets]
        if container.env or container.secrets
        else dict(container.labels)
    )
    assert service["healthcheck"]["test"] == ["CMD-SHELL", container.health_command]
    assert [v["target"] for v in service.get("volumes", [])] == [m.target for m in container.mounts]
    named = {m.source for m in container.mounts if not m.source.startswith("/")}
    assert set(document.get("volumes", {})) == named


@pytest.fixture(scope="module")
def compose() -> str:
    return compose_plugin()


@settings(max_examples=25)
@given(docker_stacks())
def test_what_compose_itself_reads(compose: str, stack: Stack) -> None:
    container = container_of(stack, IMAGE)
    done = subprocess.run(
        [compose, "--file", "-", "config", "--format", "json"],
        input=yaml_document(compose_file(container)).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    service = interpolated(json.loads(done.stdout)["services"]["sample"])
    assert tuple(service.get("command") or ()) == container.words
    given_values = {k: v for k, v in (service.get("environment") or {}).items() if v is not None}
    assert given_values == dict(container.env)
    volumes = [(v["source"], v["target"]) for v in service.get("volumes") or ()]
    assert volumes == [(m.source, m.target) for m in container.mounts]
    assert service["healthcheck"]["test"] == ["CMD-SHELL", container.health_command]


def interpolated(value: Any) -> Any:
    """As compose reads texts; a variable in one is a mistake."""
    if isinstance(value, str):
        assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", value), value
        return value.replace("$$", "$")
    if isinstance(value, dict):
        return {k: interpolated(v) for k, v in value.items()}
    return [interpolated(v) for v in value] if isinstance(value, list) else value


def test_compose_gpus() -> None:
    for gpus, wanted in (("all", {"count": "all"}), ((1, 2), {"device_ids": ["1", "2"]})):
        service = compose_file(container_of(docker_stack(gpus=gpus), IMAGE))["services"]["sample"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {**wanted, "capabilities": ["gpu"]}


def test_an_init_where_the_image_has_none() -> None:
    stack = stack_of(docker=docker_stack().deploy_docker, image=ImageSettings(command=SERVER))
    assert "--init" in run_words(container_of(stack, IMAGE))


def test_no_gpus_means_none() -> None:
    words = run_words(container_of(docker_stack(gpus="none"), IMAGE))
    assert "--gpus" not in words
    assert values(words, "--env") == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_where_it_is_offered() -> None:
    for publish, wanted in (
        ("30001", "30001:30000"),
        ("0.0.0.0:80", "0.0.0.0:80:30000"),
        ("[::1]:80", "[::1]:80:30000"),
    ):
        assert values(run_words(container_of(docker_stack(publish=publish), IMAGE)), "--publish") == [wanted]


def test_identity() -> None:
    one = container_of(docker_stack(), IMAGE)
    assert one.identity == container_of(docker_stack(), IMAGE).identity
    others = [
        container_of(docker_stack(env=(("A", "1"),)), IMAGE),
        container_of(docker_stack(port=30000, publish="0.0.0.0:30000"), IMAGE),
        container_of(docker_stack(), IMAGE + "x"),
    ]
    assert len({one.identity, *(o.identity for o in others)}) == 4


def test_a_stack_without_the_table() -> None:
    with pytest.raises(UsageProblem, match="does not say how"):
        container_of(stack_of(), IMAGE)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"command": (*SERVER, "--host", "127.0.0.1")}, "could not be reached"),
    ({"command": (*SERVER, "--port", "8000")}, "deploy.docker.port is 30000"),
    ({"name": "x"}, "too short"),
    ({"publish": "99999"}, "99999 is not a port"),
    ({"publish": "0"}, "0 is not a port"),
    ({"env": (("A", "1"),), "secrets": ("A",)}, "A is in"),
    ({"mounts": (Mount(source="/a", target="/dev/shm"),)}, "nothing can be mounted"),
    ({"mounts": (Mount(source="/a", target="/x"), Mount(source="/b", target="/x"))}, "another mount"),
    ({"command": (*SERVER, "--tp", "4"), "gpus": (0, 1)}, "wants 4 GPUs, and there are 2"),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=[w for _, w in BAD])
def test_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(StackInvalid, match=re.escape(words)):
        container_of(docker_stack(**fields), IMAGE)


def test_json_of_compose_is_plain() -> None:
    assert json.loads(json.dumps(compose_file(container_of(docker_stack(), IMAGE))))
