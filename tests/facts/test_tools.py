"""Compilers say what they are."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from imagebuilder.facts.tools import TOOL, read_tool

PTXAS = shutil.which("ptxas", path="/usr/local/cuda/bin:/usr/local/cuda-13.0/bin:/usr/bin")


def test_names_and_release_across_pieces() -> None:
    filler = b"\xff" * ((1 << 20) - 10)
    end = b"release 12.8, V12.8.93\0sm_1200\0for sm_89\0sm_80 is old\0"
    data = filler + b"\0sm_120a\0sm_90\0" + filler + end
    tool = read_tool(io.BytesIO(data), "bin/ptxas")
    assert tool is not None
    assert tool.release == "12.8.93"
    assert tool.names == ("sm_120a", "sm_89", "sm_90"), "a string may be the end of another one"


def test_a_program_that_says_no_release_is_none() -> None:
    assert read_tool(io.BytesIO(b"\0sm_90\0"), "bin/ptxas") is None


@pytest.mark.skipif(not PTXAS, reason="ptxas is not installed")
def test_a_real_ptxas_knows_what_it_compiles() -> None:
    assert PTXAS
    with Path(PTXAS).open("rb") as file:
        tool = read_tool(file, "bin/ptxas")
    assert tool is not None
    assert {"sm_80", "sm_90a", "sm_100f", "sm_120", "sm_120a", "sm_121a"} <= set(tool.names)
    assert tool.release.startswith("1")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("triton/backends/nvidia/bin/ptxas", True),
        ("triton/backends/nvidia/bin/ptxas-blackwell", True),
        ("nvidia/cu13/bin/nvcc", True),
        ("nvidia/cu13/bin/nvcc.profile", False),
        ("bin/ptxas_helper", False),
    ],
)
def test_which_files_are_tools(path: str, wanted: bool) -> None:
    assert bool(TOOL.search(path)) is wanted
