"""The shipped demo: built by every engine it has the direct builder's files, runs, is pushed and pulled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from imagebuilder.oci.layout import read_layout
from tests.builders.with_docker.conftest import environment_of
from tests.builders.with_docker.test_build import EXCEPTIONS
from tests.support.command import Machine, give_files
from tests.support.engine import TestEngine
from tests.support.golden import fetch
from tests.support.registry import run_registry
from tests.support.tree import differences, tree_of

pytestmark = [pytest.mark.docker, pytest.mark.network]
TAG = "imagebuilder-test:demo"  # other tests run containers of the demo under its own names


@pytest.fixture
def machine(each_store: TestEngine, tmp_path: Path) -> Iterator[Machine]:
    """A machine with the engine and the demo's files; what it named in the engine goes at the end."""
    made = Machine(root=tmp_path / "machine", environment=environment_of(each_store))
    give_files(fetch("demo", Machine(root=tmp_path / "fetch")), made.cache)
    yield made
    each_store.docker("image", "rm", TAG, check=False)


def test_the_demo(each_store: TestEngine, machine: Machine, tmp_path: Path) -> None:
    made = machine.build("demo", "--builder", "docker", "--vendored", "--tag", TAG)
    direct = machine.build("demo", "--offline", "--output", "direct")
    (ours,), (theirs,) = (read_layout(Path(record["path"])) for record in (direct, made))
    assert differences(tree_of(ours.image), tree_of(theirs.image)) == []
    for field in fields(ours.image.config):
        if field.name not in EXCEPTIONS:
            assert getattr(ours.image.config, field.name) == getattr(theirs.image.config, field.name)
    with run_registry(tmp_path / "registry") as registry:
        pushed = machine.run("push", "demo", "--to", f"{registry.host}/team/demo:1")
        assert pushed.code == 0, pushed.err
        name = pushed.out.strip()
        assert name.endswith(made["manifest"])
        each_store.docker("image", "rm", TAG)
        each_store.docker("pull", "--quiet", name)
        try:
            program = "from importlib.metadata import version; print(version('fastapi'))"
            said = each_store.docker("run", "--rm", "--entrypoint", "python3", name, "-c", program)
            assert said.count(".") == 2
        finally:
            each_store.docker("image", "rm", "--force", name)
