"""`imagebuilder check`, and `build` which checks first: small real wheels from a real index on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.command import Outcome
from tests.support.http_server import Server
from tests.support.schemas import valid_sarif, validated
from tests.support.small import Small

HEAD = 'gpus = ["sm_120"]\ndriver = "570.124.06"\n'
WAIVER = '[[waive]]\ncode = "driver.too-old"\nreason = "only a rehearsal"\n'


class Checked(Outcome):
    """An outcome of `check --json`."""

    @property
    def findings(self) -> dict[str, dict[str, Any]]:
        """By code."""
        return {f["code"]: f for f in validated("check", self.out)["findings"]}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An index, a current folder, and the command."""

    small: Small
    call: Callable[..., Checked]


@pytest.fixture
def bench(
    imagebuilder: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    with Server() as server:
        small = Small(tmp_path / "work", server)
        for name, value in small.environment.items():
            monkeypatch.setenv(name, value)
        files = {"shared.txt": b"one"}
        small.wheel("nvidia_cuda_runtime", "13.0.96", files=files)
        small.wheel("other", files={"shared.txt": b"another"})
        yield Bench(small=small, call=lambda *words: Checked(**vars(imagebuilder(*words))))


def test_findings_as_json_and_exit_code(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD)
    checked = bench.call("check", "s", "--json")
    assert checked.code == 5
    document = validated("check", checked.out)
    assert (document["schema"], document["kind"]) == (1, "check")
    error = checked.findings["driver.too-old"]
    assert set(error) >= {"code", "severity", "what", "evidence", "fix", "place", "waived"}
    assert (error["severity"], error["place"], error["waived"]) == ("error", "target.driver", None)
    assert "580.65.06" in error["what"] and "570.124.06" in error["what"]
    collision = checked.findings["path.collision-of-text"]
    assert (collision["severity"], collision["evidence"]) == ("warning", ["shared.txt"])
    assert "driver.too-old" in checked.err and "next:" in checked.err


def test_a_waiver_lets_it_pass_without_a_new_lock(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD)
    assert bench.call("check", "s").code == 5
    locked = bench.small.lock.read_bytes()
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD, tail=WAIVER)
    checked = bench.call("check", "s", "--json")
    assert checked.code == 0
    assert checked.findings["driver.too-old"]["waived"] == "only a rehearsal"
    assert bench.small.lock.read_bytes() == locked
    bench.small.write(
        "nvidia-cuda-runtime", "other", head=HEAD.replace("570.124.06", "590.48.01"), tail=WAIVER
    )
    assert bench.call("lock", "s").code == 0  # the target changed
    assert bench.call("check", "s", "--json").findings["stack.waiver-unused"]["severity"] == "warning"


def test_build_stops_at_errors_and_records_findings(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD)
    assert bench.call("build", "s", "--builder", "direct").code == 5
    assert not bench.small.image.exists()
    assert bench.call("build", "s", "--builder", "direct", "--no-check").code == 0
    record = bench.small.image.with_name("s.build.json")
    assert json.loads(record.read_text())["findings"] == []
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD, tail=WAIVER)
    assert bench.call("build", "s", "--builder", "direct").code == 0
    found = {f["code"]: f["waived"] for f in json.loads(record.read_text())["findings"]}
    assert found["driver.too-old"] == "only a rehearsal" and found["path.collision-of-text"] is None


def test_sarif(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD, tail=WAIVER)
    checked = bench.call("check", "s", "--sarif", "found.sarif")
    assert checked.code == 0
    log = valid_sarif(Path("found.sarif").read_text())
    (told,) = log["runs"]
    rules = [rule["id"] for rule in told["tool"]["driver"]["rules"]]
    results = {r["ruleId"]: r for r in told["results"]}
    assert log["version"] == "2.1.0" and set(results) == set(rules)
    assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in told["results"])
    place = results["driver.too-old"]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == "stacks/s.toml"
    lines = Path(place).read_text().splitlines()

    def line(code: str) -> str:
        return lines[results[code]["locations"][0]["physicalLocation"]["region"]["startLine"] - 1]

    assert line("driver.too-old").startswith("driver = ")
    assert "nvidia-cuda-runtime" in line("path.collision-of-text")
    assert results["driver.too-old"]["suppressions"][0]["justification"] == "only a rehearsal"
    assert "suppressions" not in results["path.collision-of-text"]


