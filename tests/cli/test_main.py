"""The command line's frame: help, exit codes, and what is never shown to a user."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

from imagebuilder.cli import main as frame
from imagebuilder.cli.main import VERBS, run
from imagebuilder.errors import ArtefactUnusable
from tests.support.command import Outcome
from tests.support.http_server import Server
from tests.support.small import Small

Call = Callable[..., Outcome]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_there_and_has_help(verb: str, imagebuilder: Call) -> None:
    assert isinstance(import_module(f"imagebuilder.cli.{verb}").command, click.Command)
    outcome = imagebuilder(verb, "--help")
    assert outcome.code == 0
    assert f"Usage: imagebuilder {verb}" in outcome.out


def test_the_verbs_of_help_are_the_files() -> None:
    files = {p.stem for p in Path(frame.__file__).parent.glob("*.py")}
    with_command = {
        name
        for name in files - {"__init__", "main"}
        if hasattr(import_module(f"imagebuilder.cli.{name}"), "command")
    }
    assert with_command == set(VERBS)


def test_an_unknown_verb_names_the_nearest(imagebuilder: Call) -> None:
    outcome = imagebuilder("buidl", "demo")
    assert outcome.code == 2
    assert "'build'" in outcome.err


def test_an_unknown_stack_says_where_it_looked(imagebuilder: Call) -> None:
    outcome = imagebuilder("show", "dmeo")
    assert outcome.code == 2
    assert "stacks/NAME.toml" in outcome.err
    assert "demo" in outcome.err
    assert "Traceback" not in outcome.err


NEXT: list[tuple[tuple[str, ...], int, str, str]] = [
    (("push", "folder"), 2, "there is no stack called 'folder'", "known here"),
    (("push", "./folder"), 2, "there is no image in ./folder", "next:   imagebuilder list"),
    (("push", "gone.tar"), 2, "there is no image in gone.tar", "an OCI layout (a folder), or a tar file"),
    (("build", "./folder"), 2, "there is no stack file", "is a folder"),
    (("build", "./gone.toml"), 2, "there is no stack file", "next:   imagebuilder init NAME, of "),
    (("check", "stacks/pylock.demo.toml"), 2, "is a lock (PEP 751), not a stack file", "stacks/demo.toml\n"),
    (("check", "lock.toml"), 2, "is a lock (PEP 751), not a stack file", "the path of its .toml file\n"),
    (("build", "demo", "--all"), 2, "do not go together", "next:   imagebuilder build --help\n"),
    (("evidence", "A B"), 2, "is not an image reference", "next:   imagebuilder evidence --help\n"),
    (("deploy", "docker", "demo", "--rollback", "--dry-run"), 2, "goes alone",
     "next:   imagebuilder deploy docker --help\n"),
    (("snapshot", "--container", "nope"), 6, "no Docker Engine answers", "or set DOCKER_HOST\n"),
    (("build", "demo", "--builder", "direct", "--load"), 6, "no Docker Engine", "or set DOCKER_HOST\n"),
    (("build", "demo", "--builder", "docker"), 6, "no Docker Engine answers", "or use --builder direct"),
]  # fmt: skip


@pytest.mark.parametrize("row", NEXT, ids=[" ".join(row[0]) for row in NEXT])
def test_what_to_do_next(
    row: tuple[tuple[str, ...], int, str, str], imagebuilder: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, code, what, then = row
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert imagebuilder("init", "demo").code == 0
    Path("folder").mkdir()
    shutil.copy("stacks/pylock.demo.toml", "lock.toml")
    outcome = imagebuilder(*words)
    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    assert what in outcome.err and then in outcome.err, outcome.err


def test_a_release_that_is_not_there(
    imagebuilder: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server() as server:
        small = Small(tmp_path / "work", server)
        for name, value in small.environment.items():
            monkeypatch.setenv(name, value)
        small.wheel("one", "1.0")
        small.wheel("one", "2.0")
        outcome = imagebuilder("matrix", "one==99", "--against", "one")
    assert outcome.code == 2 and "2 releases with wheels, 2.0 the newest" in outcome.err, outcome.err
    assert "--stack STACK" in outcome.err and "--index" not in outcome.err


def test_locking_offline_says_so_once(imagebuilder: Call) -> None:
    assert imagebuilder("init", "demo").code == 0
    Path("stacks/pylock.demo.toml").unlink()
    stack = Path("stacks/demo.toml")
    stack.write_text(stack.read_text().replace('name = "demo"', 'name = "mine"'))
    outcome = imagebuilder("build", "stacks/demo.toml", "--offline", "--builder", "direct")
    assert outcome.code == 13
    assert outcome.err.count("imagebuilder is offline") == 1, outcome.err
    assert "without --offline" in outcome.err and "mirror" not in outcome.err


def test_a_broken_stack_lists_every_problem(imagebuilder: Call) -> None:
    Path("stacks").mkdir()
    Path("stacks/bad.toml").write_text(
        'schema = 1\nname = "bad"\n[targt]\npython = 3\n[base]\ndebian = { suite = 7 }\n'
    )
    outcome = imagebuilder("build", "bad")
    assert outcome.code == 3
    assert "targt" in outcome.err
    assert "target" in outcome.err
    assert "suite" in outcome.err
    assert not Path("images").exists()


def test_init_says_what_it_wrote_and_what_it_kept(imagebuilder: Call) -> None:
    planned = imagebuilder("init", "demo", "--dry-run")
    files = planned.out.split()
    assert {"stacks/demo.toml", "stacks/pylock.demo.toml"} < set(files) and not Path("stacks").exists()
    first = imagebuilder("init", "demo")
    assert (first.code, first.out.split(), first.err) == (0, files, "")
    again = imagebuilder("init", "demo")
    assert (again.code, again.out) == (0, "")
    assert again.err == f"there already, the same, and kept: {', '.join(files)}\n"
    Path("stacks/demo.toml").unlink()
    for words, there in ((("--dry-run",), False), ((), True)):
        repaired = imagebuilder("init", "demo", *words)
        assert (repaired.code, repaired.out.split()) == (0, files[:1])
        assert repaired.err == f"there already, the same, and kept: {', '.join(files[1:])}\n"
        assert Path("stacks/demo.toml").exists() is there
    Path("stacks/demo.toml").write_text("# mine\n")
    for words in (("--dry-run",), ()):
        assert imagebuilder("init", "demo", *words).code == 2
    assert Path("stacks/demo.toml").read_text() == "# mine\n"
    assert imagebuilder("init", "demo", "--force").out.split() == files[:1]


def test_a_stack_without_lock_is_not_locked_when_that_is_forbidden(imagebuilder: Call) -> None:
    imagebuilder("init", "demo")
    Path("stacks/pylock.demo.toml").unlink(missing_ok=True)
    stack = Path("stacks/demo.toml")
    stack.rename("stacks/mine.toml")
    text = Path("stacks/mine.toml").read_text().replace('name = "demo"', 'name = "mine"')
    Path("stacks/mine.toml").write_text(text)
    outcome = imagebuilder("build", "mine", "--locked")
    assert outcome.code == 4
    assert "imagebuilder lock mine" in outcome.err


def test_a_stale_lock_stops_the_build_and_says_what_changed(imagebuilder: Call) -> None:
    imagebuilder("init", "demo")
    stack = Path("stacks/demo.toml")
    stack.write_text(stack.read_text().replace('"fastapi==', '"idna==3.10", "fastapi=='))
    outcome = imagebuilder("build", "demo", "--offline")
    assert outcome.code == 4
    assert "imagebuilder lock demo" in outcome.err
    assert not Path("images").exists()


def test_a_comment_or_a_waiver_does_not_make_a_lock_stale(imagebuilder: Call) -> None:
    imagebuilder("init", "demo")
    stack = Path("stacks/demo.toml")
    text = stack.read_text() + '\n# a comment\n[[waive]]\ncode = "gpu.none"\nreason = "there is none"\n'
    stack.write_text(text)
    assert imagebuilder("show", "demo").code == 0


def test_an_offline_build_without_files_says_how_to_get_them(imagebuilder: Call) -> None:
    outcome = imagebuilder("build", "demo", "--offline")
    assert outcome.code == 13
    assert "imagebuilder fetch demo" in outcome.err
    assert not Path("images").exists()


def test_a_stack_that_needs_an_engine_is_refused_with_the_way_out(imagebuilder: Call) -> None:
    outcome = imagebuilder("build", "cu128", "--builder", "direct", "--no-check")
    assert outcome.code == 6
    assert "--builder docker" in outcome.err


def number_options() -> dict[str, click.Parameter]:
    """Every option of every verb that takes a number."""
    commands = {verb: import_module(f"imagebuilder.cli.{verb}").command for verb in VERBS}
    members = {
        name: command
        for verb, c in commands.items()
        for name, command in getattr(c, "commands", {verb: c}).items()
    }
    kinds = (type(click.INT), type(click.FLOAT))
    return {
        f"{name} {p.name}": p for name, c in members.items() for p in c.params if isinstance(p.type, kinds)
    }


def test_every_number_on_the_command_line_has_a_range() -> None:
    found = number_options()
    assert {"clean days", "diff most", "matrix releases", "verify most"} <= set(found)
    for name, option in found.items():
        for bad in ("nan", "NaN", "inf", "-inf", "-1", "0", "x"):
            with pytest.raises(click.BadParameter):
                option.type.convert(bad, option, None)
                pytest.fail(f"{name} takes {bad}")
        assert option.type.convert("7", option, None) == 7


@pytest.mark.parametrize(
    "words",
    [
        ("clean", "--dry-run", "--older-than", "nan"),
        ("clean", "--dry-run", "--older-than", "inf"),
        ("clean", "--dry-run", "--older-than", "-1"),
        ("clean", "--dry-run", "--older-than", "0.5"),
        ("matrix", "one", "--against", "two", "--releases", "0"),
        ("matrix", "one", "--against", "two", "--releases", "-4"),
        ("verify", "demo", "--most", "-1"),
        ("diff", "demo", "demo", "--most", "0"),
    ],
    ids=" ".join,
)
def test_a_number_outside_its_range_is_a_usage_error(words: tuple[str, ...], imagebuilder: Call) -> None:
    outcome = imagebuilder(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert words[-2] in outcome.err and words[-1] in outcome.err


def test_a_bug_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def crash(*arguments: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("imagebuilder.cli.prepare.stack_of", crash)
    assert run(["show", "demo"]) == 1
    told = capsys.readouterr().err
    assert "please report" in told and "Traceback" in told


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.exceptions.Abort()])
def test_an_interrupt_is_130(
    error: BaseException, imagebuilder: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("imagebuilder.cli.prepare.stack_of", interrupt)
    assert imagebuilder("show", "demo").code == 130


def test_a_full_disk_is_the_machines_fault(imagebuilder: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr("imagebuilder.cli.prepare.stack_of", full)
    outcome = imagebuilder("show", "demo")
    assert outcome.code == 6
    assert "/somewhere" in outcome.err


def test_an_error_goes_to_stderr_and_nothing_to_stdout(
    imagebuilder: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ArtefactUnusable("torch is gone", seen="404", hint="imagebuilder lock demo")

    monkeypatch.setattr("imagebuilder.cli.prepare.stack_of", fail)
    outcome = imagebuilder("show", "demo")
    assert (outcome.code, outcome.out) == (13, "")
    assert outcome.err == "imagebuilder: torch is gone\n  seen:   404\n  next:   imagebuilder lock demo\n"
