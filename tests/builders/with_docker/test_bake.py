"""docker-bake.json: all stacks in one go, on engines that stand for a fleet."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from imagebuilder.builders.docker.bake import BakeTarget, bake_file, secret_variable
from imagebuilder.oci.layout import read_layout
from imagebuilder.values import ImageRef
from tests.builders.with_docker.conftest import Made, Workplace
from tests.dockerfile.samples import plan_of, stack_of
from tests.support.engine import TestEngine
from tests.support.fleet import fleet
from tests.support.registry import run_registry
from tests.support.tree import differences, tree_of


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
    """Two stacks in one go; the images have the direct builder's files, and the folder that WORKDIR makes."""
    machine = workplace.machine("bake", containerd_engine)
    stacks = machine.work / "stack"
    other = (stacks / "real.toml").read_text().replace('name = "real"', 'name = "other"')
    (stacks / "other.toml").write_text(other.replace('echo \\"hello', 'echo \\"bye'))
    shutil.copyfile(stacks / "pylock.real.toml", stacks / "pylock.other.toml")
    with run_registry(tmp_path) as registry, fleet([containerd_engine, classic_engine], tmp_path) as builder:
        repository = f"{registry.host}/team/images"
        both = ("stack/real.toml", "stack/other.toml")
        outcome = machine.run("bake", *both, "--vendored", "--push", "--repository", repository)
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
        for tag, word in (("real", "hello"), ("other", "bye")):
            name = f"{repository}:{tag}"
            classic_engine.docker("pull", "--quiet", name)
            try:
                assert classic_engine.docker("run", "--rm", name, "fleet") == f"{word} fleet\n"
            finally:
                classic_engine.docker("image", "rm", name)
        pulled = machine.run("pull", f"{repository}:real", "--output", "pulled")
        assert pulled.code == 0, pulled.err
        (stored,) = read_layout(machine.work / "pulled")
    made = tree_of(stored.image)
    assert made.pop("srv/no layer has it")[0] == "dir"
    assert differences(tree_of(direct.image), made) == []
