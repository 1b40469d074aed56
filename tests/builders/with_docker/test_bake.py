"""docker-bake.json: all stacks in one go, on engines that stand for a fleet."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from imagebuilder.builders.docker.bake import BakeTarget, bake_file, secret_variable
from imagebuilder.values import ImageRef
from tests.builders.with_docker.conftest import Made, Workplace
from tests.dockerfile.samples import plan_of, stack_of
from tests.support.engine import TestEngine
from tests.support.fleet import fleet
from tests.support.registry import run_registry


def test_targets_are_named_dated_and_without_secrets() -> None:
    plan = plan_of(stack_of())
    target = BakeTarget(
        plan=plan,
        context="sample",
        names=(ImageRef.parse("r.example/x:sample"),),
        secrets=("pip.conf", "ca-bundle"),
    )
    data = json.loads(bake_file([target], push=True))
    assert data["group"]["default"]["targets"] == ["sample"]
    made = data["target"]["sample"]
    assert made["args"] == {"SOURCE_DATE_EPOCH": str(int(plan.created.timestamp()))}
    assert made["tags"] == ["r.example/x:sample"]
    assert made["secret"] == [
        "id=pip.conf,env=IMAGEBUILDER_SECRET_PIP_CONF",
        "id=ca-bundle,env=IMAGEBUILDER_SECRET_CA_BUNDLE",
    ]
    assert "rewrite-timestamp=true" in made["output"][0] and "push=true" in made["output"][0]
    assert json.loads(bake_file([target], push=False))["target"]["sample"]["output"] == ["type=docker"]


def test_variables_of_secrets() -> None:
    assert secret_variable("index-pytorch-cu130") == "IMAGEBUILDER_SECRET_INDEX_PYTORCH_CU130"


@pytest.mark.docker
@pytest.mark.network
def test_a_fleet_bakes_and_pushes(
    containerd_engine: TestEngine,
    classic_engine: TestEngine,
    workplace: Workplace,
    direct: Made,
    tmp_path: Path,
) -> None:
    machine = workplace.machine("bake", containerd_engine)
    with run_registry(tmp_path) as registry, fleet([containerd_engine, classic_engine], tmp_path) as builder:
        repository = f"{registry.host}/team/images"
        wanted = ("bake", "stack/real.toml", "--vendored", "--push", "--repository", repository)
        outcome = machine.run(*wanted)
        assert outcome.code == 0, outcome.err
        baked = subprocess.run(
            ["docker", "buildx", "bake", "--builder", builder],
            cwd=Path(outcome.out.strip()).parent,
            env=containerd_engine.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert baked.returncode == 0, baked.stderr
        name = f"{repository}:real"
        classic_engine.docker("pull", "--quiet", name)
        try:
            assert classic_engine.docker("run", "--rm", name, "fleet") == "hello fleet\n"
        finally:
            classic_engine.docker("image", "rm", name)
