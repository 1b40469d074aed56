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


def tarred(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


LONG, GNU = tarfile.GNUTYPE_LONGNAME, tarfile.GNU_FORMAT


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


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


def with_size(data: bytes, size: bytes) -> bytes:
    """The first header's size replaced (octal, or GNU's binary form), its checksum made right."""
    block = bytearray(data[:512])
    block[124:136] = size.ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data[512:]


def pax(records: dict[str, str], name: str = "x", data: bytes = b"") -> bytes:
    member = named(name)
    member.pax_headers = records
    return tarred((member, data))


EXBIBYTES = b"\x80" + (7 << 60).to_bytes(11, "big")
HOSTILE = {
    "a size that is not there": with_size(tarred((named("x"), b"some")), EXBIBYTES),
    "a size that is not there, in a record": pax({"size": str(1 << 90)}),
    "a size that leads back": pax({"size": "-100000"}),
    "a header of exbibytes": with_size(tarred((named("x", tarfile.XHDTYPE), b"")), EXBIBYTES),
    "a name of exbibytes": with_size(tarred((named("x", LONG), b"")), EXBIBYTES),
    "a name of 2 MiB": tarred((named("x", LONG), b"a" * (2 << 20)), form=GNU),
    "headers of headers": tarred(*[(named("x", LONG), b"y")] * 5000, form=GNU),
    "an old sparse file": tarred((named("x", tarfile.GNUTYPE_SPARSE), b"")),
    "a sparse file": pax({"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 60)}),
    "a sparse file whose map never ends": pax(
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, data=b"99999999\n"
    ),
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


def test_what_the_reader_raises_itself_stays_what_it_is() -> None:
    with pytest.raises(FileNotFoundError):
        for _ in Members(io.BytesIO(GOOD), "it"):
            raise FileNotFoundError


@pytest.mark.parametrize(("name", "path"), [("./", ""), ("/a//b/", "a/b"), ("a/./b", "a/b"), (".", "")])
def test_paths(name: str, path: str) -> None:
    assert cleaned(name) == path
