"""Known-answer tasks: how many each arm got right, and which EAGLE-3 lost. Pure.

The tasks are a fixed set, not a sample of all questions, and both arms get every one of them several
times. So the noise of an accuracy is that an answer comes out differently from time to time, and that is
measured task by task. Where a task was asked once per arm, the scatter over tasks has to stand for it.
Intervals are of 95 % at every look: with two looks, EAGLE-3 worse by the margin passes in at most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from imagebuilder.accept.looks import Estimate, Look, estimate
from imagebuilder.accept.model import ARMS, EAGLE3, KNOWN, ArmName, RunResult
from imagebuilder.accept.statistics import Effect, mean_effect

BROKEN_BY = 0.5
"""A task is broken when EAGLE-3 gets it right so much less often than the baseline."""


@dataclass(frozen=True, kw_only=True)
class BrokenAnswer:
    """A task that the baseline can do and EAGLE-3 cannot. Shares of right answers; said: a wrong reply."""

    prompt: str
    text: str
    wanted: str
    baseline: float
    eagle3: float
    said: str


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Shares of right answers, their difference (EAGLE-3 minus baseline), and what broke.

    asked: fewest times that a task was asked of an arm.
    """

    tasks: int
    asked: int
    baseline: Estimate
    eagle3: Estimate
    extra: Estimate
    broken: tuple[BrokenAnswer, ...]
    mended: int


def answers(run: RunResult) -> Answers | None:
    """None where no task was answered by both arms."""
    given = {arm: _by_task(run, arm) for arm in ARMS}
    tasks = sorted(given[ARMS[0]].keys() & given[EAGLE3].keys())
    if not tasks:
        return None
    base, eagle = ([given[arm][task] for task in tasks] for arm in ARMS)
    look = Look(units=len(tasks))
    shares = [(_share(b), _share(e)) for b, e in zip(base, eagle, strict=True)]
    return Answers(
        tasks=len(tasks),
        asked=min(len(a) for a in (*base, *eagle)),
        baseline=_accuracy(base, look),
        eagle3=_accuracy(eagle, look),
        extra=estimate(_extra(base, eagle), look),
        broken=_broken(run, tasks, shares),
        mended=sum(e - b >= BROKEN_BY for b, e in shares),
    )


def _by_task(run: RunResult, arm: ArmName) -> dict[str, list[bool]]:
    """Right or not, for every time that a task was asked. A request that failed has no right answer."""
    found: dict[str, list[bool]] = {}
    for one in run.rounds:
        for request in one.requests if one.arm == arm else ():
            if request.kind == KNOWN:
                found.setdefault(request.prompt, []).append(bool(request.correct) and request.ok)
    return found


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)


def _accuracy(tasks: Sequence[Sequence[bool]], look: Look | None) -> Estimate:
    return estimate(_stratified(tasks) or mean_effect([_share(t) for t in tasks]), look)


def _extra(base: Sequence[Sequence[bool]], eagle: Sequence[Sequence[bool]]) -> Effect:
    one, other = _stratified(base), _stratified(eagle)
    if one is None or other is None:  # asked once: tasks stand for repetitions
        return mean_effect([_share(e) - _share(b) for b, e in zip(base, eagle, strict=True)])
    error = math.hypot(one.error or 0, other.error or 0)
    return Effect(mean=other.mean - one.mean, error=error, df=one.df + other.df, units=len(base))


def _stratified(tasks: Sequence[Sequence[bool]]) -> Effect | None:
    """Mean over tasks, each asked several times; its variance is what the answers of one task scatter."""
    if min(map(len, tasks)) < 2:
        return None
    spread = sum(_share(t) * (1 - _share(t)) / (len(t) - 1) for t in tasks) / len(tasks) ** 2
    df = sum(len(t) - 1 for t in tasks)
    return Effect(mean=sum(map(_share, tasks)) / len(tasks), error=math.sqrt(spread), df=df, units=len(tasks))


def _broken(
    run: RunResult, tasks: Sequence[str], shares: Sequence[tuple[float, float]]
) -> tuple[BrokenAnswer, ...]:
    asked = {p.id: p for p in run.prompts}
    found = []
    for task, (base, eagle) in zip(tasks, shares, strict=True):
        if base - eagle >= BROKEN_BY:
            prompt = asked.get(task)
            found.append(
                BrokenAnswer(
                    prompt=task,
                    text=prompt.text if prompt else "",
                    wanted=prompt.answer if prompt else "",
                    baseline=base,
                    eagle3=eagle,
                    said=_wrong_reply(run, task),
                )
            )
    return tuple(sorted(found, key=lambda b: (b.eagle3 - b.baseline, b.prompt)))


def _wrong_reply(run: RunResult, task: str) -> str:
    for one in run.rounds:
        for request in one.requests if one.arm == EAGLE3 else ():
            if request.prompt == task and not (request.correct and request.ok):
                return request.text or request.error
    return ""
