"""Tags, markers and glibc of a target."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging import tags
from packaging.markers import default_environment

from imagebuilder.errors import StackInvalid
from imagebuilder.lock.target import TargetFacts, target_facts
from imagebuilder.stack.model import Base, DebianBase, ImageBase, OciBase, Stack, Target
from imagebuilder.values import ImageRef, Platform, Release

AMD64, ARM64 = Platform.parse("linux/amd64"), Platform.parse("linux/arm64")


def facts(python: str = "3.12", glibc: str = "2.36", platform: Platform = AMD64) -> TargetFacts:
    return TargetFacts(python=Release(python), platform=platform, glibc=Release(glibc))


def stack(base: Base, glibc: str | None = None) -> Stack:
    target = Target(python=Release("3.12"), glibc=Release(glibc) if glibc else None)
    return Stack(name="s", target=target, base=base, layers=(), path=Path("s.toml"))


@pytest.mark.parametrize(
    ("base", "glibc"),
    [
        (DebianBase(suite="bookworm"), "2.36"),
        (DebianBase(suite="trixie"), "2.41"),
        (ImageBase(ref=ImageRef.parse("nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04")), "2.39"),
        (ImageBase(ref=ImageRef.parse("nvidia/cuda:12.8.1-devel-ubuntu22.04@sha256:" + "1" * 64)), "2.35"),
        (ImageBase(ref=ImageRef.parse("nvidia/cuda:12.8.1-devel-ubi9")), "2.34"),
        (ImageBase(ref=ImageRef.parse("ubuntu:24.04")), "2.39"),
        (ImageBase(ref=ImageRef.parse("ubuntu:noble-20260101")), "2.39"),
        (ImageBase(ref=ImageRef.parse("debian:bookworm-slim")), "2.36"),
        (ImageBase(ref=ImageRef.parse("python:3.12-slim-trixie")), "2.41"),
    ],
)
def test_a_base_that_says_what_it_is(base: Base, glibc: str) -> None:
    assert target_facts(stack(base)).glibc == Release(glibc)
    assert target_facts(stack(base, "2.28")).glibc == Release("2.28")


@pytest.mark.parametrize(
    "base",
    [ImageBase(ref=ImageRef.parse("example/cuda:13")), OciBase(path="x")],
)
def test_a_base_that_does_not(base: Base) -> None:
    with pytest.raises(StackInvalid) as caught:
        target_facts(stack(base))
    assert caught.value.problems[0].key == "target.glibc" and "ldd --version" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("suite", "said"),
    [("nosuch", "known here: bookworm, bullseye, trixie"), ("bokworm", "did you mean 'bookworm'?")],
)
def test_a_suite_that_is_not_known(suite: str, said: str) -> None:
    with pytest.raises(StackInvalid) as caught:
        target_facts(stack(DebianBase(suite=suite)))
    (problem,) = caught.value.problems
    assert problem.key == "base.debian.suite" and repr(suite) in problem.message
    assert said in problem.hint and "ldd --version" in problem.hint
    assert target_facts(stack(DebianBase(suite=suite), "2.41")).glibc == Release("2.41")


@pytest.mark.parametrize("glibc", ["3.1", "2"])
def test_a_glibc_that_is_none(glibc: str) -> None:
    with pytest.raises(StackInvalid):
        target_facts(stack(DebianBase(suite="bookworm"), glibc))


@pytest.mark.parametrize(
    ("glibc", "minor"), [("2.17", 17), ("2.27", 17), ("2.28", 28), ("2.36", 36), ("2.41", 40), ("2.5", 17)]
)
def test_uv_is_told_the_newest_that_it_knows(glibc: str, minor: int) -> None:
    assert facts(glibc=glibc).uv_platform == f"x86_64-manylinux_2_{minor}"
    assert facts(glibc=glibc, platform=ARM64).uv_platform.startswith("aarch64-")


def test_the_tags_are_this_interpreters_where_the_target_is_this_machine() -> None:
    """`packaging`, which knows this machine, is the oracle."""
    import platform

    libc, version = platform.libc_ver()
    if libc != "glibc" or sys.implementation.name != "cpython":
        pytest.skip("not CPython on glibc")
    here = facts(
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        glibc=version,
        platform=AMD64 if platform.machine() == "x86_64" else ARM64,
    )
    expected = [tag for tag in tags.sys_tags() if "musllinux" not in tag.platform]
    assert list(here.tag_ranks) == list(dict.fromkeys(expected))


def test_markers_are_the_targets() -> None:
    markers = facts("3.12").markers
    assert set(markers) == set(default_environment())
    assert (markers["python_version"], markers["python_full_version"]) == ("3.12", "3.12.0")
    assert facts("3.11.2").markers["python_full_version"] == "3.11.2"
    assert facts("3.11.2").markers["python_version"] == "3.11"
    assert facts(platform=ARM64).markers["platform_machine"] == "aarch64"
