"""Layers: read back by Python's own gzip and tarfile, the same bytes always, and nothing false taken in."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import tarfile
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable, MachineLacks
from imagebuilder.oci import encode, inflate, tar
from imagebuilder.oci.layer import LayerBlob, LayerWriter


def deflated(data: bytes, level: int = 6) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def pieces(data: bytes, length: int) -> Iterator[bytes]:
    return (data[at : at + length] for at in range(0, len(data), length))


def inflaters() -> list[ModuleType]:
    modules: list[ModuleType] = [zlib]
    for name, module in (("isal", "isal_zlib"), ("zlib_ng", "zlib_ng")):
        try:
            modules.append(getattr(__import__(name, fromlist=[module]), module))
        except ImportError:
            continue
    return modules


@pytest.fixture(params=inflaters(), ids=lambda module: module.__name__)
def each_inflater(request: pytest.FixtureRequest) -> Iterator[None]:
    before = inflate.use_library(request.param)
    yield
    inflate.use_library(before)


class Broken(BinaryIO):  # type: ignore[misc]
    """A file on a full disk."""

    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def sample(writer: LayerWriter) -> None:
    text = b"".join(b"line %d of a file\n" % n for n in range(90_000))
    noise = random.Random(1).randbytes(70_000)
    writer.directory("opt", mtime=5)
    writer.directory("opt/é", 0o700, uid=1000, gid=1000, mtime=946684800)
    writer.file_bytes("opt/empty", b"")
    writer.file_bytes("opt/script", b"#!/bin/sh\n", 0o755)
    writer.file_bytes("opt/text", text)
    writer.file_stream("opt/stream", len(noise + text), pieces(noise + text, 1000))
    # As zlib would: stored blocks, made here so that the digest does not depend on the zlib of this Python.
    stored = b"".join(
        bytes([at + 65535 >= len(text)])
        + len(p).to_bytes(2, "little")
        + (len(p) ^ 0xFFFF).to_bytes(2, "little")
        + p
        for at, p in zip(range(0, len(text), 65535), pieces(text, 65535), strict=True)
    )
    writer.file_deflated("opt/deflated", len(text), zlib.crc32(text), pieces(stored, 999))
    writer.file_deflated("opt/nothing", 0, 0, [b"\3\0"])
    writer.symlink("opt/link", "../" * 40 + "somewhere/far/away")
    writer.hardlink("opt/second", "opt/text")
    writer.file_bytes("opt/" + "long/" * 30 + "name", b"x")


def written() -> tuple[bytes, LayerBlob]:
    out = io.BytesIO()
    writer = LayerWriter(out)
    sample(writer)
    blob = writer.finish()
    return out.getvalue(), blob


def test_a_layer_has_the_same_bytes_everywhere(each_inflater: None) -> None:
    _, blob = written()
    assert blob.diff_id.text == "sha256:6d41cc336868b07fcb9ded80c59cf768b9931bff30d3611541313aa0df1f6c85"
    assert blob.digest.text == "sha256:af3c715f0d40b61b87ee3e7df112ee71d90226c33dbc3c88c5f148c22900afaa"


def test_digests_and_sizes_are_those_of_the_blob_and_of_the_tar_in_it() -> None:
    data, blob = written()
    plain = gzip.decompress(data)
    assert (blob.size, blob.uncompressed_size) == (len(data), len(plain))
    assert blob.digest.hex == hashlib.sha256(data).hexdigest()
    assert blob.diff_id.hex == hashlib.sha256(plain).hexdigest()


def test_a_gzip_member_starts_at_every_payload() -> None:
    data, _ = written()
    starts, at, rest = set(), 0, data
    while rest:
        assert rest[:10] == encode.GZIP_HEADER
        member = zlib.decompressobj(31)
        starts.add(at)
        at += len(member.decompress(rest))
        rest = member.unused_data
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as archive:
        payloads = {entry.offset_data for entry in archive if entry.isreg() and entry.size}
    assert payloads
    assert payloads <= starts


names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=120
).filter(lambda name: name not in (".", "..") and not name.startswith(".wh."))
contents = st.one_of(
    st.binary(max_size=2000), st.builds(lambda seed, n: random.Random(seed).randbytes(n), st.integers(0, 99),
                                        st.sampled_from([511, 512, 513, 300_000]))
)  # fmt: skip
kinds = st.sampled_from(["directory", "symlink", "bytes", "stream", "deflated"])
entries = st.lists(
    st.tuples(
        st.lists(names, min_size=1, max_size=4), kinds, contents, st.integers(0, 0o7777),
        st.integers(0, 2**40), st.integers(0, 2**31 - 1),
    ),
    max_size=12,
    unique_by=lambda entry: "/".join(entry[0]),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(entries)
def test_any_tree_is_read_back(entries: list[tuple[list[str], str, bytes, int, int, int]]) -> None:
    out = io.BytesIO()
    writer = LayerWriter(out)
    wanted = []
    for parts, kind, data, mode, mtime, uid in entries:
        path = "/".join(parts)
        common = {"mode": mode, "mtime": mtime, "uid": uid, "gid": uid // 2}
        if kind == "directory":
            writer.directory(path, **common)
        elif kind == "symlink":
            writer.symlink(path, "/".join(reversed(parts)), **common)
        elif kind == "bytes":
            writer.file_bytes(path, data, **common)
        elif kind == "stream":
            writer.file_stream(path, len(data), pieces(data, 777), **common)
        else:
            raw = pieces(deflated(data), 1000)
            writer.file_deflated(path, len(data), zlib.crc32(data), raw, **common)
        link = "/".join(reversed(parts)) if kind == "symlink" else ""
        body = b"" if kind in ("directory", "symlink") else data
        wanted.append((path, mode, mtime, uid, uid // 2, link, body))
    writer.finish()
    seen = []
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(out.getvalue()))) as archive:
        for entry in archive:
            file = archive.extractfile(entry) if entry.isreg() else None
            body = file.read() if file else b""
            seen.append((entry.name, entry.mode, entry.mtime, entry.uid, entry.gid, entry.linkname, body))
            assert (entry.uname, entry.gname) == ("", "")
    assert seen == wanted


TEXT = b"what is in the file, and a little more of it " * 2000
PACKED = deflated(TEXT)

FALSE_DATA = {
    "cut off": (PACKED[:-20], len(TEXT), None, "ends early"),
    "nothing": (b"", len(TEXT), None, "ends early"),
    "damaged": (
        PACKED[:50] + bytes([PACKED[50] ^ 0xFF]) + PACKED[51:],
        len(TEXT),
        None,
        "damaged|CRC|inflates|early",
    ),
    "reserved block type": (b"\7", len(TEXT), None, "damaged"),
    "bytes behind the stream": (PACKED + b"\0", len(TEXT), None, "follow the end"),
    "a second stream": (PACKED + PACKED, len(TEXT), None, "follow the end"),
    "another CRC": (PACKED, len(TEXT), 1, "CRC-32"),
    "more than declared": (PACKED, len(TEXT) - 1, None, "more than the declared"),
    "less than declared": (PACKED, len(TEXT) + 1, None, "not to the declared"),
    "a bomb": (deflated(bytes(30_000_000)), 1000, None, "more than the declared"),
    "a bomb declared empty": (deflated(bytes(30_000_000)), 0, None, "more than the declared"),
}


@pytest.mark.parametrize("chunk", [7, 1 << 18])
@pytest.mark.parametrize("case", FALSE_DATA)
def test_false_deflate_data_are_refused(case: str, chunk: int, each_inflater: None) -> None:
    packed, size, crc, message = FALSE_DATA[case]
    writer = LayerWriter(io.BytesIO())
    with pytest.raises(ArtefactUnusable, match=message):
        writer.file_deflated("a", size, zlib.crc32(TEXT) if crc is None else crc, pieces(packed, chunk))


@pytest.mark.parametrize(
    "path", ["", "/", "a//b", "./a", "a/.", "a/../b", "..", "a\0b", "a/.wh.b", ".wh..wh..opq"]
)
def test_a_path_that_may_not_be_in_a_layer_is_refused(path: str) -> None:
    with pytest.raises(ArtefactUnusable):
        LayerWriter(io.BytesIO()).file_bytes(path, b"")


def test_a_path_comes_once_only() -> None:
    writer = LayerWriter(io.BytesIO())
    writer.directory("a")
    with pytest.raises(ArtefactUnusable, match="twice"):
        writer.file_bytes("/a/", b"")


def test_a_hard_link_needs_its_file() -> None:
    with pytest.raises(ArtefactUnusable, match="hard link"):
        LayerWriter(io.BytesIO()).hardlink("a", "b")


@pytest.mark.parametrize("chunks", [[], [b"abc"], [b"abcd", b"e"]])
def test_a_stream_must_have_its_size(chunks: list[bytes]) -> None:
    with pytest.raises(ArtefactUnusable, match="declared size"):
        LayerWriter(io.BytesIO()).file_stream("a", 4, chunks)


def test_a_full_disk_is_not_hidden() -> None:
    with pytest.raises(OSError, match="No space"):
        LayerWriter(Broken()).file_bytes("a", os.urandom(2 << 20))


@pytest.mark.parametrize(
    "entry",
    [
        tar.Entry(b"a/" * 60 + b"b", tar.FILE),
        tar.Entry(b"a" * 101, tar.FILE),
        tar.Entry(b"a" * 100, tar.FILE),
        tar.Entry(b"d" * 155 + b"/" + b"f" * 100, tar.FILE),
        tar.Entry(b"d" * 156 + b"/" + b"f" * 100, tar.FILE),
        tar.Entry(b"d" * 99 + b"/", tar.DIRECTORY),
        tar.Entry(b"d" * 100 + b"/", tar.DIRECTORY),
        tar.Entry("größe/".encode(), tar.DIRECTORY),
        tar.Entry(b"big", tar.FILE, size=8 << 30),
        tar.Entry(b"not so big", tar.FILE, size=(8 << 30) - 1),
        tar.Entry(b"old", tar.FILE, mtime=-1),
        tar.Entry(b"late", tar.FILE, mtime=1 << 33),
        tar.Entry(b"user", tar.FILE, uid=1 << 21, gid=1 << 22),
        tar.Entry(b"link", tar.SYMLINK, link=b"t" * 101),
        tar.Entry(b"link", tar.HARDLINK, link="zü".encode()),
        tar.Entry(b"\xff\xfe", tar.FILE),
    ],
    ids=lambda entry: f"{entry.name[:12]!r}-{len(entry.name)}",
)
def test_headers_say_to_tarfile_what_they_should(entry: tar.Entry) -> None:
    data = tar.header(entry)
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data + tar.END), mode="r:", ignore_zeros=False) as archive:
        seen = archive.next()
    assert seen is not None
    assert seen.name.encode("utf-8", "surrogateescape") == entry.name.rstrip(b"/")
    assert seen.linkname.encode("utf-8", "surrogateescape") == entry.link
    assert (seen.size, seen.mtime, seen.uid, seen.gid) == (entry.size, entry.mtime, entry.uid, entry.gid)


def test_memory_stays_flat() -> None:
    block = os.urandom(1 << 20)

    class Sink(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            return len(data)  # type: ignore[arg-type]

    tracemalloc.start()
    try:
        writer = LayerWriter(Sink())  # type: ignore[arg-type]
        writer.file_stream("a", 64 << 20, (block for _ in range(64)))
        packed = deflated(block)
        for number in range(64):
            writer.file_deflated(f"f{number}", len(block), zlib.crc32(block), pieces(packed, 1 << 18))
        writer.finish()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_two_layers_at_once_do_not_disturb_each_other() -> None:
    expected = written()[1]
    results: list[LayerBlob] = []
    threads = [threading.Thread(target=lambda: results.append(written()[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_an_encoder_that_makes_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import deflate

    real = deflate.gzip_compress
    monkeypatch.setattr(deflate, "gzip_compress", lambda data, level: real(data, level + 1))
    encode._prove.cache_clear()
    with pytest.raises(MachineLacks, match="deflate"):
        encode.gzip_member(b"data")
    monkeypatch.undo()
    encode.gzip_member(b"data")
