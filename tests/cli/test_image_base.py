"""Locked Debian packages on top of an image: only what is missing, and one package database in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.facts.image_tree import ImageTree
from imagebuilder.lock.pylock import read_lock
from imagebuilder.oci.layout import read_layout
from tests.support.command import Outcome

BASE = """\
schema = 1
name = "below"
[target]
python = "3.11"
[base]
debian = { suite = "bookworm" }
[system]
packages = ["python3"]
[[layer]]
name = "a"
requirements = ["idna==3.10"]
"""
ABOVE = (
    BASE.replace("below", "above")
    .replace('python = "3.11"', 'python = "3.11"\nglibc = "2.36"')
    .replace('debian = { suite = "bookworm" }', 'oci = "../images/below"')
    .replace('packages = ["python3"]', 'packages = ["libnuma1"]\nresolve = "lock"')
)


@pytest.mark.network
def test_only_what_the_base_lacks_is_locked_and_added(imagebuilder: Callable[..., Outcome]) -> None:
    Path("stacks").mkdir()
    Path("stacks/below.toml").write_text(BASE)
    Path("stacks/above.toml").write_text(ABOVE)
    for stack in ("below", "above"):
        outcome = imagebuilder("build", stack, "--builder", "direct")
        assert outcome.code == 0, outcome.err
    lock = read_lock(Path("stacks/pylock.above.toml"))
    assert [deb.name for deb in lock.debs] == ["libnuma1"]
    below, above = (read_layout(Path("images") / name)[0].image for name in ("below", "above"))
    assert [x.diff_id for x in above.layers[: len(below.layers)]] == [x.diff_id for x in below.layers]
    tree = ImageTree.read([layer.path for layer in above.layers if layer.path])
    status = (tree.read_file("var/lib/dpkg/status") or b"").decode()
    assert "\nPackage: libnuma1\n" in status
    assert "\nPackage: libc6\n" in status
    assert tree.kind("usr/lib/x86_64-linux-gnu/libnuma.so.1") == "symlink"
