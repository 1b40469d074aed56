"""Whole acceptances of simulated stacks, on a virtual clock: what is run, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.accept.looks import most_units
from imagebuilder.accept.model import BASELINE, EAGLE3, RunResult
from imagebuilder.accept.prompts import Prompt, known_answers, load_set, select
from imagebuilder.accept.run import Order, run
from imagebuilder.accept.scenario import make_scenario
from imagebuilder.accept.verdict import judge, settled
from imagebuilder.errors import ChecksFailed, SectionMissing
from imagebuilder.lock.pylock import read_lock
from imagebuilder.progress import Silent
from imagebuilder.stack import Stack, find_stack, load_stack, shipped_folder
from imagebuilder.stack.model import Acceptance, Arm, Load, Requirements, Waiver
from tests.support.virtual import VirtualRuntime

DEMO = load_stack(find_stack("demo", Path("/")))
LOCK = read_lock(shipped_folder() / "pylock.demo.toml")
SPECULATION = (
    "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    "--sim-accept", "2.6",
)  # fmt: skip
LOAD = Load(concurrency=(4,), requests=10, output_tokens=40, warmup_requests=2, pairing="rounds", rounds=3)
SEEDS = Load(concurrency=(1,), requests=10, output_tokens=100, warmup_requests=0, pairing="rounds", rounds=5)


def stack(
    baseline: tuple[str, ...] = (), eagle3: tuple[str, ...] = (), load: Load = LOAD, **require: float
) -> Stack:
    """The demo stack with these servers. `--sim-…` words of the seeds' speeds unless given."""
    acceptance = Acceptance(
        model="m",
        draft="d",
        server=("python3", "-m", "sglang_simulator"),
        gpus="none",
        startup_timeout=60,
        request_timeout=120,
        arguments=("--sim-noise", "0.02", "--sim-prefill-speed", "1e6"),
        baseline=Arm(arguments=("--sim-speed", "89.5", *baseline)),
        eagle3=Arm(arguments=(*SPECULATION, *eagle3)),
        load=load,
        require=Requirements(**require),  # type: ignore[arg-type]
    )
    return replace(DEMO, acceptance=acceptance, waivers=())


def accept(
    folder: Path,
    chosen: Stack,
    *,
    more: Callable[[RunResult], bool] | None = None,
    tasks: tuple[Prompt, ...] = known_answers()[:10],
    kept: list[RunResult] | None = None,
) -> RunResult:
    acceptance = chosen.acceptance
    assert acceptance is not None
    prompts = select(load_set(acceptance.load.prompts), acceptance.load.requests)
    with VirtualRuntime(folder) as runtime:
        order = Order(
            stack=chosen,
            acceptance=acceptance,
            lock=LOCK,
            scenario=make_scenario(chosen, acceptance, (*prompts, *tasks)),
            prompts=prompts,
            tasks=tasks,
            planned_units=most_units(acceptance.load),
            keep=(kept if kept is not None else []).append,
            more=more or (lambda result: not settled(result)),
            run=runtime.loop.run_until_complete,
        )
        return run(order, runtime, Silent())


# ---------------------------------------------------------------- the two stacks of the story


def test_cu128_eagle3_is_slower_than_nothing(tmp_path: Path) -> None:
    """89.5 tok/s without, 54.1 with: the stack that cost days."""
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "54.1"), load=SEEDS))
    verdict = judge(result)
    assert result.failure == ""
    assert verdict.outcome == "fail"
    one = next(f for f in verdict.levels if f.level == 1)
    assert one.speedup is not None
    assert one.speedup.value == pytest.approx(54.1 / 89.5, abs=0.02)
    assert one.speedup.shown is not None
    assert one.speedup.shown.high < 1
    assert "0.6" in verdict.headline


def test_cu130_eagle3_pays(tmp_path: Path) -> None:
    """89.5 without, 96.1 with."""
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "96.1"), load=SEEDS))
    verdict = judge(result)
    assert verdict.outcome == "pass", verdict.headline
    one = next(f for f in verdict.levels if f.level == 1)
    assert one.speedup is not None
    assert one.speedup.value == pytest.approx(96.1 / 89.5, abs=0.03)


# ---------------------------------------------------------------- what is run


