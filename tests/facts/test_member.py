"""A member of a wheel, read at any place, equals the member unpacked."""

from __future__ import annotations

import gc
import io
import random
import tracemalloc
import weakref
import zipfile
import zlib
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.gpu import FatbinWatch
from imagebuilder.facts.member import Packed, Stored, unwatched
from imagebuilder.facts.ziparchive import ZipArchive


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _open(data: bytes, watch: Callable[[int, bytes], None] = unwatched) -> Packed:
    return _packed(_deflate(data), len(data), watch)


def _packed(packed: bytes, size: int, watch: Callable[[int, bytes], None] = unwatched) -> Packed:
    source = io.BytesIO(b"before" + packed + b"behind")
    return Packed(source, method=8, start=6, packed=len(packed), size=size, what="x.so", watch=watch)


@cache
def _large() -> bytes:
    """30 MB."""
    chance = random.Random(1)
    return b"".join(chance.randbytes(1000) * 20 for _ in range(1500))


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=2000),
    st.integers(0, 400),
    st.lists(st.tuples(st.integers(0, 900_000), st.integers(0, 300_000)), max_size=8),
)
def test_reads_equal_slices(seed: bytes, times: int, reads: list[tuple[int, int]]) -> None:
    data = seed * times
    for file in (_open(data), Stored(io.BytesIO(b"xy" + data + b"z"), 2, len(data))):
        for at, size in reads:
            file.seek(at)
            assert file.read(size) == data[at : at + size]
        file.seek(0)
        assert file.read() == data


def test_going_back_in_a_large_member() -> None:
    data = _large()
    seen = bytearray()

    def watch(at: int, block: bytes) -> None:
        assert at == len(seen)
        seen.extend(block)

    file = _open(data, watch=watch)
    for at in (29_000_000, 5, 17_000_000, 16_999_000, 8_500_000, 29_999_990, 4_194_300, 21_900_000):
        file.seek(at)
        assert file.read(70_000) == data[at : at + 70_000]
    assert bytes(seen) == data[: len(seen)]
    assert len(seen) >= 29_999_990


def test_the_front_and_the_last_megabytes_are_read_once() -> None:
    data, packed = _large(), _deflate(_large())
    taken = 0

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal taken
            found = super().read(size)
            taken += len(found)
            return found

    file = Packed(Counted(packed), method=8, start=0, packed=len(packed), size=len(data), what="x.so")
    for at in (29_900_000, 64, 29_990_000, 3_900_000, 28_500_000, 0, 29_999_000):
        file.seek(at)
        assert file.read(1000) == data[at : at + 1000]
    assert taken <= len(packed)
    taken = 0
    late = Packed(Counted(packed), method=8, start=0, packed=len(packed), size=len(data), what="x.so")
    late.remember(20_000_000, 1 << 63)
    for at in (29_900_000, 20_000_100, 25_000_000):
        late.seek(at)
        assert late.read(5_000_000) == data[at : at + 5_000_000]
    assert taken <= len(packed)


def test_memory_does_not_grow_with_the_member() -> None:
    peaks = []
    for times in (1, 4):
        data = _large() * times
        file = _open(data)
        length = len(data)
        del data
        tracemalloc.start()
        for at in (0, length - 100, length // 2):
            file.seek(at)
            assert len(file.read(100)) == 100
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 16 << 20


@pytest.mark.parametrize("make", [lambda: _open(_large()), FatbinWatch])
def test_what_is_remembered_goes_with_its_member(make: Callable[[], object]) -> None:
    gc.disable()
    try:
        file = make()
        if isinstance(file, Packed):
            file.read(10_000_000)
            file.seek(5_000_000)
            file.read(10)
        there = weakref.ref(file)
        del file
        assert there() is None
    finally:
        gc.enable()


def test_no_member_makes_reading_go_back_for_ever() -> None:
    file = _open(_large())
    with pytest.raises(ArtefactUnusable, match=r"x\.so cannot be unpacked"):
        for _ in range(100):
            for at in (29_000_000, 18_000_000, 9_000_000):
                file.seek(at)
                file.read(1)


@pytest.mark.parametrize("method", [12, 14])
def test_other_methods(method: int) -> None:
    data = bytes(range(256)) * 4000
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("x.so", data)
    with ZipArchive(out, "w.zip") as read:
        (entry,) = read.members
        start = read.data_start(entry)
    file = Packed(out, method=method, start=start, packed=entry.compressed, size=entry.size, what="x.so")
    for at in (900_000, 10, 1_000_000):
        file.seek(at)
        assert file.read(5000) == data[at : at + 5000]


@pytest.mark.parametrize("damage", [lambda p: p[: len(p) // 2], lambda p: b"\xff" * len(p)])
def test_damage_is_an_error(damage: object) -> None:
    packed = damage(_deflate(bytes(range(256)) * 4000))  # type: ignore[operator]
    with pytest.raises(ArtefactUnusable, match=r"x\.so"):
        _packed(packed, 1_024_000).read()


def test_a_lie_about_the_size_is_an_error() -> None:
    file = _packed(_deflate(b"abc"), 1 << 40)
    file.seek(1 << 39)
    with pytest.raises(ArtefactUnusable):
        file.read(10)
