"""`list` and `clean`: what is there, and that nothing goes that is needed, new, accepted, or in use."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.cache import Cache
from imagebuilder.values import Digest
from tests.support.acceptances import accept
from tests.support.command import Outcome, wrong_artefacts
from tests.support.fake_registry import FakeRegistry
from tests.support.small import Small

Command = Callable[..., Outcome]
LONG_AGO = 1_700_000_000


def artefacts(root: Path) -> set[str]:
    return {p.name for p in (root / "cache" / "artefacts").rglob("*") if p.is_file()}


def age(folder: Path) -> None:
    """As if nobody had used any of it for years."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.fixture
def built(imagebuilder: Command, small: Small) -> Iterator[Small]:
    """The stack `s` with its image; in the cache also an old file that nobody needs."""
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    yield small


def stray(root: Path, data: bytes = b"nobody needs this") -> Digest:
    cache = Cache(root / "cache")
    with cache.put_artefact(Digest.of(data)) as incoming:
        assert incoming
        incoming.write(data)
    return Digest.of(data)


def clean(imagebuilder: Command, *more: str) -> dict[str, Any]:
    done = imagebuilder("clean", "--json", *more)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_list(imagebuilder: Command, built: Small, tmp_path: Path) -> None:
    config = Digest(json.loads((built.folder / "images" / "s.build.json").read_text())["config"])
    accept(built.folder, config)
    found = json.loads(imagebuilder("list", "--json").out)
    (image,) = found["images"]
    assert image["name"] == "s" and image["keep"] == "accepted" and image["shared"] > 80_000
    (result,) = found["results"]
    assert result["detail"] == "s: pass"
    assert found["cache"]["folders"]["artefacts"] > 80_000
    table = imagebuilder("list").out
    assert "images: 1" in table and "results: 1" in table and "artefacts" in table


def test_evidence_that_came_with_an_image_goes_with_it(
    imagebuilder: Command, built: Small, fake: FakeRegistry
) -> None:
    assert imagebuilder("push", "s", "--to", f"{fake.host}/a:x").code == 0
    assert imagebuilder("pull", f"{fake.host}/a:x", "--output", "images/back").code == 0
    found = json.loads(imagebuilder("list", "--json").out)
    sizes = {image["name"]: image["size"] for image in found["images"]}
    assert set(sizes) == {"s", "back"}
    evidence = sum(f.stat().st_size for f in Path("images/back.evidence").rglob("*") if f.is_file())
    assert evidence > 0 and sizes["back"] >= evidence
    shutil.rmtree("images/back")
    (alone,) = (i for i in json.loads(imagebuilder("list", "--json").out)["images"] if i["name"] != "s")
    assert alone["name"] == "back.evidence" and "remove it yourself" in alone["keep"]


def test_list_of_nothing(imagebuilder: Command) -> None:
    done = imagebuilder("list")
    assert done.code == 0 and "images: none" in done.out


def test_what_is_needed_stays(imagebuilder: Command, built: Small, tmp_path: Path) -> None:
    before = artefacts(tmp_path)
    lost = stray(tmp_path)
    age(tmp_path / "cache")
    would = clean(imagebuilder, "--dry-run")
    assert [r["name"] for r in would["removed"] if r["kind"] == "artefact"] == [lost.hex]
    assert artefacts(tmp_path) == before | {lost.hex}
    clean(imagebuilder)
    assert artefacts(tmp_path) == before
    again = imagebuilder("build", "s", "--builder", "direct", "--offline")
    assert again.code == 0, again.err
    assert not wrong_artefacts(tmp_path / "cache")


def test_what_was_used_lately_stays(imagebuilder: Command, built: Small, tmp_path: Path) -> None:
    lost = stray(tmp_path)
    assert not clean(imagebuilder)["removed"]
    assert lost.hex in artefacts(tmp_path)


def test_nothing_is_removed_while_another_works(imagebuilder: Command, built: Small, tmp_path: Path) -> None:
    lost = stray(tmp_path)
    age(tmp_path / "cache")
    with Cache(tmp_path / "cache").lock("layer-x"):
        done = imagebuilder("clean")
    assert done.code == 6 and "another imagebuilder is at work" in done.err
    assert lost.hex in artefacts(tmp_path)


def test_images(imagebuilder: Command, built: Small, tmp_path: Path) -> None:
    images = built.folder / "images"
    for name in ("old", "accepted", "foreign"):
        shutil.copytree(images / "s", images / name)
        record = json.loads((images / "s.build.json").read_text())
        record |= {"lock": Digest.of(name.encode()).text}
        if name == "accepted":
            record |= {"config": Digest.of(b"accepted").text}
            accept(built.folder, Digest.of(b"accepted"))
        if name != "foreign":
            (images / f"{name}.build.json").write_text(json.dumps(record))
    assert not [r for r in clean(imagebuilder, "--images", "--dry-run")["removed"] if r["kind"] == "image"]
    age(images)
    assert not [r for r in clean(imagebuilder, "--dry-run")["removed"] if r["kind"] == "image"]
    removed = clean(imagebuilder, "--images")["removed"]
    assert [r["name"] for r in removed if r["kind"] == "image"] == ["old"]
    assert {p.name for p in images.iterdir()} == {
        "s", "s.build.json", "accepted", "accepted.build.json", "foreign"
    }  # fmt: skip


def test_results(imagebuilder: Command, built: Small, tmp_path: Path) -> None:
    here = Digest(json.loads((built.folder / "images" / "s.build.json").read_text())["config"])
    gone, passed = Digest.of(b"gone"), Digest.of(b"passed")
    accept(built.folder, here, outcome="fail")
    accept(built.folder, gone, outcome="fail")
    accept(built.folder, passed, outcome="fail", stamp="20261101T000000Z")
    accept(built.folder, passed)
    assert not clean(imagebuilder, "--results")["removed"]
    age(built.folder / "results")
    removed = {r["name"] for r in clean(imagebuilder, "--results")["removed"]}
    assert removed == {f"{gone.short}/20261130T121314Z", f"{passed.short}/20261101T000000Z"}
    assert (built.folder / "results" / here.hex).is_dir()


def test_less_than_a_day_is_not_taken(imagebuilder: Command) -> None:
    done = imagebuilder("clean", "--older-than", "0.5")
    assert done.code == 2 and "Traceback" not in done.err
