"""Every situation that a verdict must tell apart, made of numbers."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from imagebuilder.accept.figures import levels_of, speedup_effect
from imagebuilder.accept.model import (
    BASELINE,
    EAGLE3,
    ArmName,
    Difference,
    RequestResult,
    RunResult,
    SmokeCheck,
    SmokeReport,
)
from imagebuilder.accept.record import make_record, require_pass
from imagebuilder.accept.requirement import Requirement
from imagebuilder.accept.verdict import Verdict, judge, settled
from imagebuilder.errors import NotAccepted
from imagebuilder.stack.model import Load, Requirements
from tests.accept.synthetic import make_run

ONE = Load(concurrency=(1,), pairing="starts", starts=3, rounds=3)
ROUNDS = Load(concurrency=(1,), pairing="rounds", rounds=6)


def the(verdict: Verdict, key: str, level: int | None = None) -> Requirement:
    found = [r for r in verdict.requirements if r.key == key and r.level == level]
    assert len(found) == 1, [r.title for r in verdict.requirements]
    return found[0]


# ---------------------------------------------------------------- the team's own figures


def test_54_against_89_fails() -> None:
    verdict = judge(make_run(baseline=89.5, eagle3=54.1, load=ONE, noise=0.01))
    row = the(verdict, "min-speedup", 1)
    assert verdict.outcome == row.outcome == "fail"
    assert row.estimate and row.estimate.value == pytest.approx(54.1 / 89.5, abs=0.02)
    assert row.estimate.shown and row.estimate.shown.low < 0.604 < row.estimate.shown.high < 1
    assert "0.6" in verdict.headline and "[" in verdict.headline
    with pytest.raises(NotAccepted) as caught:
        require_pass(make_record(make_run(), verdict), "results/report.html")
    assert caught.value.exit_code == 8
    assert "min-speedup at 1" in str(caught.value) and "results/report.html" in str(caught.value)


def test_96_against_89_passes() -> None:
    run = make_run(baseline=89.5, eagle3=96.1, load=ONE)
    verdict = judge(run)
    row = the(verdict, "min-speedup", 1)
    assert verdict.outcome == "pass", verdict.headline
    assert row.estimate and row.estimate.value == pytest.approx(96.1 / 89.5, abs=0.01)
    assert row.estimate.shown and row.estimate.shown.low > 1
    require_pass(make_record(run, verdict), "")


@pytest.mark.parametrize(
    "load", [ONE, replace(ROUNDS, start_variation=0.0), replace(ROUNDS, start_variation=0.01)]
)
def test_both_seed_figures_in_every_pairing(load: Load) -> None:
    assert judge(make_run(eagle3=54.1, load=load)).outcome == "fail"
    assert judge(make_run(eagle3=96.1, load=load)).outcome == "pass"


# ---------------------------------------------------------------- noise, looks


def test_noise_larger_than_the_difference_is_inconclusive() -> None:
    for seed in range(20):
        run = make_run(baseline=100, eagle3=101, noise=0.08, load=ONE, seed=seed)
        assert judge(run).outcome in ("inconclusive", "fail")
    run = make_run(baseline=100, eagle3=101, noise=0.08, load=ONE)
    row = the(judge(run), "min-speedup", 1)
    assert row.outcome == "inconclusive" and "noise" in row.why
    assert not settled(run), "a second look is planned"


def test_a_first_look_decides_only_what_is_very_clear() -> None:
    """An interval of 95 % above 1 is not enough there: looking twice costs."""
    for seed in range(200):
        run = make_run(baseline=100, eagle3=104, noise=0.015, load=ONE, seed=seed)
        estimate = the(judge(run), "min-speedup", 1).estimate
        assert estimate and estimate.shown and estimate.decides
        assert estimate.decides.low < estimate.shown.low
        if estimate.shown.low > 1 >= estimate.decides.low:
            assert judge(run).outcome == "inconclusive" and not settled(run)
            assert "not clear enough for a first look" in the(judge(run), "min-speedup", 1).why
            alone = replace(run, planned_units=3)
            assert judge(alone).outcome == "pass" and settled(alone), "as the only look it is enough"
            return
    pytest.fail("no such run among 200")


def test_between_looks_nothing_is_decided_and_nothing_settled() -> None:
    run = make_run(load=ONE, units=2)
    row = the(judge(run), "min-speedup", 1)
    assert row.outcome == "inconclusive" and "between two planned looks" in row.why
    assert not settled(run)


def test_the_last_look_is_settled_whatever_it_says() -> None:
    run = make_run(baseline=100, eagle3=100.1, noise=0.03, load=ONE, units=6)
    assert judge(run).outcome == "inconclusive"
    assert settled(run)


def test_a_clear_run_is_settled_at_once() -> None:
    assert settled(make_run(load=ONE))
    assert settled(make_run(eagle3=54.1, load=ONE))


def test_start_variation_widens() -> None:
    narrow = speedup_effect(make_run(load=replace(ROUNDS, start_variation=0.0)), 1)
    wide = speedup_effect(make_run(load=replace(ROUNDS, start_variation=0.05)), 1)
    assert narrow and wide and narrow.error and wide.error
    assert wide.mean == narrow.mean
    assert wide.error**2 == pytest.approx(narrow.error**2 + 2 * 0.05**2)
    verdict = judge(make_run(load=replace(ROUNDS, start_variation=0.05)))
    assert verdict.outcome == "inconclusive", "7 % is less than two starts may differ by"


def test_what_nobody_measured_is_assumed_and_said() -> None:
    """Servers started once may differ by their starts alone: a small difference proves nothing."""
    little = judge(make_run(load=ROUNDS, baseline=100, eagle3=102, noise=0.001))
    assert little.outcome == "inconclusive"
    assert any("assumed" in note for note in little.notes)
    declared = judge(
        make_run(load=replace(ROUNDS, start_variation=0.001), baseline=100, eagle3=102, noise=0.001)
    )
    assert declared.outcome == "pass" and not any("assumed" in note for note in declared.notes)
    assert judge(make_run(load=ROUNDS, eagle3=120)).outcome == "pass", "no two starts differ by so much"


def test_what_starts_differ_by_is_told() -> None:
    notes = judge(make_run(load=replace(ONE, starts=6, rounds=6), noise=0.02)).notes
    assert any("start-variation = 0.0" in note for note in notes)


def test_drift_of_the_machine_does_not_look_like_speedup() -> None:
    run = make_run(baseline=100, eagle3=100, noise=0.0001, load=replace(ONE, rounds=3))
    order = sorted({(r.began, r.arm, r.start) for r in run.rounds if r.stage == "load"})
    drift = {key: 1 - 0.02 * place for place, key in enumerate(order)}
    rounds = tuple(
        replace(r, wall_s=r.wall_s * drift[(r.began, r.arm, r.start)]) if r.stage == "load" else r
        for r in run.rounds
    )
    effect = speedup_effect(replace(run, rounds=rounds), 1)
    assert effect and abs(effect.mean) < 0.001


# ---------------------------------------------------------------- levels


def test_faster_at_1_slower_at_32() -> None:
    load = replace(ONE, concurrency=(1, 32))
    speeds: dict[str, Any] = {"baseline": {1: 90.0, 32: 900.0}, "eagle3": {1: 110.0, 32: 800.0}}
    every = judge(make_run(load=load, **speeds))
    assert every.outcome == "fail"
    assert (the(every, "min-speedup", 1).outcome, the(every, "min-speedup", 32).outcome) == ("pass", "fail")
    first = judge(make_run(load=replace(load, decisive=(1,)), **speeds))
    assert first.outcome == "pass" and not the(first, "min-speedup", 32).counts
    assert any("slower at 32" in note for note in first.notes)
    assert judge(make_run(load=replace(load, decisive=(32,)), **speeds)).outcome == "fail"


# ---------------------------------------------------------------- accept length


@pytest.mark.parametrize("accept", [1.0, 1.04])
def test_no_acceptance_is_a_wrong_setting_not_noise(accept: float) -> None:
    row = the(judge(make_run(accept=accept, eagle3=99, load=ONE)), "min-accept-length")
    assert row.outcome == "fail"
    assert "wrong setting" in row.why and "EAGLE3" in row.why


def test_accept_length_is_weighted_by_verify_count() -> None:
    run = make_run(load=ONE, units=3)
    counted = [r for one in run.rounds if one.arm == EAGLE3 for r in one.requests if r.verify_count]
    expected = sum(r.output_tokens for r in counted) / sum(r.verify_count or 0 for r in counted)
    found = judge(run).accept_length
    assert found.overall and found.overall.value == pytest.approx(expected)
    assert [kind for kind, _ in found.by_kind][-1] == "known"


def test_a_server_that_tells_no_verify_counts() -> None:
    verdict = judge(make_run(accept=None, load=ONE))
    assert the(verdict, "min-accept-length").outcome == "inconclusive"
    assert verdict.outcome == "inconclusive"


# ---------------------------------------------------------------- quality


def broken(*tasks: int) -> Any:
    return lambda arm, task, time: not (arm == EAGLE3 and task in tasks)


def test_faster_but_wrong_fails_and_names_the_prompts() -> None:
    verdict = judge(make_run(load=ONE, eagle3=200, right=broken(3, 7, 11)))
    row = the(verdict, "known-answers-margin")
    assert verdict.outcome == row.outcome == "fail"
    assert verdict.answers and [b.prompt for b in verdict.answers.broken] == [
        "known-003",
        "known-007",
        "known-011",
    ]
    assert verdict.answers.broken[0].said == "Answer: about a hundred"
    assert verdict.answers.broken[0].wanted == "6"


def test_loss_within_the_margin_is_no_loss() -> None:
    verdict = judge(make_run(load=ONE, right=broken(3)))
    assert the(verdict, "known-answers-margin").outcome == "pass", "one of 50 is 2 points, the margin"


def test_an_answer_that_flips_once_is_noise() -> None:
    once = judge(
        make_run(load=ONE, right=lambda arm, task, time: not (task == 5 and time == 1 and arm == EAGLE3))
    )
    assert the(once, "known-answers-margin").outcome == "pass"


def test_few_flips_that_cannot_be_told_from_loss_are_inconclusive() -> None:
    def right(arm: ArmName, task: int, time: int) -> bool:
        return not (arm == EAGLE3 and task in (1, 2, 3) and time % 2 == 0)

    row = the(judge(make_run(load=replace(ONE, starts=4, rounds=4), right=right)), "known-answers-margin")
    assert row.outcome == "inconclusive" and row.more_may_help


def test_a_baseline_that_is_wrong_itself_shows_nothing() -> None:
    """An image that computes wrongly in both arms does not pass because EAGLE-3 is no worse."""
    verdict = judge(make_run(load=ONE, right=lambda arm, task, time: task < 10))
    row = the(verdict, "known-answers-margin")
    assert verdict.outcome == row.outcome == "inconclusive"
    assert "both arms" in row.why


def test_least_share_of_known_answers() -> None:
    require = Requirements(min_known_answers=0.95)
    assert the(judge(make_run(load=ONE, require=require)), "min-known-answers").outcome == "pass"
    both = lambda arm, task, time: task >= 5  # noqa: E731
    row = the(judge(make_run(load=ONE, require=require, right=both)), "min-known-answers")
    assert row.outcome == "fail" and row.seen == "90.0 %"


def words(split: Any) -> Any:
    """Texts that split at a place which `split` gives for (arm, prompt, time); None: never."""
    common = "one two three four five six seven eight nine ten " * 20

    def text(arm: ArmName, number: int, time: int) -> str:
        place = split(arm, number, time)
        return common if place is None else common[:place] + f"{arm} {time} " + common[place:]

    return text


def test_texts_that_differ_as_much_as_the_baseline_from_itself_are_fine() -> None:
    def split(arm: ArmName, number: int, time: int) -> int | None:
        return Random(f"{arm}{number}{time}").choice([None, 200, 400, 600])

    require = Requirements(max_extra_divergence=0.15)
    verdict = judge(make_run(load=ONE, require=require, text=words(split), requests=40))
    rows = [r for r in verdict.requirements if r.key == "max-extra-divergence"]
    assert [r.outcome for r in rows] == ["pass", "pass"]
    assert verdict.divergence and verdict.divergence.floor.differing > 0.3, "a noise floor there is"
    assert "floor" in rows[0].seen


def test_texts_that_part_early_fail_by_the_limit_or_warn() -> None:
    def split(arm: ArmName, number: int, time: int) -> int | None:
        return 30 if arm == EAGLE3 else Random(f"{number}{time}").choice([None, 700, 800])

    text = words(split)
    limited = judge(
        make_run(load=ONE, require=Requirements(max_extra_divergence=0.15), text=text, requests=20)
    )
    assert "fail" in {r.outcome for r in limited.requirements if r.key == "max-extra-divergence"}
    free = judge(make_run(load=ONE, text=text, requests=20))
    assert free.outcome == "pass" and any("earlier" in note for note in free.notes)


def test_without_a_noise_floor_divergence_is_not_judged() -> None:
    run = make_run(load=ONE, require=Requirements(max_extra_divergence=0.1), units=1, planned_units=1)
    row = next(r for r in judge(run).requirements if r.key == "max-extra-divergence")
    assert row.outcome == "inconclusive" and "noise floor" in row.why


def test_a_text_cut_at_its_limit_is_not_another_text() -> None:
    text = words(lambda arm, number, time: None)
    run = make_run(
        load=ONE,
        require=Requirements(max_extra_divergence=0.1),
        text=lambda arm, n, t: text(arm, n, t)[: 500 + 20 * t],
    )
    found = judge(run).divergence
    assert found and found.across.differing == 0


# ---------------------------------------------------------------- a fair comparison


def test_a_capped_server_against_an_uncapped_one_is_refused_by_name() -> None:
    capped = Difference(
        setting="max_running_requests",
        baseline="2048",
        eagle3="48",
        weight="unfair",
        why="one server takes more requests at once",
    )
    verdict = judge(make_run(load=ONE, differences=(capped,)))
    row = the(verdict, "fair-comparison")
    assert verdict.outcome == row.outcome == "fail"
    assert row.why.startswith("refused: max_running_requests is 2048 for the baseline and 48")
    noted = judge(make_run(load=ONE, differences=(replace(capped, weight="noted"),)))
    assert noted.outcome == "pass"


def test_prefix_cache_carried_from_one_arm_into_the_other() -> None:
    verdict = judge(make_run(load=ONE, cached=lambda arm, time: 99 if arm == EAGLE3 else 4))
    row = the(verdict, "prefix-cache")
    assert verdict.outcome == row.outcome == "fail" and "EAGLE-3" in row.why


def test_prefix_cache_carried_from_round_to_round() -> None:
    row = the(judge(make_run(load=ONE, cached=lambda arm, time: 99 if time else 4)), "prefix-cache")
    assert row.outcome == "fail" and "first round" in row.why


def test_a_chat_templates_beginning_in_the_cache_is_fine() -> None:
    row = the(judge(make_run(load=ONE, cached=lambda arm, time: 30 if arm == EAGLE3 else 20)), "prefix-cache")
    assert row.outcome == "pass"


def test_failed_requests() -> None:
    run = make_run(load=ONE)

    def hurt(request: RequestResult) -> RequestResult:
        return replace(request, error="the stream was cut", output_tokens=0, times=(), tokens=())

    rounds = tuple(
        replace(r, requests=(hurt(r.requests[0]), *r.requests[1:]))
        if r.stage == "load" and r.arm == BASELINE
        else r
        for r in run.rounds
    )
    row = the(judge(replace(run, rounds=rounds)), "requests")
    assert row.outcome == "fail" and "baseline" in row.why


def test_smoke() -> None:
    bad = SmokeCheck(code="acceptance.import", subject="torchao", status="failed", detail="ImportError")
    unseen = SmokeCheck(code="acceptance.gpus", subject="GPUs", status="unseen")
    assert judge(make_run(load=ONE, smoke=SmokeReport(checks=(bad,)))).outcome == "fail"
    run = make_run(load=ONE, smoke=SmokeReport(checks=(unseen,)))
    assert judge(run).outcome == "inconclusive", "what was not seen with GPUs asked for was not proven"
    without = replace(run, scenario=replace(run.scenario, gpus="none"))
    assert judge(without).outcome == "pass"
    assert "not seen" in the(judge(without), "smoke").why


def test_a_server_that_died_keeps_what_was_measured() -> None:
    run = make_run(load=ONE, units=2, failure="the eagle3 server ended (exit 139)\nSegmentation fault")
    verdict = judge(run)
    assert verdict.outcome == "fail"
    assert "Segmentation fault" in the(verdict, "complete-run").why
    assert verdict.levels[0].speedup, "partial figures are shown"


@pytest.mark.parametrize("units", [0, 1])
def test_nothing_or_little_measured_is_never_a_pass(units: int) -> None:
    verdict = judge(make_run(load=ONE, units=units))
    assert verdict.outcome == "inconclusive"
    assert the(verdict, "min-speedup", 1).outcome == "inconclusive"


# ---------------------------------------------------------------- absolute figures, regressions


def test_absolute_bounds() -> None:
    require = Requirements(min_output_tok_s=90, max_ttft_p99_ms=1000)
    verdict = judge(make_run(load=ONE, require=require))
    assert verdict.outcome == "pass"
    assert the(verdict, "min-output-tok-s", 1).seen.startswith("96")
    require = Requirements(min_output_tok_s=120, max_ttft_p99_ms=10)
    verdict = judge(make_run(load=ONE, require=require))
    assert the(verdict, "min-output-tok-s", 1).outcome == "fail"
    assert the(verdict, "max-ttft-p99-ms", 1).outcome == "fail"


def regression(earlier: RunResult | None, **now: Any) -> Requirement:
    run = make_run(load=ONE, require=Requirements(no_regression_against="cu128"), **now)
    return the(judge(run, earlier), "no-regression-against", 1)


def test_no_regression() -> None:
    earlier = make_run(load=ONE, seed=9)
    assert regression(earlier).outcome == "pass"
    assert regression(earlier, eagle3=120).outcome == "pass"
    assert regression(earlier, eagle3=80).outcome == "fail"
    assert regression(earlier, eagle3=96.1, noise=0.05).outcome == "inconclusive"
    assert "no earlier result named cu128" in regression(None).why
    other = replace(earlier, scenario=replace(earlier.scenario, model="/models/another"))
    row = regression(other)
    assert row.outcome == "inconclusive" and "model" in row.why


def test_levels_have_latencies_per_token() -> None:
    figures = levels_of(make_run(load=ONE))[0]
    assert figures.baseline.per_token and figures.eagle3.per_token
    assert figures.baseline.per_token.p50 == pytest.approx(1000 / 89.5, rel=0.1)
    assert figures.eagle3.ttft and figures.eagle3.ttft.p99 > figures.eagle3.ttft.p50
