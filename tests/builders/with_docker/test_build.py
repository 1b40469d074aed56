"""Real wheels, built on real engines: the same image everywhere, and the direct builder's files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from tests.builders.with_docker.conftest import Made, Workplace
from tests.support.command import leftovers
from tests.support.engine import TestEngine, private_engine
from tests.support.fleet import fleet
from tests.support.tree import differences, tree_of

pytestmark = [pytest.mark.docker, pytest.mark.network]

Build = Callable[[TestEngine], Made]

# Where the two builders' images may differ, each with its reason. Nothing else may.
#   diff_ids: files have other times. pip gives every file the time of the build, which is cut to the stack's
#   date; the direct builder gives a wheel's files a time that follows from the wheel's sha256.
EXCEPTIONS = ("diff_ids",)
_RENAMED = ("unshare", "--uts", "sh", "-ec", 'hostname elsewhere; exec "$@"', "sh")


def test_one_digest_whatever_the_store(
    containerd_engine: TestEngine, classic_engine: TestEngine, with_engine: Build
) -> None:
    first, second = with_engine(containerd_engine), with_engine(classic_engine)
    assert first.record["manifest"] == second.record["manifest"]
    assert first.record["config"] == second.record["config"]
    assert first.record["builder"]["store"] != second.record["builder"]["store"]


def test_a_newer_engine_gives_the_same(
    containerd_engine: TestEngine, newest_engine: TestEngine, with_engine: Build
) -> None:
    """With a buildx whose progress is read as `rawjson`."""
    first, second = with_engine(containerd_engine), with_engine(newest_engine)
    assert first.record["manifest"] == second.record["manifest"]
    release = [int(part) for part in second.record["builder"]["buildx"].split("+")[0].split(".")]
    assert release >= [0, 14]
    assert "tools: 3 wheels: done" in second.told and "exporting" in second.told


def test_two_builders_one_tree(each_store: TestEngine, with_engine: Build, direct: Made) -> None:
    made = with_engine(each_store)
    assert differences(tree_of(direct.image), tree_of(made.image)) == []
    ours, theirs = direct.image.config, made.image.config
    for field in fields(ours):
        if field.name not in EXCEPTIONS:
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name
    assert len(ours.diff_ids) == len(theirs.diff_ids)


def test_the_image_is_in_the_engine_and_runs(each_store: TestEngine, with_engine: Build) -> None:
    made = with_engine(each_store)
    (found,) = json.loads(each_store.docker("image", "inspect", "imagebuilder-test:real"))
    assert found["Id"] == made.record["manifest" if each_store.kind == "containerd" else "config"]
    assert found["Config"]["User"] == "nobody"
    assert found["Config"]["WorkingDir"] == "/srv/no layer has it"
    said = each_store.docker("run", "--rm", "imagebuilder-test:real")
    assert said == 'hello $HOME `id` "quoted" \\\n'
    program = (
        "import os, numpy, jinja2; print(numpy.sum([3]), jinja2.__version__, os.environ['TEXT'], sep='\\n')"
    )
    said = each_store.docker(
        "run", "--rm", "--entrypoint", "python3", "imagebuilder-test:real", "-c", program
    )
    assert said.splitlines()[:2] == ["3", "3.1.6"]
    assert said.splitlines()[2] == "Grüße, 'quoted', \"double\", $HOME, ${PATH}, $(id), `id`, back\\slash\\"
    listed = each_store.docker("run", "--rm", "--entrypoint", "pip", "imagebuilder-test:real", "list")
    assert "3.1.6+patched." in listed
    where = each_store.docker("run", "--rm", "--entrypoint", "pwd", "imagebuilder-test:real")
    assert where == "/srv/no layer has it\n"


def test_built_again_from_nothing_it_is_the_same(
    each_store: TestEngine, workplace: Workplace, with_engine: Build
) -> None:
    first = with_engine(each_store)
    machine = workplace.machine(f"again elsewhere-{each_store.kind}", each_store)
    marker = "s3cr3t-in-a-login"
    (machine.root / "netrc").write_text(f"machine nowhere.invalid login me password {marker}\n")
    machine.environment |= {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    machine.environment |= {"NETRC": str(machine.root / "netrc")}
    options = ("--builder", "docker", "--no-cache", "--tag", "imagebuilder-test:again")
    again = workplace.build(machine, *options, *(["--vendored"] if each_store.kind == "classic" else []))
    each_store.docker("image", "rm", "imagebuilder-test:again")
    assert again.record["manifest"] == first.record["manifest"]
    assert leftovers(machine.cache) == []
    assert marker.encode() not in again.image.config_bytes
    assert not any("secret" in path for path in tree_of(again.image).keys() - tree_of(first.image).keys())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a host's name")
def test_an_engine_that_forgot_everything_gives_the_same(
    containerd_engine: TestEngine, workplace: Workplace, with_engine: Build
) -> None:
    """After `docker system prune --all`, on a host of another name, from another folder."""
    first = with_engine(containerd_engine)
    with private_engine(containerd_engine, "pruned") as engine:
        for place, renamed in (("here", ()), ("there", _RENAMED)):
            machine = workplace.machine(f"pruned {place}", engine)
            made = workplace.build(
                machine, "--builder", "docker", "--tag", "imagebuilder-test:pruned", prefix=renamed
            )
            assert made.record["manifest"] == first.record["manifest"]
            engine.docker("system", "prune", "--all", "--force")
            engine.docker("builder", "prune", "--all", "--force")
            assert engine.docker("image", "ls", "--quiet") == ""


def test_nothing_but_the_named_image_is_left(each_store: TestEngine, with_engine: Build) -> None:
    with_engine(each_store)
    each_store.wait_until_gone("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "imagebuilder-build")
    each_store.wait_until_gone("ps", "-a", "--quiet", "--filter", "ancestor=imagebuilder-test:real")


def test_an_unchanged_build_asks_the_engine_for_nothing(
    each_store: TestEngine, workplace: Workplace, with_engine: Build
) -> None:
    first = with_engine(each_store)
    again = workplace.build(
        workplace.machine(each_store.kind, each_store),
        "--builder",
        "docker",
        "--tag",
        "imagebuilder-test:real",
    )
    assert again.record["manifest"] == first.record["manifest"]
    assert again.record["unchanged"] is True


def test_a_changed_file_changes_one_layer(
    each_store: TestEngine, workplace: Workplace, with_engine: Build
) -> None:
    first = with_engine(each_store)
    machine = workplace.machine(f"changed-{each_store.kind}", each_store)
    stack = machine.work / "stack" / "real.toml"
    stack.write_text(stack.read_text().replace("kept as written", "changed"))
    try:
        made = workplace.build(machine, "--builder", "docker", "--tag", "imagebuilder-test:changed")
    finally:
        each_store.docker("image", "rm", "imagebuilder-test:changed", check=False)
    assert [layer.descriptor.digest for layer in made.image.layers[:-1]] == [
        layer.descriptor.digest for layer in first.image.layers[:-1]
    ]
    assert made.image.layers[-1] != first.image.layers[-1]
    assert made.record["unchanged"] is False
    assert leftovers(machine.cache) == []


def test_any_builder_of_buildx(
    containerd_engine: TestEngine, workplace: Workplace, with_engine: Build, tmp_path: Path
) -> None:
    """By `--builder-name`: BuildKit behind a socket, as the drivers remote, kubernetes and cloud have it."""
    first = with_engine(containerd_engine)
    machine = workplace.machine("a builder by name", containerd_engine)
    with fleet([containerd_engine], tmp_path) as builder:
        made = workplace.build(
            machine, "--builder", "docker", "--builder-name", builder, "--tag", "imagebuilder-test:by-name"
        )
    containerd_engine.docker("image", "rm", "imagebuilder-test:by-name")
    assert made.record["builder"]["driver"] == "remote"
    assert made.record["manifest"] == first.record["manifest"]


def test_several_stacks_in_one_go(containerd_engine: TestEngine, workplace: Workplace, direct: Made) -> None:
    """What they share is built once, moved once, and one layer in the engine.

    In an engine of its own: of steps that were built with --no-cache too, BuildKit may take either result.
    """
    with private_engine(containerd_engine, "several") as engine:
        machine = workplace.machine("several", engine)
        stacks = machine.work / "stack"
        other = (stacks / "real.toml").read_text().replace('name = "real"', 'name = "other"')
        (stacks / "other.toml").write_text(other.replace("kept as written", "another"))
        shutil.copyfile(stacks / "pylock.real.toml", stacks / "pylock.other.toml")
        both = ("stack/real.toml", "stack/other.toml")
        outcome = machine.run("build", *both, "--locked", "--builder", "docker", "--json")
        assert outcome.code == 0, outcome.err
        one, two = json.loads(outcome.out)["images"]
        here, there = ([layer["digest"] for layer in made["layers"]] for made in (one, two))
        assert here[:-1] == there[:-1] and here[-1] != there[-1]
        assert f"other: 1 of {len(there)} layers made" in outcome.err
        ids = [json.loads(engine.docker("image", "inspect", made["names"][0]))[0] for made in (one, two)]
        assert ids[0]["RootFS"]["Layers"][:-1] == ids[1]["RootFS"]["Layers"][:-1]


def test_an_engine_that_is_too_old_says_so(old_engine: TestEngine, workplace: Workplace) -> None:
    machine = workplace.machine("old", old_engine)
    outcome = machine.run("build", "stack/real.toml", "--locked", "--builder", "docker")
    assert outcome.code == 6
    assert "too old" in outcome.err and "--builder direct" in outcome.err
    outcome = machine.run("build", "stack/real.toml", "--locked", "--load", "--tag", "imagebuilder-test:old")
    assert outcome.code == 0, outcome.err
    assert "builder: direct (Docker Engine 20.10" in outcome.err
    assert old_engine.docker("run", "--rm", "imagebuilder-test:old", "you") == "hello you\n"
    old_engine.docker("image", "rm", "imagebuilder-test:old")
