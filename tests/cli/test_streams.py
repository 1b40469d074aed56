"""What a command does when nobody reads, in a folder that is gone, and for a user without a home."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command import Machine, Outcome, wrong_artefacts
from tests.support.http_server import Server
from tests.support.small import Small

AS_ROOT = os.geteuid() == 0
VERBS = (
    "list", "show demo", "render demo", "check demo --explain", "check --help", "init demo --dry-run",
    "clean --dry-run", "doctor", "results", "results --schema", "diff demo cu130", "--help",
)  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(root=tmp_path)


def shell(machine: Machine, words: str, redirection: str) -> Outcome:
    """`imagebuilder WORDS REDIRECTION` in bash; the exit code is the command's, not the reader's."""
    line = f"{shlex.join(machine.command())} {words} {redirection}; exit ${{PIPESTATUS[0]}}"
    return run(machine, line)


def run(machine: Machine, line: str) -> Outcome:
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=machine.work,
        env=machine.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)


def unread(machine: Machine, words: str) -> int:
    """The exit code where the reader of both streams is gone from the start."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            machine.command(*words.split()),
            cwd=machine.work,
            env=machine.variables(),
            stdout=writer,
            stderr=writer,
            check=False,
        )
    finally:
        os.close(writer)
    return done.returncode


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_needs_to_read(verb: str, machine: Machine) -> None:
    """The exit code is what it is when somebody reads, and no word is said of it."""
    machine.environment["IMAGEBUILDER_INDEX_DEFAULT_URL"] = "http://127.0.0.1:9/"  # the same each time
    usual = shell(machine, verb, "")
    assert unread(machine, verb) == usual.code
    for redirection in ("| head -1", "2>&-", "<&- >&-"):
        outcome = shell(machine, verb, redirection)
        assert outcome.code == usual.code, outcome.err
        assert outcome.err == ("" if redirection == "2>&-" else usual.err)
        if redirection == "| head -1":
            assert outcome.out == "".join(usual.out.splitlines(keepends=True)[:1])


def test_an_error_keeps_its_code(machine: Machine) -> None:
    assert unread(machine, "show nowhere") == unread(machine, "frobnicate") == 2
    assert shell(machine, "show nowhere", "2>&-").code == 2
    assert shell(machine, "show nowhere", ">&- 2>&-").code == 2


def test_a_build_is_finished(machine: Machine) -> None:
    """And what is said does not get into a file that was opened under the number of a closed stream."""
    with Server() as server:
        small = Small(machine.work, server)
        for name in ("one", "two"):
            small.wheel(name)
        small.write("one", "two")
        machine.environment |= small.environment
        assert shell(machine, "build --builder direct s --output closed", "<&- >&- 2>&-").code == 0
        assert wrong_artefacts(machine.cache) == []
        assert unread(machine, "build --builder direct s --output unread") == 0
        machine.build("s", "--output", "usual")
    indexes = {(machine.work / name / "index.json").read_bytes() for name in ("closed", "unread", "usual")}
    assert len(indexes) == 1


@pytest.mark.parametrize(
    ("environment", "shown"),
    [({"PYTHONIOENCODING": "latin-1"}, "\\u2026"), ({"LC_ALL": "C"}, "…"), ({"LC_ALL": "C.UTF-8"}, "…")],
)
def test_what_the_terminal_cannot_show_is_no_error(
    environment: dict[str, str], shown: str, machine: Machine
) -> None:
    machine.environment |= environment
    outcome = shell(machine, "accept --help", "")
    assert outcome.code == 0 and f"all|none|0,1,{shown}" in outcome.out


def test_a_full_disk_behind_standard_output_is_said(machine: Machine) -> None:
    outcome = shell(machine, "show demo", "> /dev/full")
    assert outcome.code == 6
    assert outcome.err.count("No space left on device") == 1 and "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "verb",
    ["list", "build demo", "show demo", "lock demo", "init demo", "clean", "results", "check demo", "doctor"],
)
def test_a_folder_that_was_removed(verb: str, machine: Machine) -> None:
    line = f'mkdir gone; cd gone; rmdir "$PWD"; {shlex.join(machine.command())} {verb}'
    outcome = run(machine, line)
    assert (outcome.code, outcome.out) == (6, ""), outcome.err
    assert outcome.err.startswith("imagebuilder: the current folder") and "next:   cd" in outcome.err


@pytest.mark.network
@pytest.mark.parametrize(("where", "place"), [("HOME", "/proc"), ("IMAGEBUILDER_CACHE_DIR", "/proc/cache")])
def test_a_cache_where_the_system_makes_no_files(where: str, place: str, machine: Machine) -> None:
    environment = {k: v for k, v in machine.variables().items() if k != "IMAGEBUILDER_CACHE_DIR"}
    environment[where] = place
    for verb, code in (("list", 0), ("build demo --builder direct", 6), ("fetch demo", 6), ("lock demo", 6)):
        outcome = machine.run(*verb.split(), env=environment)
        assert outcome.code == code, outcome.err
        assert "Traceback" not in outcome.err
        assert code == 0 or "IMAGEBUILDER_CACHE_DIR" in outcome.err


def test_without_home_the_list_of_users_decides(
    imagebuilder: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container's user often has no entry there: `docker run --user 12345`."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("IMAGEBUILDER_CACHE_DIR")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))
    listed = imagebuilder("list")
    assert listed.code == 0 and str(tmp_path / ".cache" / "imagebuilder") in listed.out
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    outcome = imagebuilder("list")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no home folder" in outcome.err and "set HOME" in outcome.err


@pytest.mark.parametrize(
    ("variable", "words", "code"),
    [
        ("SSL_CERT_FILE", ("list",), 0),
        ("HOME", ("list",), 2),
        ("IMAGEBUILDER_CACHE_DIR", ("list",), 2),
        ("", ("snapshot", "--python", "~nobody-here/bin/python"), 2),
        ("", ("push", "demo", "--to", "localhost:1/a:x", "--sign-key", "~nobody-here/key"), None),
    ],
)
def test_the_home_of_a_user_that_does_not_exist(
    variable: str,
    words: tuple[str, ...],
    code: int | None,
    imagebuilder: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable:
        monkeypatch.setenv(variable, "~nobody-here/x")
    outcome = imagebuilder(*words)
    assert outcome.code not in (1, None) if code is None else outcome.code == code, outcome.err
    assert outcome.code == 0 or "next:" in outcome.err


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
def test_a_home_that_may_not_be_written(machine: Machine) -> None:
    machine.home.chmod(0o500)
    environment = {k: v for k, v in machine.variables().items() if k != "IMAGEBUILDER_CACHE_DIR"}
    outcome = machine.run("build", "demo", "--builder", "direct", env=environment)
    assert outcome.code == 6 and "IMAGEBUILDER_CACHE_DIR" in outcome.err, outcome.err
