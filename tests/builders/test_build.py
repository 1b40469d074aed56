"""What the direct builder makes of a small stack, what it makes again, and that it needs no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.cache import Cache
from imagebuilder.oci.archive import read_archive
from imagebuilder.oci.layout import read_layout
from tests.support.command import Machine, Outcome, leftovers
from tests.support.fake_registry import FakeRegistry
from tests.support.http_server import Server
from tests.support.pip_oracle import tree_in_layer
from tests.support.small import Small

# Where only loopback exists, and even that is down.
NO_NETWORK = ("unshare", "--net") if os.geteuid() == 0 else ()

TAIL = """
[[file]]
path = "/etc/app/config.toml"
mode = "0600"
content = "key = 1\\n"

[env]
MODE = "a b"

[image]
entrypoint = ["/usr/bin/env"]
command = ["python3", "-c", "pass"]
user = "1000:1000"
workdir = "/srv"
ports = [8000]
labels = { "org.example.a" = "b" }
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(root=tmp_path)


@pytest.fixture
def small(server: Server, machine: Machine) -> Small:
    """Two layers of wheels and a layer of files; a patch in the second."""
    world = Small(machine.work, server)
    world.wheel("one", requires=["two"])
    world.wheel("two")
    world.wheel("three", files={"three/a.py": b"first = 1\nsecond = 2\n"})
    machine.environment |= world.environment
    world.write("one", "three", tail='patches = ["*.patch"]\n' + TAIL)
    write_patch(world, "second = 3")
    return world


def write_patch(small: Small, line: str) -> None:
    text = f"--- a/three/a.py\n+++ b/three/a.py\n@@ -1,2 +1,2 @@\n first = 1\n-second = 2\n+{line}\n"
    (small.folder / "stacks" / "three.patch").write_text(text)


def made(outcome: Outcome) -> int:
    """How many layers a build made."""
    assert outcome.code == 0, outcome.err
    match = re.search(r"(\d+) of \d+ layers made", outcome.err)
    assert match, outcome.err
    return int(match[1])


def build(machine: Machine, *arguments: str, **more: Any) -> Outcome:
    return machine.run("build", "--builder", "direct", "s", *arguments, **more)


def test_the_image_is_what_the_stack_says(small: Small, machine: Machine) -> None:
    record = machine.build("s")
    (stored,) = read_layout(small.image)
    image, config = stored.image, stored.image.config
    assert image.digest.text == record["manifest"]
    assert config.entrypoint == ("/usr/bin/env",)
    assert config.command == ("python3", "-c", "pass")
    assert (config.user, config.workdir, config.ports) == ("1000:1000", "/srv", ("8000/tcp",))
    env = dict(config.env)
    assert env["MODE"] == "a b"
    assert env["PATH"].split(":")[0] == "/opt/venv/bin"
    assert dict(config.labels)["org.example.a"] == "b"
    site = "opt/venv/lib/python3.11/site-packages"
    tree: dict[str, tuple[str, str]] = {}
    for layer in image.layers:
        assert layer.path is not None
        tree |= tree_in_layer(layer.path)
    assert {f"{site}/{name}/data.bin" for name in ("one", "two")} <= tree.keys()
    assert any("three-1.0+patched." in path for path in tree)
    assert tree["etc/app/config.toml"][0] == "file 600"
    assert "opt/venv/bin/python3" in tree
    titles = [layer["title"] for layer in record["layers"]]
    assert len(image.layers) == len(titles) + 1  # and the base's
    assert [h.created_by.removeprefix("imagebuilder ") for h in config.history if h.created_by][-4:] == titles


def test_nothing_to_do_the_second_time(small: Small, machine: Machine, server: Server) -> None:
    """Not even the wheels are needed then, nor a network."""
    first = build(machine)
    assert made(first) == 4
    for wheel in (machine.work / "stacks" / "wheels").glob("*/*"):
        wheel.unlink()
    server.close()
    for digest in [w.sha256 for w in lock_of(small).wheels]:
        path = Cache(machine.cache).artefact(digest)
        assert path is not None
        path.unlink()
    second = build(machine, prefix=NO_NETWORK)
    assert (made(second), second.out) == (0, first.out)


