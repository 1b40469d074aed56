"""scripts/engine, as a developer and as CI use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import SCRIPT, TestEngine, private_engine


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


def netfilter() -> set[str]:
    """Every rule of this machine, with its table."""
    found = set()
    for table in ("filter", "nat"):
        listed = subprocess.run(
            ["iptables", "--wait", "-t", table, "-S"], capture_output=True, text=True, check=True
        )
        found |= {f"{table} {rule}" for rule in listed.stdout.splitlines()}
    return found


@pytest.mark.docker
def test_an_engine_leaves_the_rules_of_others_alone_and_none_of_its_own(
    containerd_engine: TestEngine,
) -> None:
    """Neither its start, nor a port that it publishes, nor its end: what others publish stays published."""
    if containerd_engine.name != containerd_engine.kind or os.geteuid() != 0:
        pytest.skip("a second engine is started by scripts/engine, as root")
    # Engines of other tests come and go meanwhile, each with rules that name its own network.
    others = {rule for rule in netfilter() if " 10." not in rule}
    with private_engine(containerd_engine, "rules") as engine:
        subnet = engine.docker(
            "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}"
        )
        ours = subnet.strip().replace(".0.0/24", ".0.0/16")
        engine.docker("network", "create", "second")
        during = netfilter()
    after = netfilter()
    addresses = subprocess.run(["ip", "-o", "-4", "address"], capture_output=True, text=True, check=True)
    assert f" {ours.removesuffix('0.0/16')}128." not in addresses.stdout
    assert len({rule for rule in during if ours in rule}) == 3
    assert {rule for rule in during if " 10." not in rule} == others
    assert {rule for rule in after if " 10." not in rule} == others
    if f" {ours.removesuffix('0.0/16')}" not in addresses.stdout:  # else the next engine has it already
        assert not {rule for rule in after if ours in rule}


BROKEN_OFF = """\
mount -t sysfs none /sys
ip link add ib-half type bridge && ip address add 10.250.0.1/24 dev ib-half
ip link add other type bridge && ip address add 10.9.0.1/24 dev other
"$@" || exit
ip -o link | cut -d ' ' -f 2
"""


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a network of its own")
def test_stopping_one_whose_start_was_broken_off_takes_its_bridge_alone(
    containerd_engine: TestEngine, tmp_path: Path
) -> None:
    """Killed when it had a bridge, and no settings yet that say which network that is."""
    stop = [sys.executable, str(SCRIPT), "--folder", str(tmp_path), "stop", "half"]
    words = ["unshare", "--net", "--mount", "sh", "-c", BROKEN_OFF, "sh", *stop]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    links = done.stdout.split()
    assert {"lo:", "other:"} <= {*links}
    assert "ib-half:" not in links
