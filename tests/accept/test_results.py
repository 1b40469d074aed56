"""Results on disk: bound to an image, whole or not there, listed, compared, and asked for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from imagebuilder.accept import beside, codec
from imagebuilder.accept.beside import main_level
from imagebuilder.accept.compare import compare
from imagebuilder.accept.model import RunResult
from imagebuilder.accept.record import Record, make_record
from imagebuilder.accept.results import (
    HTML,
    MARKDOWN,
    RUN,
    VERDICT,
    accepted,
    all_results,
    find,
    find_or_fail,
    keep,
    of_image,
    read_run,
    save,
    still_passes,
)
from imagebuilder.accept.schema import schema_of
from imagebuilder.accept.verdict import judge
from imagebuilder.cli.main import run as command
from imagebuilder.errors import ArtefactUnusable, NotAccepted, UsageProblem
from imagebuilder.stack.model import Load, Requirements
from imagebuilder.values import Digest
from tests.accept.synthetic import IMAGE, make_run
from tests.accept.test_report import Page

LOAD = Load(concurrency=(1,), pairing="starts", starts=3, rounds=3)
CU128 = Digest.of(b"cu128")


def passing(**changes: object) -> RunResult:
    return replace(make_run(load=LOAD), **changes)  # type: ignore[arg-type]


def failing(**changes: object) -> RunResult:
    return replace(make_run(load=LOAD, eagle3=54.1), **changes)  # type: ignore[arg-type]


def at(hour: int) -> str:
    return f"2026-11-30T{hour:02}:00:00.000+00:00"


def test_everything_is_written_and_read_back(tmp_path: Path) -> None:
    run = passing()
    stored = save(tmp_path, run)
    assert stored.folder == tmp_path / IMAGE.hex / "20261130T120000Z"
    assert {p.name for p in stored.folder.iterdir()} == {VERDICT, RUN, MARKDOWN, HTML}
    again = of_image(tmp_path, IMAGE.text)
    assert [s.record for s in again] == [codec.loads(Record, codec.dumps(stored.record))]
    assert judge(read_run(stored.folder)).outcome == "pass"


def test_the_verdict_is_what_its_schema_says(tmp_path: Path) -> None:
    schema = schema_of(Record)
    jsonschema.Draft202012Validator.check_schema(schema)
    for run in (passing(), failing(), make_run(load=LOAD, units=0, failure="it ended"), passing(smoke=None)):
        stored = save(tmp_path, run)
        document = json.loads((stored.folder / VERDICT).read_text())
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
        assert document["schema"] == 1 and document["kind"] == "acceptance"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "outcome": "maybe"}, schema, cls=jsonschema.Draft202012Validator)


def test_measurements_are_there_before_a_verdict(tmp_path: Path) -> None:
    folder = keep(tmp_path, make_run(load=LOAD, units=1))
    assert [s.record for s in all_results(tmp_path)] == [None]
    assert read_run(folder).units == 1
    keep(tmp_path, make_run(load=LOAD, units=2))
    assert read_run(folder).units == 2, "the same folder while the run goes on"
    with pytest.raises(NotAccepted):
        accepted(tmp_path, IMAGE)


def test_a_kill_leaves_no_half_file(tmp_path: Path) -> None:
    """Written over and over, and killed at some moment: what is there is whole."""
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.accept.test_results import passing\n"
        "from imagebuilder.accept.results import keep\n"
        "run = passing(); folder = keep(Path(sys.argv[1]), run); print('ready', flush=True)\n"
        "while True: keep(Path(sys.argv[1]), run)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (stored,) = all_results(tmp_path)
    assert read_run(stored.folder).units == 3
    save(tmp_path, passing())
    assert {p.name for p in stored.folder.iterdir()} == {VERDICT, RUN, MARKDOWN, HTML}, "leftovers are gone"


# ---------------------------------------------------------------- what push and deploy ask


def test_an_accepted_image(tmp_path: Path) -> None:
    save(tmp_path, passing())
    assert accepted(tmp_path, IMAGE).record


def test_an_image_without_a_result(tmp_path: Path) -> None:
    save(tmp_path, passing())
    with pytest.raises(NotAccepted, match="never accepted") as caught:
        accepted(tmp_path, CU128)
    assert caught.value.exit_code == 8 and "--unaccepted" in caught.value.hint


def test_a_rehearsal_accepts_nothing_and_is_named(tmp_path: Path) -> None:
    save(tmp_path, replace(passing(), config_digest=None, manifest_digest=None, runtime="process"))
    with pytest.raises(NotAccepted, match="never accepted") as caught:
        accepted(tmp_path, IMAGE)
    assert f"rehearsals of {passing().stack}, which never accept an image" in caught.value.seen


def test_an_image_that_failed(tmp_path: Path) -> None:
    save(tmp_path, failing())
    with pytest.raises(NotAccepted) as caught:
        accepted(tmp_path, IMAGE)
    assert "fail" in caught.value.seen and HTML in caught.value.hint


def test_the_latest_verdict_decides(tmp_path: Path) -> None:
    save(tmp_path, passing(started=at(10)))
    save(tmp_path, failing(started=at(11)))
    with pytest.raises(NotAccepted):
        accepted(tmp_path, IMAGE)
    save(tmp_path, passing(started=at(12)))
    last = accepted(tmp_path, IMAGE)
    assert last.record and last.record.attempt == 3 and last.record.before == ("pass", "fail")
    assert "attempt 3" in (last.folder / HTML).read_text()


def test_a_rehearsal_accepts_nothing(tmp_path: Path) -> None:
    stored = save(tmp_path, passing(config_digest=None, runtime="process"))
    assert stored.record and stored.record.outcome == "pass" and not stored.record.accepts
    assert stored.folder.parent.name == "rehearsals"
    assert any("rehearsal" in note.lower() for note in stored.record.notes)


def test_a_verdict_moved_to_another_image_is_refused(tmp_path: Path) -> None:
    stored = save(tmp_path, passing())
    other = tmp_path / CU128.hex
    stored.folder.parent.rename(other)
    with pytest.raises(ArtefactUnusable, match="not a result") as caught:
        accepted(tmp_path, CU128)
    assert IMAGE.text in caught.value.seen


BAD = {
    "empty": b"",
    "no JSON": b"pass",
    "another kind": b'{"outcome": "pass"}',
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe{}",
    "number too large": b'{"schema": 1e999}',
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_verdict_that_is_none(tmp_path: Path, data: bytes) -> None:
    stored = save(tmp_path, passing())
    (stored.folder / VERDICT).write_bytes(data)
    with pytest.raises(ArtefactUnusable, match="not a result"):
        accepted(tmp_path, IMAGE)


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b\x08\x00", b"{}", None])
def test_measurements_that_are_none(tmp_path: Path, data: bytes | None) -> None:
    stored = save(tmp_path, passing())
    path = stored.folder / RUN
    if data is None:
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.write_bytes(data)
    with pytest.raises(ArtefactUnusable, match="not a result"):
        read_run(stored.folder)


def test_a_later_schema_is_not_guessed_at(tmp_path: Path) -> None:
    stored = save(tmp_path, passing())
    document = json.loads((stored.folder / VERDICT).read_text())
    (stored.folder / VERDICT).write_text(json.dumps({**document, "schema": 2, "new": True}))
    with pytest.raises(ArtefactUnusable) as caught:
        accepted(tmp_path, IMAGE)
    assert "schema 2" in caught.value.seen


# ---------------------------------------------------------------- finding and comparing


def two(root: Path) -> None:
    save(root, failing(stack="cu128", config_digest=CU128.text, started=at(9)))
    save(root, passing(started=at(10)))


def test_results_are_found_by_stack_digits_and_name(tmp_path: Path) -> None:
    two(tmp_path)
    save(tmp_path, failing(started=at(12)))
    by_stack = find(tmp_path, "cu130")
    assert by_stack and by_stack.record and by_stack.record.outcome == "pass", "the latest that passed"
    assert find(tmp_path, CU128.short) == find(tmp_path, CU128.text) == find(tmp_path, "cu128")
    assert find(tmp_path, f"{IMAGE.short}/20261130T120000Z") not in (None, by_stack)
    assert find(tmp_path, "cu131") is None
    with pytest.raises(UsageProblem) as caught:
        find_or_fail(tmp_path, "cu131")
    assert caught.value.seen == "cu128, cu130"


def test_a_named_earlier_result_is_looked_up_when_saving(tmp_path: Path) -> None:
    two(tmp_path)
    require = Requirements(no_regression_against="cu130")
    slower = make_run(load=LOAD, baseline=70.0, eagle3=85.0, require=require)
    record = save(tmp_path, replace(slower, started=at(13))).record
    assert record and record.outcome == "fail"
    assert next(r for r in record.requirements if r.key == "no-regression-against").outcome == "fail"


def test_54_beside_96(tmp_path: Path) -> None:
    two(tmp_path)
    records = [s.record for s in all_results(tmp_path) if s.record]
    comparison = compare(records)
    assert comparison.head == ("cu128", "cu130")
    rows = {row.label: row.values for row in comparison.rows}
    assert rows["verdict"] == ("fail", "pass")
    assert rows["EAGLE-3, tok/s at 1"][1].endswith("(+78 %)")
    assert rows["speedup at 1"][0].startswith("0.6") and rows["speedup at 1"][1].startswith("1.0")
    assert not comparison.notes
    other = make_record(passing(scenario=replace(passing().scenario, model="/m")), judge(passing()))
    assert "another model" in compare([records[0], other]).notes[0]


def test_a_page_of_results_beside_each_other(tmp_path: Path) -> None:
    two(tmp_path)
    records = [s.record for s in all_results(tmp_path) if s.record]
    assert main_level(records) == 1
    page = beside.html(records)
    parsed = Page(page)
    assert not parsed.links and "script" not in parsed.tags and {"svg", "figure", "table"} <= parsed.tags
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page
    told = re.sub(r"<[^>]*>", "", page)
    for words in ("cu128 beside cu130", "fail", "+78 %", "Throughput with EAGLE-3"):
        assert words in told, words
    widths = [float(w) for w in re.findall(r'class="eagle3" style="width: ([\d.]+)%', page)]
    assert widths[1] == 100.0 and 50 < widths[0] < 60, "both on one scale"
    hostile = [replace(records[0], model='<script>"|x', stack="<b>"), replace(records[1], failure="<script>")]
    assert "script" not in Page(beside.html(hostile)).tags
    assert "| cu128 | cu130 |" in beside.markdown(records)


def test_results_that_share_nothing(tmp_path: Path) -> None:
    empty = make_run(load=LOAD, units=0, failure="the server ended")
    record = make_record(empty, judge(empty))
    other = make_run(load=replace(LOAD, concurrency=(4,)))
    assert main_level([record, make_record(other, judge(other))]) is None
    page = beside.html([record, record, make_record(other, judge(other))])
    Page(page)
    assert "no speedup was measured" in page
    assert page.count("cu130 2026-11-30 12:00") >= 3, "one stack twice: with its time"


def test_what_was_broken_off_is_called_so_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "cache"))
    keep(tmp_path / "results", passing(started=at(11)))
    name = f"{IMAGE.short}/20261130T110000Z"
    for words in (["results"], ["results", "cu130"], ["results", IMAGE.hex[:8]], ["results", name], ["list"]):
        assert command(words) == 0
        out = capsys.readouterr().out
        assert name in out and "broken off" in out, words
        assert "cu130" in out or words == ["list"]
    assert command(["results", "cu130", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["results"]
    assert (listed["result"], listed["verdict"]) == (name, None)
    assert command(["results", "cu130", "--format", "html"]) == 2
    assert "broken off" in capsys.readouterr().err
    save(tmp_path / "results", failing(stack="cu128", config_digest=CU128.text, started=at(9)))
    assert command(["results", "cu128", "cu130"]) == 0
    out = capsys.readouterr().out
    assert out.index(HTML) < out.index("broken off")
    assert command(["results", "nothing"]) == 2
    assert "cu128, cu130" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--results", str(tmp_path)]
    assert command(["results", *folder]) == 0
    assert "imagebuilder accept" in capsys.readouterr().err
    two(tmp_path)
    keep(tmp_path, passing(started=at(11)))
    assert command(["results", *folder]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 4 and "cu128  fail" in listed[1] and "broken off" in listed[3]
    assert command(["results", "cu128", "cu130", *folder]) == 0
    out = capsys.readouterr().out
    assert "+78 %" in out and HTML in out
    assert "broken off" not in out, "of several results of a stack one that was judged is taken"
    assert command(["results", "--json", *folder]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["verdict"] and r["verdict"]["outcome"] for r in document["results"]] == ["fail", "pass", None]
    assert command(["results", "nothing", *folder]) == 2
    assert "cu128, cu130" in capsys.readouterr().err
    assert command(["results", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$ref"] == "#/$defs/Record"


def test_a_pass_of_the_same_is_found_again(tmp_path: Path) -> None:
    run = passing(started=at(10))
    assert still_passes(tmp_path, IMAGE.text, run.scenario) is None
    stored = save(tmp_path, run)
    found = still_passes(tmp_path, IMAGE.text, run.scenario)
    assert found and found.folder == stored.folder
    assert still_passes(tmp_path, CU128.text, run.scenario) is None, "another image"
    assert still_passes(tmp_path, None, run.scenario) is None, "it was no rehearsal"
    for changed in (replace(run.scenario, files="sha256:other"), replace(run.scenario, eagle3=("other",))):
        assert still_passes(tmp_path, IMAGE.text, changed) is None, "asked otherwise"
    save(tmp_path, failing(started=at(11)))
    assert still_passes(tmp_path, IMAGE.text, run.scenario) is None, "the latest decides"


def test_a_rehearsal_that_passed_is_found_again(tmp_path: Path) -> None:
    run = passing(config_digest=None, runtime="process")
    stored = save(tmp_path, run)
    found = still_passes(tmp_path, None, run.scenario)
    assert found and found.folder == stored.folder
    assert still_passes(tmp_path, None, replace(run.scenario, stack="another")) is None


def test_pages_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two(tmp_path)
    folder = ["--results", str(tmp_path)]
    assert command(["results", "--format", "html", *folder]) == 2
    assert "beside each other" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert command(["results", "cu128", "cu130", "--format", "html", "--output", str(page), *folder]) == 0
    assert capsys.readouterr().out == "" and page.read_text().startswith("<!doctype html>")
    assert command(["results", "cu128", "cu130", "--format", "markdown", *folder]) == 0
    assert capsys.readouterr().out.startswith("# cu128 beside cu130\n")
    assert command(["results", "cu128", "--format", "json", *folder]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 1
