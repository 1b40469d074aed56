"""What a package's move means: one row for each kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.diff.model import Package, PackageMove
from imagebuilder.diff.packages import Names, compare
from imagebuilder.values import Digest

NAMES = Names(renamed={"sglang-kernel": "sgl-kernel"})


def wheel(name: str, version: str, index: str = "default", seed: str = "", patched: str = "") -> Package:
    return Package(
        kind="wheel", name=name, version=version, index=index, patched=patched,
        filename=f"{name}-{version}{seed}-py3-none-any.whl",
        sha256=Digest.of(f"{name}{version}{seed}".encode()), size=10,
    )  # fmt: skip


def deb(name: str, version: str) -> Package:
    return Package(kind="deb", name=name, version=version)


TORCH = wheel("torch", "2.9.1")
OTHER_BYTES = replace(TORCH, sha256=Digest.of(b"other"))
ROWS: dict[str, tuple[Package | None, Package | None, str, tuple[str, ...]]] = {
    "nothing": (TORCH, TORCH, "", ()),
    "minor": (TORCH, wheel("torch", "2.10.0"), "upgraded", ("minor",)),
    "0.6.10 is above 0.6.9": (wheel("f", "0.6.9"), wheel("f", "0.6.10"), "upgraded", ("patch",)),
    "major down": (wheel("a", "3.0"), wheel("a", "2.1"), "downgraded", ("major",)),
    "post": (wheel("a", "1.0"), wheel("a", "1.0.post1"), "upgraded", ("post-release",)),
    "nightly": (TORCH, wheel("torch", "2.11.0.dev20260101"), "upgraded", ("minor", "stable → nightly")),
    "back from a nightly": (wheel("a", "1.1.dev1"), wheel("a", "1.0"), "downgraded",
                            ("minor", "nightly → stable")),
    "release candidate": (wheel("a", "1.0"), wheel("a", "1.1rc1"), "upgraded",
                          ("minor", "stable → pre-release")),
    "another CUDA": (wheel("torch", "2.9.1+cu128"), wheel("torch", "2.9.1+cu130"), "rebuilt",
                     ("another build: +cu128 → +cu130",)),
    "now with a suffix": (TORCH, wheel("torch", "2.9.1+cu130", "pytorch-cu130"), "rebuilt",
                          ("another build: +none → +cu130", "index default → pytorch-cu130")),
    "version, CUDA and index": (wheel("t", "1.0+cu128", "a"), wheel("t", "1.1+cu130", "b"), "upgraded",
                                ("minor", "build +cu128 → +cu130", "index a → b")),
    "another index": (TORCH, replace(TORCH, index="mirror"), "moved", ("index default → mirror",)),
    "other bytes": (TORCH, OTHER_BYTES, "rebuilt",
                    (f"the same name, other bytes: {TORCH.sha256 and TORCH.sha256.short} → "
                     f"{OTHER_BYTES.sha256 and OTHER_BYTES.sha256.short}",)),
    "another build tag": (TORCH, wheel("torch", "2.9.1", seed="-2"), "rebuilt",
                          ("the same version, another file: torch-2.9.1-py3-none-any.whl → "
                           "torch-2.9.1-2-py3-none-any.whl",)),
    "patched": (TORCH, replace(TORCH, patched="0123abcd"), "patched", ("patched now",)),
    "other patches": (replace(TORCH, patched="1"), replace(TORCH, patched="2"), "patched",
                      ("other patches",)),
    "not patched": (replace(TORCH, patched="1"), TORCH, "patched", ("not patched any more",)),
    "patches not known": (TORCH, replace(TORCH, patched=None), "", ()),
    "added": (None, TORCH, "added", ()),
    "a nightly added": (None, wheel("a", "1.0.dev1"), "added", ("nightly",)),
    "removed": (TORCH, None, "removed", ()),
    "renamed with CUDA": (wheel("nvidia-nccl-cu12", "2.27.5"), wheel("nvidia-nccl-cu13", "2.28.9"), "renamed",
                          ("was nvidia-nccl-cu12", "minor")),
    "without a suffix": (wheel("nvidia-cublas-cu12", "12.8.4.1"), wheel("nvidia-cublas", "13.1.0.3"),
                         "renamed", ("was nvidia-cublas-cu12", "major")),
    "renamed by its makers": (wheel("sgl-kernel", "0.3.21"), wheel("sglang-kernel", "0.3.20"), "renamed",
                              ("was sgl-kernel", "downgraded", "patch")),
    "a Debian upgrade": (deb("libc6", "2.36-9+deb12u10"), deb("libc6", "2.36-9+deb12u9"), "downgraded", ()),
    "a Debian epoch": (deb("a", "9.0-1"), deb("a", "1:1.0-1"), "upgraded", ()),
    "not known by files": (Package(kind="wheel", name="torch", version="2.9.1"), TORCH, "", ()),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_moves(row: str) -> None:
    old, new, move, notes = ROWS[row]
    found = compare([old] if old else [], [new] if new else [], NAMES)
    assert [(m.move, m.notes) for m in found] == ([(move, notes)] if move else [])


def test_a_name_that_fits_several_is_not_guessed() -> None:
    old = [wheel("nvidia-nccl-cu11", "1"), wheel("nvidia-nccl-cu12", "2")]
    found = compare(old, [wheel("nvidia-nccl-cu13", "3")], NAMES)
    assert [m.move for m in found] == ["added", "removed", "removed"]


def test_python_and_debian_names_are_apart() -> None:
    assert [m.move for m in compare([wheel("six", "1.0")], [deb("six", "1.0")], NAMES)] == [
        "removed",
        "added",
    ]


versions = st.sampled_from(
    ["1.0", "1.0.1", "2.0", "2.0+cu128", "2.0+cu130", "3.0.dev1", "3.0rc1", "0!1", "1!1"]
)
packages = st.lists(
    st.builds(
        wheel, st.sampled_from(["a", "b-cu12", "b-cu13", "b", "c"]), versions, st.sampled_from(["x", "y"])
    ),
    unique_by=lambda p: p.name,
)
OPPOSITE = {"upgraded": "downgraded", "downgraded": "upgraded", "added": "removed", "removed": "added"}


@given(packages, packages)
def test_every_difference_is_named_once_and_both_ways(old: list[Package], new: list[Package]) -> None:
    assert not compare(old, old, NAMES)
    there, back = compare(old, new, NAMES), compare(new, old, NAMES)

    def ends(moves: tuple[PackageMove, ...]) -> set[tuple[Package | None, Package | None, str]]:
        return {(m.old, m.new, m.move) for m in moves}

    assert {(new, old, OPPOSITE.get(move, move)) for old, new, move in ends(there)} == ends(back)
    touched = [p for m in there for p in (m.old, m.new) if p]
    assert len(touched) == len(set(touched))
    assert {p for p in (*old, *new) if not (p in old and p in new)} == set(touched)
