"""A member of a wheel, read at any place, equals the member unpacked."""

from __future__ import annotations

import io
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.member import Deflated, Stored


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _open(data: bytes, **more: object) -> Deflated:
    packed = _deflate(data)
    source = io.BytesIO(b"before" + packed + b"behind")
    return Deflated(source, start=6, packed=len(packed), size=len(data), what="m", **more)  # type: ignore[arg-type]


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
    chance = random.Random(1)
    data = b"".join(chance.randbytes(1000) * 20 for _ in range(1500))  # 30 MB: several remembered states
    seen = bytearray()

    def watch(at: int, block: bytes) -> None:
        assert at == len(seen)
        seen.extend(block)

    file = _open(data, watch=watch)
    for at in (29_000_000, 5, 17_000_000, 16_999_000, 8_500_000, 29_999_990):
        file.seek(at)
        assert file.read(70_000) == data[at : at + 70_000]
    assert bytes(seen) == data[: len(seen)]
    assert len(seen) >= 29_999_990


@pytest.mark.parametrize("damage", [lambda p: p[: len(p) // 2], lambda p: b"\xff" * len(p)])
def test_damage_is_an_error(damage: object) -> None:
    packed = damage(_deflate(bytes(range(256)) * 4000))  # type: ignore[operator]
    file = Deflated(io.BytesIO(packed), start=0, packed=len(packed), size=1_024_000, what="x.so")
    with pytest.raises(ArtefactUnusable, match=r"x\.so"):
        file.read()


def test_a_lie_about_the_size_is_an_error() -> None:
    packed = _deflate(b"abc")
    file = Deflated(io.BytesIO(packed), start=0, packed=len(packed), size=1 << 40, what="x.so")
    file.seek(1 << 39)
    with pytest.raises(ArtefactUnusable):
        file.read(10)
