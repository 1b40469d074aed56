"""Layers of any make come out as one and the same."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zstandard

from imagebuilder.builders.docker.normalise import folders, normalise
from imagebuilder.errors import ArtefactUnusable, BuildFailed
from imagebuilder.oci.layer import LayerBlob

LATEST = 1_000_000


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: object
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(data)
    member.mode, member.mtime = (0o755, 5) if kind == tarfile.DIRTYPE else (0o644, 7)
    for key, value in fields.items():
        setattr(member, key, value)
    return member, data


def tar_of(entries: Sequence[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def normal(tmp_path: Path, data: bytes, drop: Sequence[str] = ()) -> tuple[LayerBlob, list[tarfile.TarInfo]]:
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "out").open("wb") as out:
        blob = normalise(tmp_path / "in", out, latest=LATEST, scratch=tmp_path, drop=drop)
    with tarfile.open(tmp_path / "out") as archive:
        return blob, archive.getmembers()


TREE = [
    entry("b/", tarfile.DIRTYPE),
    entry("b/long" + "x" * 120, data=b"1" * 3000),
    entry("a", data=b"hello", mtime=LATEST + 9),
    entry("b-", data=b"sorts after b/ part by part"),
    entry("b/é", data=b"\0" * (1 << 20)),
    entry("s", tarfile.SYMTYPE, linkname="../up", mode=0o777),
    entry("b/.wh.gone"),
    entry("setuid", mode=0o4755, uid=12, gid=34),
]


def test_order_owners_names_forms_and_compression_do_not_matter(tmp_path: Path) -> None:
    first, _ = normal(tmp_path, tar_of(TREE))
    for seed in range(5):
        shuffled = random.Random(seed).sample(TREE, len(TREE))
        for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            for pack in (bytes, gzip.compress, zstandard.compress):
                again, _ = normal(tmp_path, pack(tar_of(shuffled, form)))
                assert again == first
    named = [(member, data) for member, data in TREE]
    for member, _ in named:
        member.uname = "somebody"
    assert normal(tmp_path, tar_of(named))[0] == first


def test_what_counts_is_kept(tmp_path: Path) -> None:
    _, members = normal(tmp_path, tar_of(TREE))
    by_name = {m.name: m for m in members}
    assert [m.name for m in members] == [
        "a",
        "b",
        "b/.wh.gone",
        "b/long" + "x" * 120,
        "b/é",
        "b-",
        "s",
        "setuid",
    ]
    assert by_name["a"].mtime == LATEST and by_name["b"].mtime == 5
    assert (by_name["setuid"].mode, by_name["setuid"].uid, by_name["setuid"].gid) == (0o4755, 12, 34)
    assert by_name["s"].linkname == "../up"
    with tarfile.open(tmp_path / "out") as archive:
        content = archive.extractfile("b/é")
        assert content is not None and content.read() == b"\0" * (1 << 20)


def test_of_the_names_of_one_file_the_first_is_the_file(tmp_path: Path) -> None:
    one = [
        entry("z", data=b"same"),
        entry("a", tarfile.LNKTYPE, linkname="z"),
        entry("m", tarfile.LNKTYPE, linkname="z"),
    ]
    two = [
        entry("a", data=b"same"),
        entry("m", tarfile.LNKTYPE, linkname="a"),
        entry("z", tarfile.LNKTYPE, linkname="a"),
    ]
    first, members = normal(tmp_path, tar_of(one))
    assert normal(tmp_path, tar_of(two))[0] == first
    assert [(m.name, m.islnk(), m.linkname) for m in members] == [
        ("a", False, ""),
        ("m", True, "a"),
        ("z", True, "a"),
    ]


def test_capabilities_of_files_are_kept(tmp_path: Path) -> None:
    value = "\x01\x00\x00\x02 \udcff"
    member, data = entry("ping", data=b"x")
    member.pax_headers = {"SCHILY.xattr.security.capability": value, "mtime": "7.25"}
    _, members = normal(tmp_path, tar_of([(member, data)]))
    assert members[0].pax_headers == {"SCHILY.xattr.security.capability": value}


def test_the_last_entry_of_a_path_counts(tmp_path: Path) -> None:
    twice = [entry("a", data=b"old"), entry("a", data=b"new")]
    assert normal(tmp_path, tar_of(twice))[0] == normal(tmp_path, tar_of(twice[1:]))[0]


def test_folders_that_were_only_touched_are_told(tmp_path: Path) -> None:
    def seen(*entries: tuple[tarfile.TarInfo, bytes]) -> Path:
        (tmp_path / "layer").write_bytes(tar_of(entries))
        return tmp_path / "layer"

    below = folders(seen(entry("etc", tarfile.DIRTYPE), entry("tmp", tarfile.DIRTYPE, mode=0o1777))).over({})
    touched = folders(
        seen(
            entry("etc", tarfile.DIRTYPE, mtime=99),
            entry("tmp", tarfile.DIRTYPE, mode=0o755),
            entry("new", tarfile.DIRTYPE),
            entry("opt", tarfile.DIRTYPE),
            entry("opt/x"),
        )
    )
    assert touched.only_touched(below) == {"etc"}
    gone = folders(seen(entry(".wh.etc")))
    assert "etc" not in gone.over(below) and "tmp" in gone.over(below)
    emptied = folders(seen(entry("etc/.wh..wh..opq"), entry("etc", tarfile.DIRTYPE)))
    assert "etc/x" not in emptied.over({**below, "etc/x": (0o755, 0, 0)})


def test_what_is_dropped_is_not_there(tmp_path: Path) -> None:
    _, members = normal(tmp_path, tar_of([entry("etc", tarfile.DIRTYPE), entry("x")]), drop=["etc"])
    assert [m.name for m in members] == ["x"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(BuildFailed, match="/dev/x"):
        normal(tmp_path, tar_of([entry("dev/x", kind)]))


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "no tar": lambda data: b"this is no tar" * 100,
    "cut tar": lambda data: data[:700],
    "cut gzip": lambda data: gzip.compress(data)[:-20],
    "bad gzip": lambda data: gzip.compress(data)[:50] + b"\xff" * 50 + gzip.compress(data)[100:],
    "up and out": lambda data: tar_of([entry("../x", data=b"x")]),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_no_layer_is_refused(tmp_path: Path, how: str) -> None:
    noise = random.Random(1).randbytes(5000)
    with pytest.raises(ArtefactUnusable):
        normal(tmp_path, BROKEN[how](tar_of([entry("a", data=noise), entry("b", data=noise)])))
