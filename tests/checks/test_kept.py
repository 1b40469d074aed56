"""What a build tells of its checks."""

from __future__ import annotations

from dataclasses import replace

from imagebuilder import __version__
from imagebuilder.checks.kept import account_of
from imagebuilder.checks.model import Finding
from imagebuilder.stack import load_stack, shipped_folder


def test_what_was_not_seen_is_told() -> None:
    stack = load_stack(shipped_folder() / "cu130.toml")
    assert stack.system.resolve == "build", "apt decides while building"
    not_read = Finding(code="image.base-not-seen", severity="note", what="the base image was not read: x")
    other = Finding(code="gpu.partial-code", severity="note", what="y")
    ran = account_of(stack, [not_read, other])
    assert ran["imagebuilder"] == __version__ and ran["codes"] > 50
    assert ran["code"].startswith("sha256:") and ran["tables"].startswith("sha256:")
    assert ran["unseen"][0] == "the base image was not read: x"
    assert ran["unseen"][1:] == [f"what apt installs while building: {', '.join(stack.system.packages)}"]
    locked = replace(stack, system=replace(stack.system, resolve="lock"))
    assert account_of(locked, [other])["unseen"] == []
