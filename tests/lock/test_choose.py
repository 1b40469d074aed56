"""One wheel per package, as pip would choose."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagebuilder.index.simple import IndexFile
from imagebuilder.lock.choose import best_wheel, python_allows, uploaded_by, why_unfit
from imagebuilder.lock.target import TargetFacts
from imagebuilder.values import Digest, Platform, Release

TARGET = TargetFacts(python=Release("3.12"), platform=Platform.parse("linux/amd64"), glibc=Release("2.36"))


def file(name: str, **more: object) -> IndexFile:
    version = parse_wheel_filename(name)[1] if name.endswith(".whl") else Version("1")
    fields: dict[str, object] = {
        "name": "a", "version": version, "filename": name, "url": "u", "sha256": Digest.of(b""), "size": 1,
        "requires_python": None, "yanked": None, "upload_time": None, "index": "default",
    }  # fmt: skip
    return IndexFile(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp312-cp312-linux_x86_64.whl", "a-1-cp312-cp312-manylinux_2_36_x86_64.whl"], 0),
        (["a-1-cp312-abi3-manylinux_2_28_x86_64.whl", "a-1-cp312-cp312-manylinux_2_17_x86_64.whl"], 1),
        (["a-1-cp310-abi3-manylinux2014_x86_64.whl", "a-1-py3-none-manylinux2014_x86_64.whl"], 0),
        (["a-1-py2.py3-none-any.whl", "a-1-cp312-none-any.whl"], 1),
        (["a-1-2-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-py3-none-any.whl"], 1),
        (["a-1-2a-py3-none-any.whl", "a-1-2b-py3-none-any.whl"], 1),
        (["a-1-3-py3-none-any.whl", "a-1-1-cp312-cp312-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_39_x86_64.whl", "a-1-py3-none-any.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"], 0),
        (["a-1+cu130-py3-none-any.whl", "a-1-py3-none-any.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_28_aarch64.whl", "a-1-cp312-cp312-win_amd64.whl"], None),
        (["a-1-cp313-cp313-manylinux_2_28_x86_64.whl", "a-1-cp312-cp312t-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp313-abi3-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp312-cp312-musllinux_1_2_x86_64.whl"], None),
    ],
)
def test_the_best(names: list[str], best: int | None) -> None:
    found = best_wheel([file(n) for n in names], Version("1"), TARGET)
    assert (found.filename if found else None) == (names[best] if best is not None else None)


TAGS = st.sampled_from(
    ["py3-none-any", "cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_36_x86_64",
     "cp39-abi3-manylinux2014_x86_64", "cp312-cp312-win_amd64", "cp313-cp313-manylinux_2_17_x86_64"]
)  # fmt: skip
BUILDS = st.sampled_from(["", "1-", "2-", "10-", "2b-"])


@given(st.lists(st.builds(lambda b, t: f"a-1-{b}{t}.whl", BUILDS, TAGS), unique=True))
def test_pips_own_key_agrees(names: list[str]) -> None:
    """pip sorts by (-index of the first supported tag, build tag): `CandidateEvaluator._sort_key`."""
    order = list(TARGET.tag_ranks)

    def key(name: str) -> tuple[int, object]:
        _, _, build, found = parse_wheel_filename(name)
        return -min(order.index(t) for t in found if t in TARGET.tag_ranks), build

    fitting = [n for n in names if any(t in TARGET.tag_ranks for t in parse_wheel_filename(n)[3])]
    best = best_wheel([file(n) for n in names], Version("1"), TARGET)
    assert (best.filename if best else None) == (max(fitting, key=key) if fitting else None)


def test_requires_python_is_the_targets() -> None:
    files = [
        file("a-1-cp312-cp312-manylinux_2_17_x86_64.whl", requires_python=">=3.13"),
        file("a-1-py3-none-any.whl"),
    ]
    found = best_wheel(files, Version("1"), TARGET)
    assert found is not None and found.filename == "a-1-py3-none-any.whl"
    assert python_allows("not a specifier", Release("3.12")) and python_allows(">=3.8,<4", Release("3.12"))
    assert not python_allows("<3.12", Release("3.12"))


def test_files_of_a_date() -> None:
    day = datetime(2025, 6, 1, tzinfo=timezone.utc)
    old, new = (
        file("a-1-py3-none-any.whl", upload_time=day),
        file("a-2-py3-none-any.whl", upload_time=day.replace(day=2)),
    )
    undated = file("a-3-py3-none-any.whl")
    assert uploaded_by([old, new, undated], day) == [old, undated]
    assert uploaded_by([old, new], None) == [old, new]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([file("a-1.tar.gz")], "only a source distribution"),
        ([file("a-1-py3-none-any.whl", requires_python=">=3.13")], "it requires Python >=3.13"),
        ([file("a-1-cp312-cp312-manylinux_2_39_x86_64.whl")], "need glibc 2.39 or newer, the target"),
        ([file("a-1-cp312-cp312-manylinux_2_41_x86_64.whl"), file("a-1-cp39-abi3-manylinux_2_38_x86_64.whl")],
         "need glibc 2.38"),
        ([file("a-1-cp310-cp310-manylinux_2_17_x86_64.whl")], "CPython 3.12 on x86_64 (there are: cp310"),
        ([file("a-1-cp313-cp313-manylinux_2_39_x86_64.whl")], "no wheel for CPython 3.12 on x86_64"),
        ([file("a-1-py3-none-any.whl", yanked="")], "yanked"),
        ([file("a-1-py3-none-any.whl")], None),
    ],
)  # fmt: skip
def test_why_a_version_cannot_be_used(files: list[IndexFile], why: str | None) -> None:
    found = why_unfit(files, TARGET)
    assert found is None if why is None else why in (found or "")
