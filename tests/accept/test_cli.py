"""`imagebuilder accept` as it is typed: exit codes, words, and what it leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.accept import results
from imagebuilder.cli.acceptance import newest_acceptance
from tests.support.command import ROOT, WAIT, Machine

SPEED = '"--sim-speed", "2000"'
FASTER = '"--sim-speed", "3200"'
QUICK = f"""
[acceptance]
model = "m"
draft = "d"
server = ["python3", "-m", "sglang_simulator"]
port = 8000
gpus = "none"
startup-timeout = 240
request-timeout = 240
arguments = ["--sim-noise", "0"]
baseline = {{ arguments = [{SPEED}] }}
eagle3 = {{ arguments = [{FASTER}, "--sim-accept", "2.6"] }}

[acceptance.load]
concurrency = [2]
requests = 6
output-tokens = 200
warmup-requests = 0
pairing = "rounds"
rounds = 2
"""


def placed(folder: Path, change: Callable[[str], str] = lambda text: text) -> Machine:
    """A machine with the demo stack, its [acceptance] made quick and changed."""
    machine = Machine(root=folder)
    stacks = machine.work / "stacks"
    shutil.copytree(ROOT / "stacks" / "demo", stacks / "demo")
    text = (ROOT / "stacks" / "demo.toml").read_text()
    head, _, rest = text.partition("# Five times as fast")
    (stacks / "demo.toml").write_text(head + change(QUICK) + "\n[deploy" + rest.partition("\n[deploy")[2])
    shutil.copy(ROOT / "stacks" / "pylock.demo.toml", stacks)
    return machine


def rehearse(machine: Machine, *more: str) -> tuple[int, str, str]:
    done = machine.run("accept", "demo", "--runtime", "process", "--quiet", *more)
    return done.code, done.out, done.err


def test_a_rehearsal_that_passes(tmp_path: Path) -> None:
    machine = placed(tmp_path)
    code, out, err = rehearse(machine)
    assert code in (0, 8), err  # two rounds on a busy machine may stay unclear
    assert "a rehearsal without the image" in err
    headline, report = out.splitlines()
    assert re.fullmatch(r"(pass|inconclusive|fail): EAGLE-3 over baseline: .* at 2 streams.*", headline)
    assert Path(report).is_file()
    [stored] = results.all_results(machine.work / "results")
    assert stored.record is not None
    assert not stored.record.accepts, "a rehearsal accepts nothing"
    shown = newest_acceptance(machine.work, None, "demo")
    assert shown is not None and shown.verdict == f"{stored.record.outcome} (rehearsal)"
    run = results.read_run(stored.folder)
    assert run.units == 2
    assert {r.error for round_ in run.rounds for r in round_.requests} == {""}
    assert len({p.id for p in run.prompts if p.kind == "known"}) >= 150


def test_where_no_result_can_be_kept_nothing_is_started(tmp_path: Path) -> None:
    machine = placed(tmp_path)
    (machine.work / "file").touch()
    done = machine.run("accept", "demo", "--runtime", "process", "--results", "file/below")
    assert done.code == 6 and "name another folder with --results" in done.err, done.err
    assert "server" not in done.err and "smoke" not in done.err


def test_what_passed_is_shown_and_not_run_again(tmp_path: Path) -> None:
    machine = placed(tmp_path, lambda text: text.replace("rounds = 2", "rounds = 3\nstart-variation = 0.002"))
    machine.environment["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"
    first = machine.run("accept", "demo", "--runtime", "auto", "--if-needed")
    assert "no Docker Engine answers" in first.err and "a rehearsal in processes" in first.err
    [stored] = results.all_results(machine.work / "results")
    assert stored.record is not None
    again = machine.run("accept", "demo", "--runtime", "auto", "--if-needed", "--json")
    if stored.record.outcome == "pass":
        assert (first.code, again.code) == (0, 0), first.err
        assert f"nothing to do: passed at {stored.record.started}" in again.err
        told = json.loads(again.out)
        assert (told["folder"], told["record"]["started"]) == (str(stored.folder), stored.record.started)
    else:  # a busy machine: then it is needed
        assert len(results.all_results(machine.work / "results")) == 2


def test_an_image_that_is_slower_is_not_accepted(tmp_path: Path) -> None:
    machine = placed(tmp_path, lambda text: text.replace('"3200"', '"700"'))
    code, out, err = rehearse(machine, "--json")
    assert code == 8, err
    told = json.loads(out)
    assert told["kind"] == "accept"
    assert told["record"]["outcome"] in ("fail", "inconclusive")
    assert "not accepted" in err
    assert "min-speedup" in err


def test_a_server_that_crashes_under_load(tmp_path: Path) -> None:
    machine = placed(
        tmp_path, lambda t: t.replace('"--sim-accept", "2.6"', '"--sim-fault", "crash-after=150"')
    )
    code, _, err = rehearse(machine)
    assert code == 8
    assert "the eagle3 server ended under load (exit status 1)" in err
    assert "CUDA error: an illegal memory access" in err
    assert "Traceback" not in err
    [stored] = results.all_results(machine.work / "results")
    run = results.read_run(stored.folder)
    assert "ended under load" in run.failure
    assert run.surveys("baseline"), "what was measured before is kept"


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    machine = placed(tmp_path, lambda t: t.replace('"--sim-noise", "0"', '"--sim-fault", "start-crash"'))
    code, _, err = rehearse(machine)
    assert code == 8
    assert "the baseline server ended while starting" in err
    assert "out of memory" in err


def test_what_would_be_run(tmp_path: Path) -> None:
    done = placed(tmp_path).run("accept", "demo", "--dry-run")
    assert done.code == 0
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert "--speculative-algorithm EAGLE3" in lines["eagle3"]
    assert "--speculative" not in lines["baseline"]
    assert lines["load"].startswith("6 mixed requests, 2 at a time")
    assert lines["units"].startswith("2, at most 2")
    assert not (tmp_path / "work" / "results").exists()


def edited(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


WRONG: dict[str, tuple[Callable[[str], str], tuple[str, ...], int, str]] = {
    "no acceptance": (lambda _: "", (), 2, "a section [acceptance] in the stack file"),
    "an unknown set": (edited("rounds = 2", 'rounds = 2\nprompts = "poems"'), (), 2, "no prompt set 'poems'"),
    "strange GPUs": (str, ("--gpus", "one"), 2, "all, none, or numbers"),
    "a GPU twice": (str, ("--gpus", "0,0"), 2, "all, none, or numbers"),
    "the wrong algorithm": (
        edited('"--sim-accept", "2.6"', '"--speculative-algorithm", "EAGLE"'), (), 5, "not EAGLE3",
    ),
    "a baseline that speculates": (
        edited("[" + SPEED, '["--speculative-num-steps", "3"'), (), 5, "would speculate",
    ),
    "a secret that is not set": (
        edited("port = 8000", 'port = 8000\nsecrets = ["NOT_SET"]'), (), 5, "NOT_SET is not set",
    ),
    "a program that is not there": (
        edited('["python3", "-m", "sglang_simulator"]', '["no-such-sglang"]'), (), 6, "cannot be started",
    ),
    "an unknown option": (str, ("--gpu", "all"), 2, "No such option"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, case: str) -> None:
    change, more, code, words = WRONG[case]
    ended, _, err = rehearse(placed(tmp_path, change), *more)
    assert (ended, words in err) == (code, True), err
    assert "Traceback" not in err


def test_an_image_that_is_not_built(tmp_path: Path) -> None:
    done = placed(tmp_path).run("accept", "demo")
    assert done.code == 2
    assert "demo is not built" in done.err
    assert "imagebuilder build demo" in done.err


def servers(machine: Machine) -> list[int]:
    """Processes that run in a folder of this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(machine.root) in str((entry / "cwd").readlink()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_from_outside(tmp_path: Path, how: signal.Signals) -> None:
    """No server goes on, and what was measured can be read."""
    machine = placed(tmp_path, edited("rounds = 2", "rounds = 300"))
    process = machine.start("accept", "demo", "--runtime", "process", "--quiet")
    folder = machine.work / "results"
    while not (any(folder.rglob("run.json.gz")) and results.read_run(kept(folder)).units > 1):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(how)
    _, err = process.communicate(timeout=WAIT)
    until(lambda: not servers(machine), "servers were left")
    if how is not signal.SIGKILL:
        assert process.returncode == 130
        assert "Traceback" not in err
        assert results.read_run(kept(folder)).failure == "interrupted"
    assert results.read_run(kept(folder)).units > 1
    [stored] = results.all_results(folder)
    assert stored.record is None


def kept(folder: Path) -> Path:
    return next(folder.rglob("run.json.gz")).parent
