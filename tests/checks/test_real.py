"""What tables say of real artefacts, asked of the artefacts themselves, and what PyPI really resolves to."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import IO, cast

import pytest

from imagebuilder.cache import Cache
from imagebuilder.facts.wheel import Wheel
from imagebuilder.index.http import session
from imagebuilder.index.ranged import RangedFile
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.resolve import lock_stack
from imagebuilder.progress import Silent
from imagebuilder.settings import Settings, load
from imagebuilder.stack import load_stack
from tests.support.check_cases import tables

pytestmark = pytest.mark.network


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load({**os.environ, "IMAGEBUILDER_CACHE_DIR": str(tmp_path / "cache")})


def test_the_architectures_that_torch_takes(settings: Settings) -> None:
    """Its own list in the wheel: every spelling of it is a token to us, and none has a suffix `f`."""
    filename = "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with session(settings) as http:
        indexes = Indexes((), settings, Cache(settings.cache_dir), http)
        url = next(f.url for f in indexes.project("torch") if f.filename == filename)
        with Wheel.open(cast("IO[bytes]", RangedFile(url, http, name=filename)), filename) as wheel:
            source = wheel.read("torch/utils/cpp_extension.py").decode()
    (supported,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "supported_arches"
    )
    (row,) = (r for r in tables().toolchain["list"] if r["variable"] == "TORCH_CUDA_ARCH_LIST")
    for arch in supported:
        assert re.fullmatch(row["token"], arch) and re.fullmatch(row["token"], f"{arch}+PTX")
    assert "12.0" in supported and "12.0a" in supported
    assert "12.0f" not in supported and not re.fullmatch(row["token"], "12.0f")


STACK = """schema = 1
name = "s"
[target]
platform = "linux/amd64"
python = "{python}"
glibc = "{glibc}"
[base]
image = "example/cuda:13.0-ubuntu24.04@sha256:{digest}"
[resolve]
as-of = 2026-11-28T00:00:00Z
[[layer]]
name = "all"
requirements = ["sglang"]
"""


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (("3.10", "2.39"), ("0.5.23", "0.5.17", "it requires Python >=3.11")),
        (
            ("3.12", "2.31"),
            ("0.5.23", "0.5.10.post1", "its wheels need glibc 2.34 or newer, the target has 2.31"),
        ),
    ],
)
def test_an_old_release_is_chosen_and_said(
    settings: Settings, tmp_path: Path, target: tuple[str, str], said: tuple[str, str, str]
) -> None:
    """vllm#58270: for an old target, the resolver goes back to a release that still takes it."""
    python, glibc = target
    path = tmp_path / "s.toml"
    path.write_text(STACK.format(python=python, glibc=glibc, digest="8b" * 32))
    lock = lock_stack(load_stack(path), settings, Cache(settings.cache_dir), Silent())
    (passed,) = (p for p in lock.passed_over if p.name == "sglang")
    assert (passed.version, passed.chosen, passed.why) == said
