"""What stands at --output: replaced where it is imagebuilder's own, else refused before any work is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import Outcome
from tests.support.fake_registry import FakeRegistry
from tests.support.small import Small

Call = Callable[..., Outcome]
BUILD, RENDER = ("build", "--builder", "direct"), ("render",)
TEXT = "years of work"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def as_file(path: Path) -> None:
    path.write_text(TEXT)


def as_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text(TEXT)


def as_project(path: Path) -> None:
    """Somebody's own Dockerfile, with all that it builds."""
    path.mkdir()
    (path / "Dockerfile").write_text("FROM scratch")
    (path / "tools").mkdir()


@pytest.mark.parametrize(
    ("verb", "name", "make"),
    [
        (BUILD, "p.tar", as_file),
        (BUILD, "precious.txt", as_file),
        (BUILD, "p.tar", as_folder),
        (BUILD, "folder", as_folder),
        (RENDER, "precious.txt", as_file),
        (RENDER, "folder", as_folder),
        (RENDER, "project", as_project),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else getattr(value, "__name__", value),
)
def test_what_is_not_ours_is_refused(
    verb: tuple[str, ...], name: str, make: Callable[[Path], None], imagebuilder: Call, small: Small
) -> None:
    assert imagebuilder(*BUILD, "s").code == 0, "so that nothing is left to do but to write"
    make(small.folder / name)
    before = tree(small.folder)
    outcome = imagebuilder(*verb, "s", "--output", name)
    assert (outcome.code, outcome.out) == (2, ""), outcome.err
    assert name in outcome.err and "next:" in outcome.err
    assert "written to" not in outcome.err
    assert tree(small.folder) == before


def test_it_is_refused_before_anything_is_built(imagebuilder: Call, small: Small) -> None:
    as_file(small.folder / "p.tar")
    assert imagebuilder("lock", "s").code == 0
    before = {path: small.server.sent(path) for path in small.server.paths}
    assert imagebuilder(*BUILD, "s", "--output", "p.tar").code == 2
    assert {path: small.server.sent(path) for path in small.server.paths} == before


@pytest.mark.parametrize("name", ["image", "image.tar"])
def test_what_is_ours_is_replaced_and_that_is_said(name: str, imagebuilder: Call, small: Small) -> None:
    first = imagebuilder(*BUILD, "s", "--output", name)
    assert (
        "3 of 3 layers made, 4 layers with" in first.err and f"written to {small.folder / name}" in first.err
    )
    again = imagebuilder(*BUILD, "s", "--output", name)
    assert again.out == first.out
    assert "0 of 3 layers made, 4 layers with" in again.err
    assert f"written to {small.folder / name}" in again.err
    small.write("one")
    other = imagebuilder("lock", "s"), imagebuilder(*BUILD, "s", "--output", name)
    assert other[1].code == 0 and other[1].out != first.out


def test_an_image_is_pulled_to_where_none_of_others_lies(
    imagebuilder: Call, small: Small, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert imagebuilder(*BUILD, "s").code == 0
    assert imagebuilder("push", "s", "--to", f"{fake.host}/a:x", "--unaccepted").code == 0
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "another"))
    as_file(small.folder / "p.tar")
    refused = imagebuilder("pull", f"{fake.host}/a:x", "--output", "p.tar")
    assert (refused.code, refused.out) == (2, "") and not (tmp_path / "another").exists()
    assert (small.folder / "p.tar").read_text() == TEXT
    pulled = imagebuilder("pull", f"{fake.host}/a:x", "--output", "images/s")
    assert pulled.code == 0, pulled.err
    assert f"image {fake.host}/a: done" in pulled.err and "base" not in pulled.err


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x.tar", "/proc/x/y", "/proc/self/x", "/dev/null/x"])
def test_where_nothing_can_be_written_it_ends(place: str, imagebuilder: Call, small: Small) -> None:
    outcome = imagebuilder(*BUILD, "s", "--output", place)
    assert (outcome.code, outcome.out) == (6, ""), outcome.err
    assert "cannot be written" in outcome.err and "--output" in outcome.err
