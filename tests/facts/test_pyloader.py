"""What Python code says about the libraries that it loads."""

from __future__ import annotations

import pytest

from imagebuilder.facts.pyloader import literals, preloads

SLIM = b"""
import ctypes

def _one(folder, name, required=True):
    ctypes.CDLL(find(folder, name))

def _load():
    try:
        ctypes.CDLL("libmain.so", mode=ctypes.RTLD_GLOBAL)
        _one("cuda_nvrtc", "libnvrtc.so.*[0-9]")
        _one("nvjitlink", "libnvJitLink.so.*[0-9]", required=False)
    except OSError:
        for folder, name in {"cublas": "libcublas.so.*[0-9]"}.items():
            _one(folder, name)
"""

TABLE = b"""
def _all(err=None):
    table: list[tuple[str, str]] = [
        ("cublas", "libcublasLt.so.*[0-9]"),
        ("cublas", "libcublas.so.*[0-9]"),
    ]
    for folder, name in table:
        _one(folder, name)
    _one("nvtx", "libnvToolsExt.so.*[0-9]", required=False)

def _load():
    try:
        load()
        _all()
    except OSError as err:
        _all(err)
"""


def _pairs(source: bytes) -> list[tuple[str, str]]:
    return [(p.folder, p.pattern) for p in preloads(source, "_load")]


def test_calls_count_and_handlers_do_not() -> None:
    assert _pairs(SLIM) == [("cuda_nvrtc", "libnvrtc.so.*[0-9]"), ("nvjitlink", "libnvJitLink.so.*[0-9]")]


def test_tables_are_read_in_order_through_calls() -> None:
    assert _pairs(TABLE) == [
        ("cublas", "libcublasLt.so.*[0-9]"),
        ("cublas", "libcublas.so.*[0-9]"),
        ("nvtx", "libnvToolsExt.so.*[0-9]"),
    ]


@pytest.mark.parametrize("source", [b"", b"def _load(:", b"\0", b"x = 1", b"(" * 5000])
def test_other_code_says_nothing(source: bytes) -> None:
    assert preloads(source, "_load") == ()
    assert list(literals("a.py", source)) == []


def test_functions_that_call_each_other_end() -> None:
    assert preloads(b"def _load():\n    f()\ndef f():\n    _load()\n", "_load") == ()


def test_literals_without_docstrings_and_comments() -> None:
    source = (
        b'"""libcudart.so.11"""\n# libcudart.so.10\nx = ["libcudart.so.12", "lib.so", f"libnvrtc.so.13"]\n'
    )
    assert [(x.line, x.text) for x in literals("a.py", source)] == [
        (3, "libcudart.so.12"),
        (3, "libnvrtc.so.13"),
    ]
