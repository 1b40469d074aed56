"""`doctor`: a line for each thing in use, a fix for each that is not well; exit 6 where building needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Machine, Outcome
from tests.support.debian import FakeArchive, packages_text, stanza
from tests.support.http_server import Fault, Reply, Server

Call = Callable[..., Outcome]
SUBJECTS = (
    "Python", "resolver", "layers", "cache", "disk", "index default", "Debian archive", "Docker Engine",
    "buildx", "builder auto", "GPUs",
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        running.index("/simple").add("pip", "pip-26.3-py3-none-any.whl", b"")
        yield running


@pytest.fixture
def world(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An index that answers; no engine, no driver, no archive, no proxies."""
    for name in [n for n in os.environ if n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", f"{server.url}/simple/")
    monkeypatch.setenv("IMAGEBUILDER_DEBIAN_MIRRORS", f"{server.url}/debian")
    monkeypatch.setenv("IMAGEBUILDER_TIMEOUT", "240")
    return server


@pytest.fixture
def examine(imagebuilder: Call, world: Server) -> Callable[..., tuple[int, dict[str, dict[str, Any]]]]:
    """The exit code and the lines by subject."""

    def call(*options: str) -> tuple[int, dict[str, dict[str, Any]]]:
        outcome = imagebuilder("doctor", "--json", *options)
        assert "Traceback" not in outcome.err, outcome.err
        told = json.loads(outcome.out)
        assert (told["schema"], told["kind"]) == (1, "doctor")
        lines = {line["subject"]: line for line in told["lines"]}
        for line in lines.values():
            assert line["state"] in ("ok", "note", "missing")
            assert line["seen"]
            assert bool(line["fix"]) == (line["state"] != "ok"), line
        return outcome.code, lines

    return call


Examine = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


def test_a_machine_that_can_build(examine: Examine) -> None:
    code, lines = examine()
    assert code == 0
    assert tuple(lines) == SUBJECTS
    for subject in ("Python", "resolver", "cache", "index default"):
        assert lines[subject]["state"] == "ok", lines[subject]
    assert lines["resolver"]["seen"].startswith("uv ")
    assert lines["Docker Engine"]["state"] == lines["GPUs"]["state"] == lines["buildx"]["state"] == "note"


def test_for_people(imagebuilder: Call, world: Server) -> None:
    """Every line that is not `ok` is followed by its fix."""
    outcome = imagebuilder("doctor")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        state = line.split()[0]
        assert state in ("ok", "note", "→")
        assert (state == "note") == following.strip().startswith("→ ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_where_arrows_cannot_be_shown(encoding: str, world: Server, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path / "m", environment={**os.environ, "PYTHONIOENCODING": encoding})
    outcome = machine.run("doctor")
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err


def test_an_index_that_is_down(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("IMAGEBUILDER_INDEX_PYTORCH_URL", "http://127.0.0.1:9/whl/")
    code, lines = examine()
    assert code == 6
    assert lines["index default"]["state"] == "missing"
    assert "refused" in lines["index default"]["seen"].lower()
    assert "IMAGEBUILDER_INDEX_DEFAULT_URL" in lines["index default"]["fix"]
    assert lines["index pytorch"]["state"] == "note"
    assert "IMAGEBUILDER_INDEX_PYTORCH_URL" in lines["index pytorch"]["fix"]


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [(401, "note", "netrc"), (403, "note", "netrc"), (500, "missing", "URL"), (404, "ok", "")],
)
def test_an_index_that_answers_otherwise(
    status: int, state: str, words: str, examine: Examine, world: Server
) -> None:
    """404 for one project is an answer; 500 after all attempts is none."""
    world.fail("/simple/pip/", *[Fault(status=status)] * 10)
    code, lines = examine()
    assert (lines["index default"]["state"], code) == (state, 6 if state == "missing" else 0)
    assert words in lines["index default"]["fix"]


def test_a_login_is_not_shown(examine: Examine, world: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = world.url.replace("http://", "http://someone:s3cr3t@")
    monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", f"{address}/simple/")
    _, lines = examine()
    assert "s3cr3t" not in json.dumps(lines)


def test_offline_nothing_is_asked(examine: Examine, world: Server) -> None:
    code, lines = examine("--offline")
    assert code == 0
    assert lines["index default"]["state"] == "note"
    assert world.seen == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_cache_that_is_read_only_and_small(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(disk))
        code, lines = examine()
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(disk)], check=True)
    assert code == 6
    assert lines["cache"]["state"] == "missing"
    assert "IMAGEBUILDER_CACHE_DIR" in lines["cache"]["fix"]
    assert lines["disk"]["state"] == "note"
    assert "0 GB free" in lines["disk"]["seen"]


def test_a_cache_that_is_a_file(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "file"))
    code, lines = examine()
    assert (code, lines["cache"]["state"]) == (6, "missing")


