"""Small results to start from."""

from __future__ import annotations

from imagebuilder.accept.model import RequestResult, RoundResult, RunResult, Scenario
from imagebuilder.stack.model import Load, Requirements


def a_request() -> RequestResult:
    return RequestResult(
        prompt="code-01", kind="code", started_s=0.0, e2e_s=0.5, times=(0.1, 0.2, 0.5), tokens=(1, 1, 3),
        output_tokens=5,
    )  # fmt: skip


def a_round() -> RoundResult:
    return RoundResult(
        arm="eagle3", stage="load", level=1, unit=0, start=0, index=0, wall_s=0.5, began="2026-01-01",
        requests=(a_request(),),
    )  # fmt: skip


def a_run() -> RunResult:
    scenario = Scenario(
        stack="x", model="m", draft="d", baseline=("a",), eagle3=("b",), gpus=(0, 1), load=Load(),
        answer_tokens=9, require=Requirements(), equalised=(("--random-seed 1", "why"),),
    )  # fmt: skip
    return RunResult(
        imagebuilder="0.1.0", stack="x", config_digest=None, runtime="process", planned_units=3,
        scenario=scenario, rounds=(a_round(),), started="2026-01-01",
    )  # fmt: skip
