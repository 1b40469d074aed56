"""The shipped stacks, on recorded facts of all their wheels: only notes are open, every waiver is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from imagebuilder.checks.model import Finding
from imagebuilder.checks.registry import codes, failing, judged, run
from imagebuilder.checks.report import as_sarif
from imagebuilder.lock.fresh import check_fresh
from imagebuilder.stack.model import Stack, Waiver
from tests.support.check_cases import ROOT, STACKS, shipped, shipped_subject
from tests.support.schemas import valid_sarif, validated

WAIVERS = [(name, waiver) for name in STACKS for waiver in shipped(name)[0].waivers]


@cache
def found(name: str) -> tuple[Stack, list[Finding]]:
    """The stack, and what is found before any waiver."""
    subject = shipped_subject(name)
    assert len(subject.facts) == len(subject.lock.wheels), "run scripts/record_check_facts.py"
    return subject.stack, run(subject)


@pytest.mark.parametrize("name", STACKS)
def test_nothing_is_open_but_notes(name: str) -> None:
    stack, findings = found(name)
    still = [f for f in judged(stack, findings) if f.waived is None]
    assert {f.severity for f in still} <= {"note"}, [(f.code, f.place, f.what) for f in still]


@pytest.mark.parametrize("name", STACKS)
def test_what_is_found_fits_the_schemas(name: str) -> None:
    stack, findings = found(name)
    told = judged(stack, findings)
    document = {"schema": 1, "kind": "check", "findings": [f.as_json() for f in told]}
    assert validated("check", json.dumps(document)) == document
    file = f"stacks/{name}.toml"
    text = (ROOT / file).read_text(encoding="utf-8")
    (log,) = valid_sarif(as_sarif(told, codes(), stack_file=file, text=text, version="1"))["runs"]
    assert [r["ruleId"] for r in log["results"]] == [f.code for f in told]
    lines = {r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in log["results"]}
    assert max(lines, default=1) <= len(text.splitlines())


@pytest.mark.parametrize(
    ("name", "waiver"), WAIVERS, ids=[f"{n}-{w.code}-{w.package}-{w.path}" for n, w in WAIVERS]
)
def test_without_its_waiver_a_finding_is_back(name: str, waiver: Waiver) -> None:
    stack, findings = found(name)
    less = replace(stack, waivers=tuple(w for w in stack.waivers if w != waiver))
    back = {f for f in judged(less, findings) if f.waived is None} - {
        f for f in judged(stack, findings) if f.waived is None
    }
    assert back and {f.code for f in back} == {waiver.code}
    assert len(waiver.reason) > 15
    check_fresh(less, shipped(name)[1])  # a waiver makes no lock stale


@pytest.mark.parametrize("name", STACKS)
def test_a_waiver_that_matches_nothing_is_told(name: str) -> None:
    stack, findings = found(name)
    idle = Waiver(code="gpu.no-code", package="not-here", reason="of long ago")
    wrong = Waiver(code="gpu.no-kode", reason="a slip of the finger")
    told = judged(replace(stack, waivers=(*stack.waivers, idle, wrong)), findings)
    number = len(stack.waivers)
    assert [(f.code, f.key) for f in told if f.code.startswith("stack.waiver")] == [
        ("stack.waiver-unknown-code", f"waive[{number + 1}].code"),
        ("stack.waiver-unused", f"waive[{number}]"),
    ]
    assert [f.code for f in failing(told)] == ["stack.waiver-unknown-code"]


def test_cu128_says_why_cu130_exists() -> None:
    _, findings = found("cu128")
    (finding,) = [f for f in findings if f.code == "toolchain.nvcc-too-old"]
    assert finding.severity == "error" and "12.9" in finding.what
    assert not [f for f in found("cu130-debian")[1] if f.code.startswith("toolchain.")]