def test_debian(examine: Examine, world: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed by a trusted key, by another one, and out of reach."""
    archive = FakeArchive(world)
    archive.publish("bookworm", packages_text(stanza("base-files")))
    _, lines = examine()
    assert lines["Debian archive"]["state"] == "note"
    monkeypatch.setattr("imagebuilder.index.debian_release.local_keyring", lambda: archive.keyring(tmp_path))
    _, lines = examine()
    assert lines["Debian archive"]["state"] == "ok"
    assert "2026-07-11, signature verified" in lines["Debian archive"]["seen"]
    monkeypatch.setenv("IMAGEBUILDER_DEBIAN_MIRRORS", "http://127.0.0.1:9/debian")
    code, lines = examine()
    assert (code, lines["Debian archive"]["state"]) == (0, "note")


def as_json(body: object) -> Reply:
    return Reply(headers={"Content-Type": "application/json"}, body=json.dumps(body).encode())


@pytest.fixture
def docker_engine(world: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Starts an engine of this version, and a docker command with buildx."""

    def start(version: str) -> None:
        info = {"ServerVersion": version, "Driver": "overlay2", "Runtimes": {"runc": {}, "nvidia": {}}}
        known = {"ApiVersion": "1.44", "Version": version}
        world.route("/v1.44/info", lambda request: as_json(info))
        world.route("/version", lambda request: as_json(known))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{world.host}")
        program(tmp_path, "docker", "echo github.com/docker/buildx v0.13.1")

    return start


@pytest.mark.parametrize(
    ("version", "state", "builder"),
    [
        ("26.1.5", "ok", "docker: Docker Engine 26.1.5 answers, with buildx 0.13.1"),
        ("20.10.24", "note", "direct: Docker Engine 20.10.24 is older than 23"),
        ("", "note", "direct: Docker Engine"),
        ("dev", "note", "direct: Docker Engine dev is older than 23"),
    ],
)
def test_engines(
    version: str, state: str, builder: str, examine: Examine, docker_engine: Callable[[str], None]
) -> None:
    """What `--builder auto` will do is said with the same words as in a build."""
    docker_engine(version)
    code, lines = examine()
    assert (code, lines["Docker Engine"]["state"]) == (0, state), lines["Docker Engine"]
    assert "overlay2 store, NVIDIA runtime" in lines["Docker Engine"]["seen"]
    assert lines["builder auto"]["seen"].startswith(builder)


@pytest.mark.parametrize(
    "host", ["ssh://nobody@127.0.0.1:9", "nonsense", "tcp://127.0.0.1:9", "unix:///dev/null"]
)
def test_no_engine(host: str, examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    code, lines = examine()
    assert (code, lines["Docker Engine"]["state"]) == (0, "note")
    assert "DOCKER_HOST" in lines["Docker Engine"]["fix"]
    assert lines["builder auto"]["seen"].startswith("direct: no Docker Engine answers at ")


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gpus(examine: Examine, tmp_path: Path) -> None:
    gpu = "NVIDIA RTX PRO 6000 Blackwell, 590.48.01, 12.0"
    program(tmp_path, "nvidia-smi", f"echo '{gpu}'; echo '{gpu}'")
    _, lines = examine()
    assert (lines["GPUs"]["state"], lines["GPUs"]["seen"]) == ("ok", f"{gpu}; {gpu}")
    program(tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML' >&2; exit 9")
    _, lines = examine()
    assert (lines["GPUs"]["state"], lines["GPUs"]["seen"]) == ("note", "Failed to initialize NVML")
    program(tmp_path, "nvidia-smi", "exit 3")
    _, lines = examine()
    assert lines["GPUs"]["state"] == "note"
    program(tmp_path, "nvidia-smi", "")
    _, lines = examine()
    assert lines["GPUs"]["state"] == "note"


def test_buildx(examine: Examine, tmp_path: Path) -> None:
    program(tmp_path, "docker", "echo github.com/docker/buildx 0.13.1")
    _, lines = examine()
    assert (lines["buildx"]["state"], lines["buildx"]["seen"]) == ("ok", "0.13.1")
    program(tmp_path, "docker", "exit 1")
    _, lines = examine()
    assert lines["buildx"]["state"] == "note"


def test_without_isal(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    from imagebuilder.oci import inflate

    before = inflate.use_library(zlib)
    try:
        _, lines = examine()
    finally:
        inflate.use_library(before)
    assert lines["layers"]["state"] == "note"
    assert "pip install isal" in lines["layers"]["fix"]


def test_a_configuration_that_is_wrong(
    imagebuilder: Call, world: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEBUILDER_WORKERS", "many")
    outcome = imagebuilder("doctor")
    assert outcome.code == 2
    assert "IMAGEBUILDER_WORKERS" in outcome.err and "Traceback" not in outcome.err
    assert sys.executable not in outcome.err
