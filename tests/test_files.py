"""What appears whole under its name, or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.files import check_directory, check_writable, give, new_directory, new_file

KILLED = """
import os, signal, sys
from pathlib import Path
from imagebuilder.files import new_file
with new_file(Path(sys.argv[1])) as out:
    out.write(b"half")
    out.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_whole_or_what_it_was(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    with new_file(target) as out:
        out.write(b"first")
    with pytest.raises(ZeroDivisionError), new_file(target) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert target.read_bytes() == b"first"
    assert names(target.parent) == ["file"]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    with new_file(target) as out:
        out.write(b"new")
    assert (names(tmp_path), target.read_bytes()) == (["file"], b"new")


def test_a_directory_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="is a directory"), new_file(tmp_path):
        pass


def in_the_way(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file" / "deep" / "new"


def in_a_circle(tmp_path: Path) -> Path:
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path / "loop" / "new"


def forbidden(tmp_path: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    return tmp_path / "deep" / "new"


@pytest.mark.parametrize("place", [in_the_way, in_a_circle, forbidden], ids=lambda f: f.__name__)
def test_what_cannot_be_written_is_known_before(place: Callable[[Path], Path], tmp_path: Path) -> None:
    target = place(tmp_path)
    with pytest.raises(MachineLacks) as before:
        check_writable(target, "elsewhere")
    with pytest.raises(MachineLacks) as after, new_file(target, "elsewhere"):
        pass
    assert before.value.what == after.value.what == f"{target} cannot be written"
    assert before.value.hint == after.value.hint == "elsewhere"
    with pytest.raises(MachineLacks):
        check_directory(target, marker="m")
    tmp_path.chmod(0o700)


def test_what_can_be_written_is_not_made_by_asking(tmp_path: Path) -> None:
    check_writable(tmp_path / "not" / "there" / "yet")
    check_directory(tmp_path / "not" / "there" / "yet", marker="m")
    assert names(tmp_path) == []


def test_the_mode_is_the_umasks(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with new_file(tmp_path / "file"):
        pass
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_two_writers_at_once_do_not_remove_each_others_work(tmp_path: Path) -> None:
    with new_directory(tmp_path / "out", marker="m") as first:
        (first / "m").write_text("first")
        with new_directory(tmp_path / "out", marker="m") as second:
            (second / "m").write_text("second")
        assert (first / "m").read_text() == "first"
    assert (tmp_path / "out/m").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("linked", [True, False], ids=["one-disk", "two-disks"])
@pytest.mark.parametrize("before", [None, b"another file"])
def test_giving_a_file_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool, before: bytes | None
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 3_000_000)
    if before is not None:
        target.write_bytes(before)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    give(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.samefile(source) is linked
    assert names(tmp_path) == ["source", "target"]


def test_no_space_is_said(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match="free some space") as caught, new_file(tmp_path / "file") as out:
        out.write(b"some")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.exit_code == 6
    assert names(tmp_path) == []
