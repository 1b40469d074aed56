"""A registry from an image that imagebuilder made of Debian's package, run by testcontainers and used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import ROOT, Machine
from tests.support.engine import TestEngine

pytestmark = [pytest.mark.docker, pytest.mark.network]

TAG = "imagebuilder-test:registry"
PORT = 5000


def test_it_takes_and_gives_images(
    containerd_engine: TestEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image that is pushed to it and pulled from it is its own."""
    for name, value in containerd_engine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")  # its reaper is an image to be pulled
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    environment = {k: v for k, v in containerd_engine.environment.items() if k not in ("HOME", "TMPDIR")}
    machine = Machine(root=tmp_path / "machine", environment=environment)
    shutil.copy(ROOT / "tests" / "data" / "registry-stack" / "registry.toml", machine.work)
    record = machine.build("registry.toml", "--load", "--tag", TAG)
    try:
        ready = HttpWaitStrategy(PORT, "/v2/").for_status_code(200)
        with DockerContainer(TAG).with_exposed_ports(PORT).waiting_for(ready) as registry:
            there = f"127.0.0.1:{registry.get_exposed_port(PORT)}/self:1"
            pushed = machine.run("push", "registry.toml", "--to", there, "--json")
            assert pushed.code == 0, pushed.err
            containerd_engine.docker("pull", "--quiet", there)
            (seen,) = json.loads(containerd_engine.docker("image", "inspect", there))
            assert seen["Id"] == record["manifest"]
            assert f"{there.removesuffix(':1')}@{record['manifest']}" in seen["RepoDigests"]
            containerd_engine.docker("image", "rm", there)
    finally:
        containerd_engine.docker("image", "rm", "--force", TAG, check=False)