def lock_of(small: Small) -> Any:
    from imagebuilder.lock.pylock import read_lock

    return read_lock(small.lock)


def test_a_changed_patch_makes_only_its_layer(small: Small, machine: Machine) -> None:
    before = machine.build("s")
    write_patch(small, "second = 4")
    assert build(machine).code == 4  # the lock names the patch
    assert machine.run("lock", "s").code == 0
    assert made(build(machine)) == 1
    after = json.loads((small.folder / "images" / "s.build.json").read_text())
    changed = [
        one["name"]
        for one, two in zip(before["layers"], after["layers"], strict=True)
        if one["digest"] != two["digest"]
    ]
    assert changed == ["layer1/three"]


def test_a_changed_file_or_setting_needs_no_lock(small: Small, machine: Machine) -> None:
    first = build(machine)
    stack = small.folder / "stacks" / "s.toml"
    stack.write_text(stack.read_text().replace("key = 1", "key = 2"))
    second = build(machine)
    assert made(second) == 1
    stack.write_text(stack.read_text().replace('MODE = "a b"', 'MODE = "c"'))
    third = build(machine)
    assert made(third) == 0
    assert len({first.out, second.out, third.out}) == 3
    stack.write_text(stack.read_text().replace("key = 2", "key = 1").replace('MODE = "c"', 'MODE = "a b"'))
    back = build(machine)
    assert (made(back), back.out) == (0, first.out)


def test_another_stack_shares_the_layers_of_the_same_wheels(small: Small, machine: Machine) -> None:
    machine.build("s")
    path = small.folder / "stacks" / "s.toml"
    other = path.read_text().replace('name = "s"', 'name = "t"').replace("/etc/app/", "/etc/other/")
    (small.folder / "stacks" / "t.toml").write_text(other)
    outcome = machine.run("build", "--builder", "direct", "t")
    assert made(outcome) == 1


@pytest.mark.parametrize("damage", ["gone", "cut", "record"])
def test_a_damaged_layer_cache_is_made_again(damage: str, small: Small, machine: Machine) -> None:
    record = machine.build("s")
    cache = Cache(machine.cache)
    for layer in record["layers"]:
        from imagebuilder.values import Digest

        path = cache.artefact(Digest(layer["digest"]))
        assert path is not None
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.chmod(0o644)
            data = path.read_bytes()
            path.unlink()  # the layout holds a hard link to it
            path.write_bytes(data[:-10])
    if damage == "record":
        for path in [p for p in (machine.cache / "records" / "layer").rglob("*") if p.is_file()]:
            path.write_bytes(path.read_bytes()[:-5])
    again = build(machine)
    assert (made(again), again.out.strip()) == (4, record["manifest"])
    assert leftovers(machine.cache) == []


def test_a_tar_file_holds_the_same_image(small: Small, machine: Machine) -> None:
    folder = build(machine)
    archive = build(machine, "--output", "out/image.tar")
    assert archive.out == folder.out
    path = machine.work / "out" / "image.tar"
    (stored,) = read_archive(path, Cache(machine.root / "other-cache"))
    assert stored.image.digest.text == folder.out.strip()
    first = path.read_bytes()
    assert build(machine, "--output", "out/image.tar").code == 0
    assert path.read_bytes() == first
    with tarfile.open(path) as tar:
        assert "manifest.json" in tar.getnames()  # what `docker load` looks for
    assert sorted(p.name for p in path.parent.iterdir()) == ["image.tar", "image.tar.build.json"]


@pytest.mark.parametrize("output", ["taken", "file", "taken.tar"])
def test_what_is_no_image_is_not_overwritten(output: str, small: Small, machine: Machine) -> None:
    (machine.work / "taken").mkdir()
    (machine.work / "taken" / "precious").write_text("x")
    (machine.work / "taken.tar").mkdir()
    (machine.work / "file").write_text("x")
    outcome = build(machine, "--output", output)
    assert outcome.code == 2, outcome.err
    assert output in outcome.err and "Traceback" not in outcome.err
    assert (machine.work / "taken" / "precious").read_text() == "x"
    assert (machine.work / "file").read_text() == "x"


