"""Layers as streams: what they hold, and every lie of a header that would hang, fill memory or lead out."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.untar import Members, cleaned, open_layer
from tests.support.tars import HARMFUL, named, pax, tarred

GOOD = tarred((named("./", tarfile.DIRTYPE), b""), (named("./a/b"), b"hello"), (named("c"), b""))


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        zstandard.ZstdCompressor().compress,
        lambda d: gzip.compress(d) + gzip.compress(b""),
    ],
    ids=["plain", "gzip", "zstd", "gzip-members"],
)
def test_blobs_of_every_kind(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "layer").write_bytes(pack(GOOD))
    with open_layer(tmp_path / "layer") as members:
        found = {path: b"".join(members.chunks(m)) for path, m in members}
    assert found == {"": b"", "a/b": b"hello", "c": b""}


@given(st.lists(st.tuples(st.text("ab/.", min_size=1, max_size=300), st.binary(max_size=2000)), max_size=8))
def test_what_tarfile_writes_is_read(files: list[tuple[str, bytes]]) -> None:
    files = [(f"x{name}", data) for name, data in files if ".." not in f"x{name}".split("/")]
    members = Members(io.BytesIO(tarred(*((named(name), data) for name, data in files))), "it")
    read = [(path, members.contents(m, 2000)) for path, m in members]
    assert read == [(cleaned(name), data) for name, data in files]


def test_what_is_not_asked_for_is_passed_over() -> None:
    members = Members(io.BytesIO(tarred((named("big"), b"x" * 3_000_000), (named("small"), b"y"))), "it")
    assert [members.contents(m, 10) for path, m in members if path == "small"] == [b"y"]
    with pytest.raises(ArtefactUnusable, match="'big' is too large"):
        next(members.contents(m, 10) for _, m in Members(io.BytesIO(tarred((named("big"), b"x" * 11))), "it"))


HOSTILE = {
    **HARMFUL,
    "a path with a zero byte": pax({"path": "a\0b"}),
    "a path that leads out": tarred((named("a/../../b"), b"")),
    "no tar": b"no tar" * 1000,
    "a tar that is cut off": GOOD[:1200],
    "contents that are cut off": tarred((named("x"), b"x" * 100_000))[:50_000],
    "gzip that is cut off": gzip.compress(GOOD)[:-9],
    "gzip with a wrong checksum": gzip.compress(GOOD)[:-8] + bytes(8),
    "gzip of something else": gzip.compress(b"no tar" * 1000),
    "bad gzip": gzip.compress(GOOD)[:20] + b"\xff" * 200,
    "damaged gzip": gzip.compress(bytes(range(256)) * 40)[:60] + b"\xff" * 200,
    "zstd that is cut off": zstandard.ZstdCompressor().compress(GOOD)[:-4],
    "damaged zstd": b"\x28\xb5\x2f\xfd" + b"\xff" * 200,
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("read", [True, False], ids=["contents", "names"])
def test_lies_and_damage_are_told(tmp_path: Path, data: bytes, read: bool) -> None:
    (tmp_path / "layer").write_bytes(data)
    with pytest.raises(ArtefactUnusable), open_layer(tmp_path / "layer") as members:
        for _, member in members:
            for _ in members.chunks(member) if read else ():
                pass


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None], ids=["a folder", "nothing"])
def test_a_blob_that_cannot_be_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "layer")
    with (
        pytest.raises(ArtefactUnusable, match="layer cannot be read as a layer"),
        open_layer(tmp_path / "layer"),
    ):
        pass


def test_what_the_reader_raises_itself_stays_what_it_is() -> None:
    with pytest.raises(FileNotFoundError):
        for _ in Members(io.BytesIO(GOOD), "it"):
            raise FileNotFoundError


@pytest.mark.parametrize(("name", "path"), [("./", ""), ("/a//b/", "a/b"), ("a/./b", "a/b"), (".", "")])
def test_paths(name: str, path: str) -> None:
    assert cleaned(name) == path
