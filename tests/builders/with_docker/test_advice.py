"""Known words lead to the right kind of error and to advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.builders.docker.advice import explain, push_advice, refused, unreachable
from imagebuilder.builders.docker.buildx import Buildx
from imagebuilder.errors import ArtefactUnusable, BuildFailed, ImagebuilderError, MachineLacks, PushFailed
from imagebuilder.values import ImageRef


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("write /opt/venv/x: no space left on device", MachineLacks, "disk is full"),
        ("SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", BuildFailed, "IMAGEBUILDER_CA_BUNDLE"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", ArtefactUnusable, "another file"),
        ("Err:1 http://x InRelease\n  Temporary failure resolving 'x'", BuildFailed, "--vendored"),
        ("NewConnectionError: [Errno 101] Network is unreachable", BuildFailed, "--vendored"),
        ("ERROR: No matching distribution found for torch==2.9.1", ArtefactUnusable, "--upgrade"),
        ("E: Unable to locate package python3.12", BuildFailed, "[system]"),
        ("failed to resolve source metadata for docker.io/nvidia/cuda:1", BuildFailed, "base image"),
        ("ERROR: Cannot connect to the Docker daemon at unix:///x.", MachineLacks, "start it"),
        ("rpc error: code = Unavailable desc = error reading from server: EOF", MachineLacks, "start it"),
        ("install-packages: apt 2.6.1 cannot read snapshots (2.7.11 can)", BuildFailed, 'resolve = "lock"'),
        ("something else went wrong", BuildFailed, "look"),
    ],
)  # fmt: skip
def test_causes_of_failed_builds(text: str, kind: type[ImagebuilderError], says: str) -> None:
    error = explain(text, "the build failed", lines=["last words"], otherwise="look")
    assert type(error) is kind
    assert says in str(error) and "last words" in str(error) and error.hint


def test_an_engine_without_gpus() -> None:
    error = refused("x", 'could not select device driver "" with capabilities: [[gpu]]', PushFailed, "")
    assert isinstance(error, MachineLacks) and "nvidia-ctk" in error.hint


def test_an_engine_that_one_may_not_use() -> None:
    assert "usermod" in unreachable("unix:///x", PermissionError(13, "Permission denied")).hint
    assert "DOCKER_HOST" in unreachable("tcp://x:1", ConnectionRefusedError()).hint
    assert "systemctl start docker" in unreachable("unix:///x", FileNotFoundError("No such file")).hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("denied: requested access to the resource is denied", "docker login registry.example"),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("x509: certificate signed by unknown authority", "certs.d/registry.example"),
        ("blob upload invalid", "log"),
    ],
)
def test_a_registry_that_refuses(text: str, says: str) -> None:
    assert says in push_advice(text, ImageRef.parse("registry.example/a:b"))


def test_a_folder_of_dockers_that_may_not_be_written(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'ERROR: mkdir /x/.docker/buildx: permission denied' >&2; exit 1\n")
    docker.chmod(0o755)
    buildx = Buildx(docker=str(docker), version="0.13.1", environment={})
    with pytest.raises(MachineLacks, match="permission denied") as caught:
        buildx.driver(None)
    assert "BUILDX_CONFIG" in caught.value.hint
