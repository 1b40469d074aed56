"""scripts/engine, as a developer and as CI use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import SCRIPT, TestEngine


def engine_script(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_knows_nothing_in_an_empty_folder(tmp_path: Path) -> None:
    assert engine_script("--folder", str(tmp_path), "list").stdout == ""


def test_env_of_an_engine_that_does_not_run_says_how_to_start_it(tmp_path: Path) -> None:
    done = engine_script("--folder", str(tmp_path), "env", "classic")
    assert done.returncode == 1
    assert "scripts/engine start" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="drops privileges")
def test_without_root_it_says_so(tmp_path: Path) -> None:
    # The interpreter may lie where another user cannot reach it: the system's is enough for this script.
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-",
            "start",
            "old",
        ],
        input=SCRIPT.read_text(),
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "root" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.docker
def test_both_stores_answer_and_are_what_they_say(each_store: TestEngine) -> None:
    status = each_store.docker("info", "--format", "{{.Driver}} {{.DriverStatus}}")
    assert ("io.containerd.snapshotter" in status) == (each_store.kind == "containerd")


@pytest.mark.docker
def test_the_old_engine_is_old(old_engine: TestEngine) -> None:
    assert old_engine.docker("version", "--format", "{{.Server.Version}}").startswith("20.10")


@pytest.mark.docker
def test_starting_a_running_engine_changes_nothing(engine: TestEngine) -> None:
    if engine.name != engine.kind:
        pytest.skip("the engine is not from scripts/engine")
    again = engine_script("start", engine.kind)
    assert f"DOCKER_HOST={engine.host}" in again.stdout
    assert engine_script("env", engine.kind).stdout == again.stdout