def test_sarif_names_any_file(bench: Bench) -> None:
    """Artifact locations are URIs: a folder with a space or an umlaut in its name is spelled as one."""
    bench.small.write("other", head='gpus = ["sm_120"]\n')
    (bench.small.folder / "stacks").rename(bench.small.folder / "our stäcks")
    assert bench.call("check", "our stäcks/s.toml", "--sarif", "found.sarif").code == 0
    (told,) = valid_sarif(Path("found.sarif").read_text())["runs"]
    assert told["results"] == []
    tail = '[[waive]]\ncode = "path.collision"\nreason = "of old"\n'
    with Path("our stäcks/s.toml").open("a") as file:
        file.write(tail)
    assert bench.call("check", "our stäcks/s.toml", "--sarif", "found.sarif").code == 0
    (told,) = valid_sarif(Path("found.sarif").read_text())["runs"]
    (result,) = told["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert (result["ruleId"], unquote(uri)) == ("stack.waiver-unused", "our stäcks/s.toml")


def test_text_is_worst_first(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD)
    lines = bench.call("check", "s").out.splitlines()
    first = [line.split()[0] for line in lines if line.startswith(("error", "warning", "note"))]
    assert first == sorted(first, key=["error", "warning", "note"].index)
    assert any(line.startswith("  → ") for line in lines)


def test_how_much_rests_on_tables_is_said(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD, tail=WAIVER)
    found = bench.call("check", "s", "--json").findings
    assert set(found) == {"driver.too-old", "path.collision-of-text"}  # by drivers.toml, by two wheels
    last = bench.call("check", "s").out.splitlines()[-1]
    assert last == "1 from the artefacts alone, 1 with a table of the field"


def test_a_second_check_asks_nobody(bench: Bench) -> None:
    bench.small.write("nvidia-cuda-runtime", "other", head=HEAD)
    first = bench.call("check", "s", "--json")
    asked = len(bench.small.server.paths)
    assert bench.call("check", "s", "--json").out == first.out
    assert len(bench.small.server.paths) == asked


def test_a_file_that_is_gone(bench: Bench) -> None:
    bench.small.write("other")
    assert bench.call("lock", "s").code == 0
    bench.small.index.remove("other")
    checked = bench.call("check", "s", "--json")
    assert checked.code == 5
    assert checked.findings["index.file-gone"]["place"] == "other"
    assert bench.call("check", "s", "--json").code == 5  # such an answer is not kept


def test_whether_files_are_still_there_is_asked_for(bench: Bench) -> None:
    bench.small.write("other")
    assert bench.call("check", "s").code == 0
    bench.small.index.remove("other")
    assert bench.call("check", "s").code == 0  # nothing needs to be read again
    checked = bench.call("check", "s", "--json", "--online")
    assert checked.code == 5 and checked.findings["index.file-gone"]["place"] == "other"


def test_a_yanked_file(bench: Bench) -> None:
    bench.small.write("other")
    assert bench.call("check", "s").code == 0
    bench.small.index.remove("other")
    bench.small.wheel("other", files={"shared.txt": b"another"}, yanked="it eats data")
    checked = bench.call("check", "s", "--json", "--online")
    assert checked.code == 0
    assert checked.findings["index.yanked"]["severity"] == "warning"
    assert checked.findings["index.yanked"]["evidence"] == ["its reason: it eats data"]


PATCH = """--- a/other/text.py
+++ b/other/text.py
@@ -2,2 +2,2 @@
 {context}
-# text
+# other text
"""


def test_patches_are_tried_on_the_wheels(bench: Bench) -> None:
    bench.small.wheel("patched", files={"other/text.py": b"one\n# text\n# text\n"})
    patch = bench.small.folder / "stacks" / "a.patch"
    bench.small.write("patched", tail='patches = ["a.patch"]\n')
    patch.write_text(PATCH.format(context="# text"))
    assert bench.call("check", "s").code == 0
    patch.write_text(PATCH.format(context="# texts"))
    assert bench.call("lock", "s").code == 0
    checked = bench.call("check", "s", "--json")
    assert checked.code == 5
    misfit = checked.findings["stack.patch-does-not-apply"]
    assert "a.patch" in misfit["what"] and "other/text.py" in misfit["what"]
    assert any("# text" in line for line in misfit["evidence"] if line.startswith("seen: "))
    assert any("# texts" in line for line in misfit["evidence"] if line.startswith("wanted: "))
    paths = len(bench.small.server.seen)
    assert bench.call("check", "s", "--json").out == checked.out
    assert len(bench.small.server.seen) == paths


def test_offline_what_was_not_read_is_told(bench: Bench) -> None:
    bench.small.write("other")
    assert bench.call("lock", "s").code == 0
    checked = bench.call("check", "s", "--json", "--offline")
    assert checked.code == 0
    assert checked.findings["stack.not-read"]["severity"] == "warning"


def test_wheels_beside_the_lock_are_read_offline(bench: Bench, tmp_path: Path) -> None:
    bench.small.write("other")
    assert bench.call("fetch", "s").code == 0
    (tmp_path / "cache").rename(tmp_path / "old-cache")
    assert "stack.not-read" not in bench.call("check", "s", "--json", "--offline").findings


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["check"], 2, "Missing argument"),
        (["check", "no-such-stack"], 2, "no stack called"),
        (["check", "--explain", "gpu.no-kode"], 2, "gpu.no-code"),
        (["check", "--explain", "gpu.no-code"], 0, ""),
        (["check", "--explain"], 0, ""),
    ],
)
def test_usage(bench: Bench, arguments: list[str], code: int, said: str) -> None:
    outcome = bench.call(*arguments)
    assert outcome.code == code and said in outcome.err
