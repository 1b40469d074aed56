"""Whether the comparison was whole and fair: smoke, settings, failed requests, the prefix cache. Pure."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from imagebuilder.accept.figures import LevelFigures
from imagebuilder.accept.model import BASELINE, EAGLE3, RoundResult, RunResult
from imagebuilder.accept.requirement import Requirement

CACHE_DIFFERENCE = 0.05
"""By how much the shares of prompts found whole may differ between the arms, and between rounds of one."""
WHOLE = 0.8
"""Of a prompt's tokens; a cache of pages does not hold the last ones."""
FAILED_SHARE = 0.01
"""Of an arm's requests; more than that and what is left is another load."""


def whole(run: RunResult) -> Requirement:
    """The run came to its end."""
    row = Requirement(
        key="complete-run",
        outcome="pass",
        wanted="every planned round",
        seen=f"{run.units} units in both arms",
    )
    return replace(row, outcome="fail", why=run.failure) if run.failure else row


def smoke(run: RunResult) -> Requirement | None:
    """The probe in the container found nothing wrong. None where there was nothing to probe."""
    report = run.smoke
    if report is None or not report.checks:
        return None
    row = Requirement(
        key="smoke",
        outcome="pass",
        wanted="everything the probe looks at",
        seen=f"{sum(c.status == 'ok' for c in report.checks)} of {len(report.checks)} checks hold",
    )
    if report.failed:
        why = "; ".join(f"{c.code} {c.subject}: {c.detail}".rstrip(": ") for c in report.failed)
        return replace(row, outcome="fail", why=why)
    if report.unseen:
        why = "not seen: " + ", ".join(f"{c.code} {c.subject}".strip() for c in report.unseen)
        return replace(row, outcome="pass" if run.scenario.gpus == "none" else "inconclusive", why=why)
    return row


def fair(run: RunResult) -> Requirement:
    """No setting differs that would explain the difference."""
    unfair = [d for d in run.differences if d.weight == "unfair"]
    row = Requirement(
        key="fair-comparison",
        outcome="pass",
        wanted="both servers set alike, but for speculation",
        seen=f"{len(run.differences)} settings differ, {len(unfair)} of them unfairly",
    )
    if not unfair:
        return row
    why = "; ".join(
        f"{d.setting} is {d.baseline} for the baseline and {d.eagle3} for EAGLE-3"
        + (f" ({d.why})" if d.why else "")
        for d in unfair
    )
    return replace(row, outcome="fail", why=f"refused: {why}")


def requests_answered(levels: tuple[LevelFigures, ...]) -> Requirement:
    """Both arms answered what they were asked."""
    worst, share = "", 0.0
    failed = 0
    for figures in levels:
        for name, arm in (("baseline", figures.baseline), ("EAGLE-3", figures.eagle3)):
            failed += arm.failed
            if arm.requests and arm.failed / arm.requests > share:
                share = arm.failed / arm.requests
                worst = f"{arm.failed} of {arm.requests} of {name} at {figures.level}"
    return Requirement(
        key="requests",
        outcome="fail" if share > FAILED_SHARE else "pass",
        wanted=f"at most {FAILED_SHARE:.0%} failed in any arm and level",
        seen=f"{failed} failed",
        why=worst and f"failed: {worst}",
    )


def cache_clean(run: RunResult, levels: tuple[LevelFigures, ...]) -> Requirement:
    """No prompt was answered out of what an earlier round or the other arm had left in the prefix cache.

    The chat template's beginning is common to all prompts and rightly found there; a prompt that was asked
    before is found nearly whole. So whole prompts are counted.
    """
    seen = [
        f"{f.baseline.cached:.1%} and {f.eagle3.cached:.1%} of the tokens at {f.level}"
        for f in levels
        if f.baseline.cached is not None and f.eagle3.cached is not None
    ]
    row = Requirement(
        key="prefix-cache",
        outcome="pass",
        wanted=f"prompts found whole: shares within {100 * CACHE_DIFFERENCE:g} points",
        seen=", ".join(seen) or "not told",
    )
    if not seen:
        why = "the servers tell no cached_tokens (SGLang: --enable-cache-report)"
        return replace(row, outcome="inconclusive", counts=False, why=why)
    carried = [text for figures in levels for text in _carried(run, figures.level)]
    if carried:
        return replace(row, outcome="fail", why="prompts were found in the cache: " + "; ".join(carried))
    return row


def _carried(run: RunResult, level: int) -> list[str]:
    base, eagle = ([_found_whole(r) for r in run.load_rounds(arm, level)] for arm in (BASELINE, EAGLE3))
    found = []
    if base and eagle and abs(fmean(base) - fmean(eagle)) > CACHE_DIFFERENCE:
        found.append(f"{fmean(base):.0%} of the baseline's and {fmean(eagle):.0%} of EAGLE-3's at {level}")
    for shares, name in ((base, "the baseline's"), (eagle, "EAGLE-3's")):
        if shares and max(shares) - shares[0] > CACHE_DIFFERENCE:
            found.append(
                f"{shares[0]:.0%} in {name} first round at {level}, {max(shares):.0%} in a later one"
            )
    return found


def _found_whole(one: RoundResult) -> float:
    told = [r for r in one.requests if r.cached_tokens is not None and r.prompt_tokens]
    whole = [r for r in told if (r.cached_tokens or 0) >= WHOLE * (r.prompt_tokens or 0)]
    return len(whole) / len(told) if told else 0.0
