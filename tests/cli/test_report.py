"""How progress looks, with a clock that the test turns."""

from __future__ import annotations

import io
import json
import re

import pytest

from imagebuilder.cli.report import Bars, JsonLines, Plain, human, reporter_for
from imagebuilder.progress import Silent


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_tell_amount_share_and_rate() -> None:
    out, clock = io.StringIO(), Clock()
    with Plain(out, every=10, clock=clock).task("downloading", total=200_000_000) as task:
        task.advance(1)
        clock.now = 10
        task.advance(99_999_999)
        clock.now = 20
        task.advance(100_000_000)
    assert out.getvalue().splitlines() == [
        "downloading: 100 MB of 200 MB (50%), 10 MB/s",
        "downloading: 200 MB of 200 MB (100%), 10 MB/s",
        "downloading: done, 200 MB, 10 MB/s",
    ]


def test_a_failed_task_says_so() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="x"), Plain(out, clock=Clock()).task("work"):
        raise ValueError("x")
    assert out.getvalue() == "work: failed\n"


def test_json_lines_are_one_object_each() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = JsonLines(out, clock=clock)
    reporter.note("hello")
    with reporter.task("layers", total=2, unit="layer") as task:
        task.advance(1)
        clock.now = 1
        task.advance(1)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["note", "begin", "moved", "end"]
    assert events[-1] == {
        "event": "end",
        "label": "layers",
        "done": 2,
        "total": 2,
        "unit": "layer",
        "failed": False,
    }


def test_bars_leave_only_notes_behind() -> None:
    out = io.StringIO()
    reporter = Bars(out)
    with reporter.task("downloading", total=10) as task:
        task.advance(10)
        reporter.note("a [note] with brackets")
    assert "a [note] with brackets" in out.getvalue()


def test_bars_show_amount_rate_and_time_left() -> None:
    """As drawn in the middle of a download and of making layers."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    reporter = reporter_for("auto", out)
    assert isinstance(reporter, Bars)
    with (
        reporter.task("downloading", total=1_000_000_000) as files,
        reporter.task("layers of demo", total=4, unit="layer") as layers,
    ):
        for _ in range(3):
            files.advance(100_000_000)
            layers.advance(1)
        reporter._progress.refresh()
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert re.search(r"downloading .*300 MB \S+ [kMGT]?B/s .*\d:\d\d:\d\d", drawn), drawn
    assert re.search(r"layers of demo .*3 layers ", drawn), drawn


@pytest.mark.parametrize(
    ("style", "quiet", "kind"),
    [
        ("auto", False, Plain),
        ("plain", False, Plain),
        ("json", False, JsonLines),
        ("bars", False, Bars),
        ("none", False, Silent),
    ],
)
def test_a_stream_that_is_no_terminal_gets_plain_lines(style: str, quiet: bool, kind: type) -> None:
    assert type(reporter_for(style, io.StringIO(), quiet=quiet)) is kind


def test_quiet_still_warns() -> None:
    out = io.StringIO()
    reporter = reporter_for("auto", out, quiet=True)
    reporter.note("no")
    reporter.warn("yes")
    assert out.getvalue() == "warning: yes\n"


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (1720000000, "B", "1.72 GB"),
        (5e12, "B", "5 TB"),
        (1, "layer", "1 layer"),
        (3, "layer", "3 layers"),
    ],
)
def test_human_amounts(amount: float, unit: str, text: str) -> None:
    assert human(amount, unit) == text
