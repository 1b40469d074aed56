"""Values to JSON and back, and what is no value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept import codec
from imagebuilder.accept.model import ClientCost, Difference, HostFacts, RequestResult, RoundResult, RunResult
from tests.accept.samples import a_round, a_run

finite = st.floats(0, 1e6).map(lambda x: round(x, 6))
requests = st.builds(
    RequestResult,
    prompt=st.text(),
    kind=st.sampled_from(["code", "known"]),
    started_s=finite,
    e2e_s=finite,
    times=st.lists(finite, max_size=4).map(tuple),
    tokens=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    exact=st.booleans(),
    output_tokens=st.integers(0, 10**6),
    verify_count=st.none() | st.integers(0, 99),
    text=st.text(),
    correct=st.none() | st.booleans(),
    error=st.text(),
)
rounds = st.builds(
    replace, st.just(a_round()), requests=st.lists(requests, max_size=3).map(tuple),
    client=st.none() | st.builds(ClientCost, cpu_s=finite, lag_mean_s=finite, lag_max_s=finite),
)  # fmt: skip
differences = st.builds(
    Difference, setting=st.text(), baseline=st.text(), eagle3=st.text(),
    weight=st.sampled_from(["expected", "noted", "unfair"]),
)  # fmt: skip


@given(st.lists(rounds, max_size=2), st.lists(differences, max_size=2), st.text())
def test_what_was_written_is_read(many: list[RoundResult], found: list[Difference], failure: str) -> None:
    run = replace(a_run(), rounds=tuple(many), differences=tuple(found), failure=failure)
    assert codec.loads(RunResult, codec.dumps(run)) == run
    assert codec.loads(RunResult, codec.dumps(run, indent=1).encode()) == run


def test_defaults_that_could_change_are_written() -> None:
    written = json.loads(codec.dumps(a_run()))
    assert written["schema"] == 1
    assert written["scenario"]["load"]["requests"] == 64
    assert written["scenario"]["require"]["min_speedup"] == 1.0
    assert "failure" not in written


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = json.loads(codec.dumps(a_run()))
    assert codec.from_json(RunResult, {**data, "later": {"x": 1}}) == a_run()


def test_whole_numbers_are_seconds_too() -> None:
    assert codec.from_json(HostFacts, {"machine": "x"}) == HostFacts(machine="x")
    data = {"cpu_s": 1, "lag_mean_s": 0, "lag_max_s": 2}
    assert codec.from_json(ClientCost, data) == ClientCost(cpu_s=1.0, lag_mean_s=0.0, lag_max_s=2.0)


BAD: dict[str, tuple[Any, str]] = {
    "a list": ([], "RunResult"),
    "nothing in it": ({}, "missing"),
    "a text for a number": ({"planned_units": "5"}, "RunResult.planned_units"),
    "a switch for a number": ({"planned_units": True}, "RunResult.planned_units"),
    "an unknown word": ({"runtime": "podman"}, "RunResult.runtime"),
    "a number for a list": ({"rounds": 5}, "RunResult.rounds"),
    "null for a text": ({"stack": None}, "RunResult.stack"),
    "wrong deep inside": ({"rounds": [{"arm": "x"}]}, r"RunResult.rounds\[0\].arm"),
    "a pair of three": ({"smoke": {"checks": [], "facts": [["a", "b", "c"]]}}, r"facts\[0\]"),
    "neither of two": ({"config_digest": 5}, "RunResult.config_digest"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_value(case: str) -> None:
    change, place = BAD[case]
    data = {**json.loads(codec.dumps(a_run())), **change} if isinstance(change, dict) and change else change
    with pytest.raises(ValueError, match=place):
        codec.from_json(RunResult, data)


def test_text_that_is_no_json() -> None:
    for text in ("", "{", b"\xff", "[" * 100_000):
        with pytest.raises(ValueError):
            codec.loads(RunResult, text)
    with pytest.raises(ValueError):
        codec.dumps(replace(a_run(), rounds=(replace(a_round(), wall_s=float("nan")),)))
