"""The shipped stacks: what they must say."""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path

import pytest

from imagebuilder.stack import DebianBase, ImageBase, Stack, find_stack, load_stack
from imagebuilder.stack.secrets import secret_form
from tests.support.command import trusting


def shipped(name: str) -> Stack:
    return load_stack(find_stack(name, Path("/")))


NAMES = ["cu128", "cu128-debian", "cu130", "cu130-debian", "demo"]
PINS = {"cu128": "0.5.9", "cu128-debian": "0.5.9", "cu130": "0.5.9", "cu130-debian": "0.5.12"}


@pytest.mark.parametrize("name", NAMES)
def test_every_requirement_is_pinned_and_pip_is_a_locked_wheel(name: str) -> None:
    requirements = [r for layer in shipped(name).layers for r in layer.requirements]
    assert all(re.fullmatch(r"==[^*,]+", str(r.specifier)) for r in requirements)
    assert "pip==26.3" in map(str, requirements)


@pytest.mark.parametrize("name", NAMES)
def test_bytecode_goes_to_the_cache_and_an_init_is_process_one(name: str) -> None:
    stack = shipped(name)
    assert dict(stack.env)["PYTHONPYCACHEPREFIX"].startswith("/var/cache/")
    assert stack.image.entrypoint[0] == "/usr/bin/tini" and "tini" in stack.system.packages
    assert stack.resolve.as_of is not None


@pytest.mark.parametrize("name", PINS)
def test_sglang_and_its_patches(name: str) -> None:
    layer = shipped(name).layer_of("sglang")
    assert layer is not None
    assert str(layer.requirements[0]) == f"sglang=={PINS[name]}"
    assert len(layer.patches) == (2 if PINS[name] == "0.5.9" else 0)


@pytest.mark.parametrize(("name", "python"), [("cu128", "3.12"), ("cu130", "3.12")])
def test_the_vendor_stacks_name_their_base_by_digest(name: str, python: str) -> None:
    stack = shipped(name)
    assert isinstance(stack.base, ImageBase) and stack.base.ref.digest and stack.base.ref.tag
    assert str(stack.target.python) == python
    assert not {"LD_LIBRARY_PATH"} & dict(stack.env).keys(), "the base's own would be lost"


@pytest.mark.parametrize("name", ["cu128-debian", "cu130-debian", "demo"])
def test_the_debian_stacks_need_no_vendor(name: str) -> None:
    stack = shipped(name)
    assert stack.base == DebianBase(suite="bookworm")
    assert stack.indexes == () and str(stack.target.python) == "3.11"
    assert stack.system.resolve == "lock"


def test_every_package_for_cuda_13_comes_from_its_own_index() -> None:
    stack = shipped("cu130")
    assert all(index.explicit for index in stack.indexes)
    bound = {r.name: layer.index for layer in stack.layers for r in layer.requirements if layer.index}
    assert bound == {
        "torch": "pytorch-cu130",
        "torchvision": "pytorch-cu130",
        "torchaudio": "pytorch-cu130",
        "sgl-kernel": "sglang-cu130",
        "flashinfer-jit-cache": "flashinfer-cu130",
    }
    assert all("+cu130" in str(r) for layer in stack.layers if layer.index for r in layer.requirements)


def test_the_flashinfer_wheels_are_equal() -> None:
    for name in PINS:
        versions = {
            str(r.specifier).partition("+")[0]
            for layer in shipped(name).layers
            for r in layer.requirements
            if r.name.startswith("flashinfer")
        }
        assert len(versions) == 1


def test_no_patch_holds_a_secret_or_leaves_its_package() -> None:
    for patch in (p for layer in shipped("cu130").layers for p in layer.patches):
        text = patch.content.decode()
        assert secret_form(text) is None
        files = re.findall(r"^(?:---|\+\+\+) (\S+)$", text, re.MULTILINE)
        assert files and all(re.fullmatch(r"[ab]/sglang/srt/[a-z0-9_/]+\.py", f) for f in files)


def hunks(patch: str) -> list[tuple[str, int, list[str]]]:
    """(file, first line from 1, old lines) of every hunk."""
    found: list[tuple[str, int, list[str]]] = []
    file = ""
    for line in patch.splitlines():
        if line.startswith("--- a/"):
            file = line[6:]
        elif match := re.match(r"@@ -(\d+),(\d+) \+\d+,\d+ @@", line):
            found.append((file, int(match[1]), []))
        elif found and line[:1] in (" ", "-") and not line.startswith("--- "):
            found[-1][2].append(line[1:])
    return found


@pytest.mark.network
def test_the_patches_fit_the_wheel_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    import requests
    from pypi_simple import PyPISimple

    monkeypatch.setattr(os, "environ", trusting())
    with PyPISimple() as index:
        page = index.get_project_page("sglang")
    (wheel,) = [p for p in page.packages if p.filename == "sglang-0.5.9-py3-none-any.whl"]
    archive = zipfile.ZipFile(io.BytesIO(requests.get(wheel.url, timeout=60).content))
    for patch in (p for layer in shipped("cu128").layers for p in layer.patches):
        parts = hunks(patch.content.decode())
        assert parts
        for file, first, old in parts:
            lines = archive.read(file).decode().splitlines()
            assert lines[first - 1 : first - 1 + len(old)] == old, (patch.path, file, first)
