"""Stack files that load, and stack files that do not: one folder per case, `bad/NAME/expected.txt` in full.

A line of expected.txt that ends in … is the beginning of one (words of other libraries follow).
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from imagebuilder.errors import StackInvalid
from imagebuilder.stack import DebianBase, ImageBase, OciBase, Stack, load_stack
from imagebuilder.values import GpuArch, ImageRef, Platform, Release

HERE = Path(__file__).parent
BAD = sorted(p.name for p in (HERE / "bad").iterdir())

MINIMAL = """
schema = 1
name = "x"
[target]
python = "3.11"
[base]
debian = { suite = "bookworm" }
[[layer]]
name = "a"
requirements = ["six==1.16.0"]
"""


def load(folder: Path, text: str) -> Stack:
    file = folder / "x.toml"
    file.write_text(text)
    return load_stack(file)


def lines_of(problem: StackInvalid) -> list[str]:
    return [f"{p.key}: {p.message}" + (f" ({p.hint})" if p.hint else "") for p in problem.problems]


def agrees(line: str, expected: str) -> bool:
    return line.startswith(expected[:-1]) if expected.endswith("…") else line == expected


@pytest.mark.parametrize("case", BAD)
def test_every_problem_is_reported_with_its_key(case: str) -> None:
    file = HERE / "bad" / case / "stack.toml"
    expected = file.with_name("expected.txt").read_text().splitlines()
    with pytest.raises(StackInvalid) as caught:
        load_stack(file)
    lines = lines_of(caught.value)
    assert len(lines) == len(expected) and all(map(agrees, lines, expected)), "\n".join(lines)
    assert caught.value.exit_code == 3
    assert str(file) in str(caught.value)


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    text = MINIMAL + '[env]\nHF_TOKEN = "canary-1"\nX = "hf_canarycanarycanarycanary2"\n'
    text += '[image]\ncommand = ["--api-key=canary-3"]\nlabels = { a = "https://u:canary-4@h.example/" }\n'
    with pytest.raises(StackInvalid) as caught:
        load(tmp_path, text)
    assert len(caught.value.problems) == 4
    assert "canary" not in str(caught.value)


def test_least() -> None:
    stack = load_stack(HERE / "good" / "least" / "stack.toml")
    assert stack.target.platform == Platform("linux", "amd64")
    assert stack.base == DebianBase(suite="bookworm")
    assert stack.system.resolve == "lock", "a Debian base can have nothing else"
    assert (stack.indexes, stack.acceptance, stack.deploy_docker) == ((), None, None)
    assert stack.apt_snapshot is None


def test_full() -> None:
    stack = load_stack(HERE / "good" / "full" / "stack.toml")
    assert stack.target.gpus == (GpuArch("sm", 90), GpuArch("sm", 120))
    assert stack.target.driver == Release("580.65.06")
    assert isinstance(stack.base, ImageBase)
    assert stack.base.ref.registry == "registry.example:5000" and stack.base.ref.digest is not None
    assert stack.system.resolve == "lock"
    assert stack.apt_snapshot == datetime(2026, 2, 24, 10, tzinfo=timezone.utc)
    assert [index.url for index in stack.indexes] == [
        "https://index.example/whl/cu130",
        "http://127.0.0.1:8080/simple",
    ]
    assert [patch.path for patch in stack.layers[1].patches] == [
        "patches/0001-b.patch",
        "patches/0002-c.patch",
    ]
    assert stack.layers[1].patches[0].content.startswith(b"why\n")
    assert stack.layer_of("typing.extensions") is stack.layers[0]
    assert stack.layer_of("nothing") is None
    assert stack.overrides[0].package == "nvidia-cudnn-cu13"
    assert stack.env == (("A", '$HOME "quoted" \\ {{ braces }}'), ("B", "2"), ("EMPTY", ""))
    assert [(f.path, f.mode, f.content, f.source) for f in stack.files] == [
        ("/etc/motd", 0o644, b"motd\n", "etc/motd"),
        ("/usr/local/bin/hello", 0o755, b"#!/bin/sh\necho hello\n", None),
        ("/octal", 0o600, b"", None),
    ]
    assert stack.waivers[0].package == "sgl-kernel"
    acceptance = stack.acceptance
    assert acceptance is not None
    assert (acceptance.gpus, acceptance.shm, acceptance.baseline.env) == ((0, 1), 16 << 30, (("Y", "1"),))
    assert acceptance.require.min_accept_length == 2.0
    kubernetes = stack.deploy_kubernetes
    assert kubernetes is not None and kubernetes.memory == 512 << 30
    assert [v.size for v in kubernetes.volumes] == [2 << 40, None, 10 << 30]


def test_an_image_base_leaves_apt_to_the_build_unless_told_otherwise(tmp_path: Path) -> None:
    text = MINIMAL.replace('debian = { suite = "bookworm" }', 'image = "ubuntu:24.04"')
    stack = load(tmp_path, text)
    assert stack.base == ImageBase(ref=ImageRef.parse("ubuntu:24.04"))
    assert stack.system.resolve == "build"
    assert load(tmp_path, text + '[system]\nresolve = "lock"\n').system.resolve == "lock"


def test_an_oci_base_may_lie_anywhere(tmp_path: Path) -> None:
    text = MINIMAL.replace('debian = { suite = "bookworm" }', 'oci = "../images/base"')
    assert load(tmp_path, text).base == OciBase(path="../images/base")


def test_a_marker_lets_a_package_be_named_twice(tmp_path: Path) -> None:
    text = MINIMAL.replace(
        '"six==1.16.0"',
        "\"six==1.16.0; python_version < '3.12'\", \"six==1.17.0; python_version >= '3.12'\"",
    )
    assert len(load(tmp_path, text).layers[0].requirements) == 2


def test_an_override_that_the_layer_allows_is_no_contradiction(tmp_path: Path) -> None:
    text = (
        MINIMAL.replace("six==1.16.0", "six>=1.16")
        + '[[override]]\nrequirement = "six==1.17.0"\nreason = "r"\n'
    )
    assert load(tmp_path, text).overrides[0].package == "six"


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "x.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    (inside / "x.patch").symlink_to(outside / "x.patch")
    (inside / "folder").symlink_to(outside)
    text = MINIMAL + 'patches = ["*.patch", "folder/*.patch"]\n[[file]]\npath = "/a"\nsource = "x.patch"\n'
    with pytest.raises(StackInvalid) as caught:
        load(inside, text)
    assert lines_of(caught.value) == [
        "layer[0].patches[0]: x.patch leads out of the stack file's folder",
        "layer[0].patches[1]: folder/x.patch leads out of the stack file's folder",
        "file[0].source: x.patch leads out of the stack file's folder",
    ]


def test_a_stack_reached_through_a_linked_folder_keeps_its_patches(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "x.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    load(tmp_path / "real", MINIMAL + 'patches = ["*.patch"]\n')
    assert len(load_stack(tmp_path / "link" / "x.toml").layers[0].patches) == 1


def test_patterns_keep_their_order_and_no_patch_comes_twice(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    stack = load(tmp_path, MINIMAL + 'patches = ["c.patch", "*.patch"]\n')
    assert [p.path for p in stack.layers[0].patches] == ["c.patch", "a.patch", "b.patch"]


def test_links_in_a_circle_and_folders_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    text = MINIMAL + '[[file]]\npath = "/a"\nsource = "loop"\n[[file]]\npath = "/b"\nsource = "folder"\n'
    with pytest.raises(StackInvalid) as caught:
        load(tmp_path, text)
    assert [p.key for p in caught.value.problems] == ["file[0].source", "file[1].source"]


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "huge"])
def test_what_is_no_readable_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.toml"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "huge":
        with path.open("wb") as out:
            out.truncate(2 << 20)
    with pytest.raises(StackInvalid) as caught:
        load_stack(path)
    assert [p.key for p in caught.value.problems] == ["the file"]
