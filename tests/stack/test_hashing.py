"""What makes a lock stale, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.stack import load_stack, resolution_hash
from imagebuilder.values import Digest

FULL = Path(__file__).parent / "good" / "full"

STALE = {
    "python": ('python = "3.12"', 'python = "3.11"'),
    "platform": ("linux/arm64", "linux/amd64"),
    "gpus": ('"sm_90", ', ""),
    "driver": ("580.65.06", "580.82.07"),
    "glibc": ('glibc = "2.39"', 'glibc = "2.36"'),
    "base tag": ("devel:13.0.1", "devel:13.0.2"),
    "base digest": ("2efe5e", "2efe5f"),
    "base kind": ('image = "reg', 'oci = "reg'),
    "system package": ('"python3.12", ', ""),
    "snapshot": ("2026-02-24T12", "2026-02-24T13"),
    "system resolve": ('resolve = "lock"', 'resolve = "build"'),
    "as-of": ("as-of = 2026-02-25", "as-of = 2026-02-26"),
    "index address": ("https://index.example", "https://other.example"),
    "index name": ('"cu130"', '"cu131"'),
    "explicit": ("explicit = true\n", ""),
    "requirement": ("six==1.16.0", "six==1.17.0"),
    "extra": ("fast[standard]", "fast"),
    "marker": ("python_version >=", "python_version <"),
    "layer's index": ('index = "cu130"\n', ""),
    "override": ("9.16.0.29", "9.16.0.30"),
    "patches": ("patches/*.patch", "patches/0001*.patch"),
}
FRESH = {
    "comment": ("# Every key", "# Each key"),
    "name": ('name = "full"\nsummary', 'name = "other"\nsummary'),
    "summary": ("every key", "each key"),
    "name of a layer": ('name = "app"', 'name = "application"'),
    "reason": ("a reason", "another one"),
    "env": ('B = "2"', 'B = "3"'),
    "file": ("echo hello", "echo bye"),
    "waiver": ("gpu.no-code", "gpu.other"),
    "image": ("/srv", "/opt"),
    "acceptance": ("min-speedup = 1.1", "min-speedup = 1.2"),
    "deploy": ("replicas = 2", "replicas = 3"),
    "spelling": ("six==1.16.0", "Six == 1.16.0"),
    "order of env": ('B = "2"\n', ""),
    "same instant": ("2026-02-24T12:00:00+02:00", "2026-02-24T10:00:00Z"),
    "slash of an index": ("/whl/cu130/", "/whl/cu130"),
}


def hash_of(folder: Path, old: str = "", new: str = "") -> Digest:
    text = (FULL / "stack.toml").read_text()
    assert old in text
    file = folder / "stack.toml"
    file.write_text(text.replace(old, new) if old else text)
    for name in ("patches", "etc"):
        link = folder / name
        if not link.exists():
            link.mkdir()
            for source in (FULL / name).iterdir():
                (link / source.name).write_bytes(source.read_bytes())
    return resolution_hash(load_stack(file))


@pytest.mark.parametrize("what", STALE)
def test_stale(tmp_path: Path, what: str) -> None:
    assert hash_of(tmp_path) != hash_of(tmp_path, *STALE[what])


@pytest.mark.parametrize("what", FRESH)
def test_fresh(tmp_path: Path, what: str) -> None:
    assert hash_of(tmp_path) == hash_of(tmp_path, *FRESH[what])


def test_a_changed_patch_is_stale_and_a_touched_one_is_not(tmp_path: Path) -> None:
    before = hash_of(tmp_path)
    patch = tmp_path / "patches" / "0001-b.patch"
    patch.touch()
    assert hash_of(tmp_path) == before
    patch.write_bytes(patch.read_bytes() + b"\n")
    assert hash_of(tmp_path) != before


def test_the_hash_does_not_change_between_versions(tmp_path: Path) -> None:
    """A golden value: when this fails, every lock there is becomes stale. Change it on purpose only."""
    assert hash_of(tmp_path).short == "c0361cd3943f"