def test_servers_side_by_side_take_turns_round_by_round(tmp_path: Path) -> None:
    kept: list[RunResult] = []
    load = replace(LOAD, concurrency=(1, 8))
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "120"), load=load), kept=kept)
    timed = [(r.arm, r.level, r.unit) for r in result.rounds if r.stage == "load"]
    assert timed[:8] == [
        (BASELINE, 1, 0), (EAGLE3, 1, 0), (BASELINE, 8, 0), (EAGLE3, 8, 0),
        (EAGLE3, 1, 1), (BASELINE, 1, 1), (EAGLE3, 8, 1), (BASELINE, 8, 1),
    ]  # fmt: skip
    assert [(r.arm, r.unit) for r in result.rounds if r.stage == "survey"] == [
        (BASELINE, 0), (EAGLE3, 0), (BASELINE, result.units - 1), (EAGLE3, result.units - 1),
    ]  # fmt: skip
    assert [(s.arm, s.start) for s in result.servers] == [(BASELINE, 0), (EAGLE3, 0)]
    assert result.units in (3, result.planned_units)
    assert [r.units for r in kept] == sorted(r.units for r in kept), "kept after every unit"
    assert kept[-1] == result


def test_servers_that_do_not_fit_take_turns_start_by_start(tmp_path: Path) -> None:
    load = replace(LOAD, pairing="starts", starts=3, rounds=6, concurrency=(4,))
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "140"), load=load))
    order = [(r.arm, r.unit, r.start) for r in result.rounds if r.stage == "survey"]
    assert order[:6] == [
        (BASELINE, 0, 0), (EAGLE3, 0, 0), (EAGLE3, 1, 1), (BASELINE, 1, 1), (BASELINE, 2, 2), (EAGLE3, 2, 2),
    ]  # fmt: skip
    assert [(r.unit, r.index) for r in result.load_rounds(BASELINE, 4)][:6] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert len(result.servers) == 2 * result.units


def test_looks_are_planned_and_more_is_measured_where_it_is_unclear(tmp_path: Path) -> None:
    asked = []

    def more(result: RunResult) -> bool:
        asked.append(result.units)
        return True

    result = accept(tmp_path, stack(), more=more, tasks=())
    assert result.units == result.planned_units == 6
    assert asked == [1, 2, 3, 4, 5]


def test_both_servers_get_what_speculation_would_change_silently(tmp_path: Path) -> None:
    load = replace(LOAD, concurrency=(64,), requests=128, output_tokens=20, rounds=2)
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "120"), load=load), tasks=())
    for server in result.servers:
        assert server.info["max_running_requests"] == 64
        assert server.info["disable_overlap_schedule"] is True
        assert server.info["random_seed"] == 1
    assert not [d for d in result.differences if d.weight == "unfair"]
    assert {d.setting for d in result.differences if d.weight == "noted"} == {
        "mem_fraction_static",
        "max_total_num_tokens",
    }


def test_the_prefix_cache_is_empty_at_every_round(tmp_path: Path) -> None:
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "120")), tasks=())
    cached = {r.cached_tokens for round_ in result.rounds if round_.stage == "load" for r in round_.requests}
    assert cached == {0}


def test_counters_and_answers_come_from_the_survey(tmp_path: Path) -> None:
    result = accept(tmp_path, stack(eagle3=("--sim-speed", "120")))
    surveys = result.surveys(EAGLE3)
    assert all(r.verify_count for s in surveys for r in s.requests)
    assert all(r.verify_count is None for s in result.surveys(BASELINE) for r in s.requests)
    assert {r.correct for s in surveys for r in s.requests if r.kind == "known"} == {True}
    assert judge(result).accept_length.overall is not None


# ---------------------------------------------------------------- what is refused, and what fails


def refused(result: RunResult, *words: str) -> None:
    assert result.failure
    for word in words:
        assert word in result.failure
    assert result.ended
    assert judge(result).outcome != "pass"


def test_one_server_capped_and_one_not(tmp_path: Path) -> None:
    """Default against default above 48 streams (sglang#34290): here by the stack's own words."""
    chosen = stack(baseline=("--max-running-requests", "100"), eagle3=("--max-running-requests", "50"))
    refused(accept(tmp_path, chosen), "cannot be compared", "max_running_requests", "baseline 100, eagle3 50")


def test_a_difference_can_be_declared(tmp_path: Path) -> None:
    chosen = stack(
        baseline=("--max-running-requests", "100"),
        eagle3=("--max-running-requests", "50", "--sim-speed", "130"),
    )
    waivers = tuple(
        Waiver(code="acceptance.unequal", path=name, reason="measured")
        for name in ("max_running_requests", "effective_max_running_requests_per_dp")
    )
    result = accept(tmp_path, replace(chosen, waivers=waivers), tasks=())
    assert result.failure == ""
    declared = [d for d in result.differences if "declared: measured" in d.why]
    assert {d.weight for d in declared} == {"noted"}