def test_fetched_then_built_without_a_network(small: Small, machine: Machine, server: Server) -> None:
    fetched = machine.run("fetch", "s")
    assert fetched.code == 0, fetched.err
    assert sorted(p.name[:3] for p in Path(fetched.out.strip()).iterdir()) == ["one", "thr", "two"]
    server.close()
    outcome = build(machine, "--offline", prefix=NO_NETWORK)
    assert made(outcome) == 4
    assert made(build(machine, prefix=NO_NETWORK)) == 0


def test_a_carried_folder_is_enough(small: Small, machine: Machine, server: Server) -> None:
    """Stack, lock and wheels on a stick: another machine, whose cache is empty, builds the same image."""
    assert machine.run("fetch", "s").code == 0
    first = build(machine)
    server.close()
    other = Machine(root=machine.root / "other", environment=dict(machine.environment))
    shutil.copytree(machine.work / "stacks", other.work / "stacks")
    outcome = build(other, "--offline", prefix=NO_NETWORK)
    assert (outcome.code, outcome.out) == (0, first.out), outcome.err


def test_offline_without_files_says_what_is_missing(small: Small, machine: Machine) -> None:
    assert machine.run("lock", "s").code == 0
    outcome = build(machine, "--offline")
    assert outcome.code == 13
    assert "3 locked files are not in the cache" in outcome.err
    assert "imagebuilder fetch s" in outcome.err
    small.lock.unlink()
    unlocked = build(machine, "--offline")
    assert unlocked.code in (12, 13), unlocked.err
    assert "Traceback" not in unlocked.err and not small.lock.exists()


def test_a_base_image_is_fetched_too(small: Small, machine: Machine) -> None:
    """Its layers come from the registry once; then neither registry nor index is needed."""
    with FakeRegistry() as registry:
        base = small.folder / "stacks" / "base"
        (entry,) = json.loads((base / "index.json").read_text())["manifests"]
        for path in (base / "blobs" / "sha256").iterdir():
            registry.put_blob("tools/base", path.read_bytes())
        manifest = (base / "blobs" / "sha256" / entry["digest"].removeprefix("sha256:")).read_bytes()
        registry.put_manifest("tools/base", manifest, entry["mediaType"], "1")
        small.write("one", base=f'image = "{registry.host}/tools/base:1"')
        fetched = machine.run("fetch", "s")
        assert fetched.code == 0, fetched.err
    outcome = build(machine, "--offline", prefix=NO_NETWORK)
    assert made(outcome) == 2, outcome.err
    (stored,) = read_layout(small.image)
    assert stored.image.layers[0].descriptor.digest.text == json.loads(manifest)["layers"][0]["digest"]


def test_a_shipped_stack_writes_nothing_where_it_is_shipped(machine: Machine) -> None:
    """What `fetch` links goes below the current folder, and what is missing is looked for there."""
    from imagebuilder.stack import shipped_folder

    before = sorted(shipped_folder().rglob("*"))
    outcome = machine.run("build", "--builder", "direct", "demo", "--offline")
    assert outcome.code == 13
    assert sorted(shipped_folder().rglob("*")) == before


def test_a_damaged_lock_is_made_anew(small: Small, machine: Machine) -> None:
    """As a merge leaves it; the way out that the error names works."""
    assert machine.run("lock", "s").code == 0
    good = small.lock.read_bytes()
    small.lock.write_bytes(good.replace(b"[[packages]]", b"<<<<<<< ours\n[[packages]]", 1))
    refused = machine.run("build", "s", "--builder", "direct")
    assert refused.code == 4 and "imagebuilder lock s" in refused.err
    assert "merge conflict" in refused.err and "git checkout --ours pylock.s.toml" in refused.err
    locked = machine.run("lock", "s")
    assert locked.code == 0 and "resolved anew" in locked.err
    assert small.lock.read_bytes() == good
