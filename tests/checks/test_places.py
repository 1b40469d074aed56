"""Findings in the text of a stack file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.checks.model import Finding
from imagebuilder.checks.places import line_of
from tests.support.check_cases import ROOT

TEXT = (ROOT / "stacks" / "cu130.toml").read_text()
LINES = TEXT.splitlines()


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({"key": "target.driver"}, "driver = "),
        ({"key": "env.CUDA_HOME"}, "CUDA_HOME = "),
        ({"key": "env.NOT_THERE"}, "[env]"),
        ({"key": "base"}, "[base]"),
        ({"key": "override[2]"}, "[[override]]"),
        ({"key": "override[2].requirement"}, 'requirement = "torch-memory-saver'),
        ({"key": "waive[0].code"}, 'code = "cuda.two-majors"'),
        ({"key": "layer[1].requirements[0]"}, 'requirements = ["torch==2.9.1'),
        ({"key": "acceptance.eagle3.arguments", "package": "sglang"}, 'arguments = ["--speculative'),
        ({"package": "sgl-kernel"}, 'requirements = ["sgl-kernel'),
        ({"package": "torchvision"}, 'requirements = ["torch==2.9.1'),
        ({"package": "torchao"}, 'package = "torchao"'),
        ({"package": "absent", "other": "sglang"}, 'requirements = ["sglang'),
        ({"package": "absent"}, LINES[0]),
        ({"key": "layer torch-1"}, LINES[0]),
        ({"key": "waive[99]"}, LINES[0]),
    ],
)
def test_the_line_of_a_finding(fields: dict[str, str], begins: str) -> None:
    finding = Finding(code="gpu.no-code", severity="error", what="x", **fields)
    assert LINES[line_of(finding, TEXT) - 1].startswith(begins)


@given(
    text=st.text('[]abc.= \n"', max_size=80), key=st.text("abc.[]0", max_size=10), package=st.text(max_size=8)
)
def test_any_text_has_a_line(text: str, key: str, package: str) -> None:
    finding = Finding(code="gpu.no-code", severity="error", what="x", key=key, package=package)
    assert 1 <= line_of(finding, text) <= max(1, len(text.splitlines()))