def test_keys_of_the_server_are_nowhere_in_a_result(tmp_path: Path) -> None:
    from imagebuilder.accept import codec

    result = accept(tmp_path, stack(eagle3=("--sim-speed", "120"), load=replace(LOAD, rounds=2)), tasks=())
    assert "api_key" in codec.dumps(result)
    info = {**result.servers[0].info, "api_key": "not-for-you"}
    from imagebuilder.accept.differences import redacted

    assert "not-for-you" not in str(redacted(info))


def test_a_server_that_hangs_under_load(tmp_path: Path) -> None:
    result = accept(tmp_path, stack(eagle3=("--sim-fault", "hang-after=40")))
    refused(result, "the eagle3 server", "hangs", "Capture cuda graph begin")
    assert result.surveys(BASELINE), "what was measured before is kept"


def test_a_server_that_never_becomes_healthy(tmp_path: Path) -> None:
    result = accept(tmp_path, stack(baseline=("--sim-startup", "600")))
    refused(result, "the baseline server was not healthy after 60 s", "Load weight begin", "startup-timeout")


def test_a_server_that_cannot_answer(tmp_path: Path) -> None:
    result = accept(tmp_path, stack(baseline=("--sim-fault", "error-every=1")))
    refused(result, "does not answer a first request", "simulated")


def test_some_requests_that_fail_do_not_end_a_run(tmp_path: Path) -> None:
    chosen = stack(eagle3=("--sim-fault", "truncate-every=37", "--sim-speed", "130"))
    result = accept(tmp_path, chosen)
    assert result.failure == ""
    errors = [e.error for r in result.rounds for e in r.errors]
    assert errors
    assert set(errors) == {"the stream was cut"}


def test_lost_answers_fail_however_fast_it_is(tmp_path: Path) -> None:
    """Fluent nonsense (sglang#35912)."""
    result = accept(
        tmp_path, stack(eagle3=("--sim-speed", "150", "--sim-wrong", "0.3")), tasks=known_answers()
    )
    verdict = judge(result)
    assert verdict.outcome == "fail"
    assert verdict.answers is not None
    assert 20 < len(verdict.answers.broken) < 80


def test_an_accept_length_of_one_is_a_misconfiguration(tmp_path: Path) -> None:
    """EAGLE with an EAGLE-3 draft (sglang#21272)."""
    chosen = stack(eagle3=("--speculative-algorithm", "EAGLE", "--sim-speed", "130"))
    verdict = judge(accept(tmp_path, chosen, tasks=()))
    assert verdict.outcome == "fail"
    assert [r for r in verdict.of("fail") if "accept-length" in r.title]


def test_faster_alone_and_slower_in_company(tmp_path: Path) -> None:
    """sglang#6949: each level has its own verdict."""
    slow = ("--sim-speed", "110", "--sim-saturation", "4")
    load = replace(LOAD, concurrency=(1, 8))
    chosen = stack(baseline=("--sim-saturation", "30"), eagle3=slow, load=load)
    verdict = judge(accept(tmp_path, chosen, tasks=()))
    speedups = {f.level: f.speedup.value for f in verdict.levels if f.speedup}
    assert speedups[1] > 1.1
    assert speedups[8] < 1
    assert verdict.outcome == "fail"


def test_noise_larger_than_the_difference_is_never_a_pass(tmp_path: Path) -> None:
    noisy = replace(LOAD, rounds=4, requests=8, output_tokens=8, concurrency=(4,))
    chosen = stack(
        baseline=("--sim-noise", "0.9"), eagle3=("--sim-noise", "0.9", "--sim-speed", "91"), load=noisy
    )
    assert judge(accept(tmp_path, chosen, tasks=())).outcome in ("inconclusive", "fail")


def test_ctrl_c_stops_the_servers_and_keeps_what_was_measured(tmp_path: Path) -> None:
    kept: list[RunResult] = []

    def more(result: RunResult) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        accept(tmp_path, stack(eagle3=("--sim-speed", "120")), more=more, tasks=(), kept=kept)
    assert kept[-1].failure == "interrupted"
    assert kept[-1].units == 1
    assert kept[-1].rounds


def test_the_draft_is_looked_at_before_any_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = b'{"ids": null, "why": "", "target": {"hidden_size": 7168}, "draft": {"hidden_size": 4096}}'
    real = VirtualRuntime.run
    monkeypatch.setattr(
        VirtualRuntime,
        "run",
        lambda self, script, *rest: told if script.name == "tokenizing" else real(self, script, *rest),
    )
    with pytest.raises(ChecksFailed, match="another hidden size") as wrong:
        accept(tmp_path, stack())
    assert "7168" in str(wrong.value)
    assert "4096" in str(wrong.value)


def test_a_stack_without_acceptance() -> None:
    from imagebuilder.cli.accept import _asked

    with pytest.raises(SectionMissing, match="acceptance"):
        _asked(replace(DEMO, acceptance=None), None)
