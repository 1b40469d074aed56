"""How often and how early greedy texts of the two arms differ, against the baseline's own noise. Pure.

Two correct runs at temperature 0 do not give equal texts: the batch size changes the order of sums, and
after the first other token everything is different. So the baseline is compared with itself as well (its
texts of different rounds), and only what comes on top of that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean

from imagebuilder.accept.looks import Estimate, Look, estimate
from imagebuilder.accept.model import BASELINE, EAGLE3, KNOWN, RequestResult, RunResult
from imagebuilder.accept.statistics import mean_effect, quantile

MOST_TEXTS = 6
"""Of one prompt at one level and arm; more pairs would say the same at more cost."""

_Pair = tuple[RequestResult, RequestResult]


@dataclass(frozen=True, kw_only=True)
class Departure:
    """How texts differ: share of pairs that do, mean share of the text after the first difference, and where
    that lies (median over the pairs that differ, in characters; None where none do)."""

    differing: float
    lost: float
    first: float | None


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """floor: baseline against itself. across: EAGLE-3 against baseline. prompts: how many were compared.

    extra_differing, extra_lost: across minus floor, as means over prompts.
    """

    prompts: int
    floor: Departure
    across: Departure
    extra_differing: Estimate
    extra_lost: Estimate


def divergence(run: RunResult) -> Divergence | None:
    """None where the baseline has no two texts of a prompt under equal conditions."""
    floor, across = _pairs(run)
    prompts = sorted(floor.keys() & across.keys())
    if not prompts:
        return None
    own = [_departure(floor[p]) for p in prompts]
    other = [_departure(across[p]) for p in prompts]
    both = list(zip(own, other, strict=True))
    look = Look(units=len(prompts))  # prompts are not units that more rounds would add to: always 5 %
    return Divergence(
        prompts=len(prompts),
        floor=_overall(own),
        across=_overall(other),
        extra_differing=estimate(mean_effect([o.differing - f.differing for f, o in both]), look),
        extra_lost=estimate(mean_effect([o.lost - f.lost for f, o in both]), look),
    )


def _pairs(run: RunResult) -> tuple[dict[str, list[_Pair]], dict[str, list[_Pair]]]:
    """By prompt: pairs within the baseline, and pairs across the arms; each of one stage and level."""
    texts: dict[tuple[str, int, str], dict[str, list[RequestResult]]] = {}
    for one in run.rounds:
        for request in one.requests:
            if request.ok and request.text and request.kind != KNOWN:  # those are judged by their answers
                place = texts.setdefault((one.stage, one.level, request.prompt), {BASELINE: [], EAGLE3: []})
                if len(place[one.arm]) < MOST_TEXTS:
                    place[one.arm].append(request)
    floor: dict[str, list[_Pair]] = {}
    across: dict[str, list[_Pair]] = {}
    for (_, _, prompt), arms in texts.items():
        if len(arms[BASELINE]) > 1 and arms[EAGLE3]:
            floor.setdefault(prompt, []).extend(combinations(arms[BASELINE], 2))
            across.setdefault(prompt, []).extend(product(arms[BASELINE], arms[EAGLE3]))
    return floor, across


def _departure(pairs: Iterable[_Pair]) -> Departure:
    found = [_first_difference(one, other) for one, other in pairs]
    places = [place for place, _ in found if place is not None]
    return Departure(
        differing=len(places) / len(found),
        lost=fmean(lost for _, lost in found),
        first=quantile(places, 0.5) if places else None,
    )


def _overall(departures: Sequence[Departure]) -> Departure:
    firsts = [d.first for d in departures if d.first is not None]
    return Departure(
        differing=fmean(d.differing for d in departures),
        lost=fmean(d.lost for d in departures),
        first=quantile(firsts, 0.5) if firsts else None,
    )


def _first_difference(one: RequestResult, other: RequestResult) -> tuple[int | None, float]:
    """Where two texts part (None: they do not), and the share of the longer one that comes after it.

    A text that was cut at its token limit does not differ from one that goes on as it began.
    """
    shorter, longer = sorted((one, other), key=lambda r: len(r.text))
    a, b = shorter.text, longer.text
    if b.startswith(a) and (len(a) == len(b) or shorter.finish == "length"):
        return None, 0.0
    low, high = 0, len(a)  # a[:low] is common, a[:high + 1] is not
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low, 1 - low / len(b)
