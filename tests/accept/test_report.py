"""Reports: whole, escaped, self-contained, and without secrets."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept.charts import by_level, distribution, nice_ticks, over_time
from imagebuilder.accept.looks import Estimate
from imagebuilder.accept.model import Difference, RunResult
from imagebuilder.accept.record import Record, make_record
from imagebuilder.accept.report import html, markdown
from imagebuilder.accept.statistics import Interval
from imagebuilder.accept.verdict import judge
from imagebuilder.stack.model import Load
from tests.accept.synthetic import make_run, with_host

LOAD = Load(concurrency=(1, 8), decisive=(1,), pairing="starts", starts=3, rounds=3)


def reported(run: RunResult) -> tuple[RunResult, Record]:
    return run, make_record(run, judge(run))


class Page(HTMLParser):
    """Checks nesting, and collects tags and addresses."""

    VOID = ("meta", "br", "hr", "img", "link", "input", "line", "circle", "path", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()


@pytest.mark.parametrize("speed", [54.1, 96.1])
def test_the_page_holds_everything_and_asks_for_nothing(speed: float) -> None:
    page = html(*reported(with_host(make_run(load=LOAD, eagle3=speed))))
    parsed = Page(page)
    assert not parsed.links, "nothing outside the page"
    assert "script" not in parsed.tags
    assert not re.search(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert {"svg", "table", "figure"} <= parsed.tags
    assert "Undefined" not in page and "None" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)


def test_the_page_says_what_it_found() -> None:
    page = html(*reported(with_host(make_run(load=LOAD, eagle3=54.1))))
    assert "✕ fail" in page and "0.60" in page
    for word in ("Throughput", "Time to first token", "First token at 8 streams", "Accept length by kind",
                 "multilingual", "Clock", "RTX PRO 6000", "Environment"):  # fmt: skip
        assert word in page, word


HOSTILE = '<script>alert(1)</script>&"|`\n# heading'


def test_text_of_others_is_only_text() -> None:
    run = make_run(load=LOAD, eagle3=54.1, right=lambda arm, task, time: not (arm == "eagle3" and task < 3))
    rounds = tuple(
        replace(r, requests=tuple(replace(q, text=HOSTILE) if q.correct is False else q for q in r.requests))
        for r in run.rounds
    )
    difference = Difference(setting=HOSTILE, baseline=HOSTILE, eagle3=HOSTILE, weight="noted", why=HOSTILE)
    run = replace(
        run,
        rounds=rounds,
        differences=(difference,),
        failure=HOSTILE,
        scenario=replace(run.scenario, model=HOSTILE),
    )
    page = html(*reported(run))
    assert "script" not in Page(page).tags
    assert "&lt;script&gt;" in page
    text = markdown(*reported(run))
    rows = [line for line in text.splitlines() if line.startswith("| complete-run")]
    assert len(rows) == 1 and rows[0].replace("\\|", "").count("|") == 6, "one row of one table"


def test_keys_on_a_command_line_are_not_shown() -> None:
    run = make_run(load=LOAD)
    command = (*run.scenario.eagle3, "--api-key", "hunter2", "--admin-api-key=hunter3")
    run = replace(run, scenario=replace(run.scenario, eagle3=command))
    for text in (html(*reported(run)), markdown(*reported(run))):
        assert "hunter" not in text and "redacted" in text


@pytest.mark.parametrize("units", [0, 1, 2])
def test_a_run_that_was_broken_off_has_a_report(units: int) -> None:
    run = make_run(load=LOAD, units=units, failure="the server ended")
    Page(html(*reported(run)))
    assert "the server ended" in markdown(*reported(run))


def test_markdown_tells_the_figures() -> None:
    text = markdown(*reported(make_run(load=LOAD, eagle3=54.1)))
    assert text.startswith("# cu130: fail\n")
    assert "| min-speedup at 1 | > 1 | 0.60" in text
    assert "(does not count)" in text
    assert "\n\n\n\n" not in text


# ---------------------------------------------------------------- charts


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_span_and_are_few(low: float, width: float) -> None:
    ticks = nice_ticks(low, low + width)
    assert ticks[0] <= low + 1e-9 * abs(low) + 1e-9 * width
    assert ticks[-1] >= (low + width) * (1 - 1e-9) - 1e-9 * width - 1e-9 * abs(low)
    assert 2 <= len(ticks) <= 9


def test_charts_of_nothing_are_none() -> None:
    assert by_level("t", "u", [1], [("a", "baseline", [None])]) is None
    assert distribution("t", "u", [("a", "baseline", [])]) is None
    assert over_time("t", "x", "y", [("a", "baseline", [])]) is None


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40))
def test_marks_lie_inside_the_chart(values: list[float]) -> None:
    figures = [
        Estimate(value=v, units=3, shown=Interval(low=v / 2, high=v * 8), decides=None) for v in values
    ]
    chart = by_level("t", "u", list(range(len(values))), [("a", "baseline", figures)])
    assert chart
    for dot in chart.series[0].dots:
        assert dot.low is not None and dot.high is not None
        assert 12 <= dot.high <= dot.y <= dot.low <= 196
        assert 46 <= dot.x <= 350
    curve = distribution("t", "u", [("a", "baseline", values)])
    assert curve
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", curve.series[0].path)]
    assert all(46 <= x <= 350 for x in numbers[::2]) and all(12 <= y <= 196 for y in numbers[1::2])
