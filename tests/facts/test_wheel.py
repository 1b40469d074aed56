"""Wheels are read rightly, and everything that is wrong with one is an error of its own."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.wheel import EntryPoint, Wheel
from imagebuilder.facts.ziparchive import ZipArchive
from tests.support.wheels import (
    EXECUTABLE,
    LINK,
    Content,
    Raw,
    make_wheel,
    raw_wheel_entries,
    raw_zip,
    record_row,
)

NAME = "sample-1.0-py3-none-any.whl"


def opened(data: bytes, filename: str | None = NAME) -> Wheel:
    return Wheel.open(io.BytesIO(data), filename)


def read_all(wheel: Wheel) -> dict[str, bytes]:
    return {member.path: b"".join(wheel.stream(member)) for member in wheel.files}


def zipped(*entries: Raw) -> bytes:
    return raw_zip([*raw_wheel_entries(), *entries])


def test_a_wheel_says_what_it_is(tmp_path: Path) -> None:
    points = "# tools\n[console_scripts]\nrun = sample.cli:main\n\n[plug.ins]\nb=x.y:z [extra]\na = m\n"
    files = {"sample/__init__.py": b"a = 1\n", "sample/tool": Content(data=b"x", mode=EXECUTABLE)}
    path = make_wheel(tmp_path, files=files, entry_points=points, metadata="Requires-Dist: other>=2\n")
    with Wheel.open(path) as wheel:
        assert (wheel.name, wheel.version, wheel.dist_info) == ("sample", "1.0", "sample-1.0.dist-info")
        assert {str(tag) for tag in wheel.tags} == {"py3-none-any"}
        assert wheel.metadata()["requires_dist"] == ["other>=2"]
        assert wheel.wheel_file()["Root-Is-Purelib"] == "true"
        assert wheel.entry_points() == (
            EntryPoint(group="console_scripts", name="run", value="sample.cli:main"),
            EntryPoint(group="plug.ins", name="b", value="x.y:z [extra]"),
            EntryPoint(group="plug.ins", name="a", value="m"),
        )
        assert wheel.record()[0] == record_row("sample/__init__.py", b"a = 1\n").split(",")
        assert wheel.record_oddities() == ()
        assert [m.is_executable for m in wheel.files[:2]] == [False, True]
        assert wheel.read("sample/__init__.py") == b"a = 1\n"
        member = wheel.member("sample/__init__.py")
        assert member is not None
        assert zlib.decompress(b"".join(wheel.raw_deflate(member)), -15) == b"a = 1\n"
        assert wheel.member("sample") is None


def test_a_wheel_may_come_as_a_file_under_another_name(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "Some_Name", "2.0+cu130", files={"a.py": b""})
    hidden = path.rename(tmp_path / "0123abcd")
    wheel = Wheel.open(hidden, "some_name-2.0+cu130-py3-none-any.whl")
    assert (wheel.name, wheel.version) == ("some-name", "2.0+cu130")
    wheel.close()
    with hidden.open("rb") as file:
        assert opened(file.read(), None).tags


def test_what_is_odd_about_record_is_told(tmp_path: Path) -> None:
    rows = ["a.py,sha256=x,7", "gone.py,,", "sample-1.0.dist-info/RECORD,,"]
    path = make_wheel(tmp_path, files={"a.py": b"a", "b.py": b"b"}, record="\n".join(rows))
    told = " ".join(Wheel.open(path).record_oddities())
    for part in ("a.py 7 bytes, it has 1", "b.py is not in RECORD", "lists gone.py"):
        assert part in told


METHODS = {"stored": 0, "deflated": 8, "bzip2": 12, "lzma": 14}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_every_method_of_zipfile_is_read(method: int, size: int, tmp_path: Path) -> None:
    data = (b"some text, %d\n" % size * (size // 10 + 1))[:size]
    path = make_wheel(tmp_path, files={"a": Content(data=data, method=method)})
    with Wheel.open(path) as wheel:
        assert wheel.read("a") == data


@pytest.mark.parametrize("streamed", [False, True], ids=["sizes in front", "data descriptors"])
def test_what_zipfile_writes_is_read(streamed: bool, tmp_path: Path) -> None:
    """zipfile writes data descriptors where it cannot go back, and zip64 fields where it is told to."""
    buffer = io.BytesIO()

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            return buffer.write(data)  # type: ignore[arg-type]

    target: io.IOBase = Pipe() if streamed else buffer
    source = make_wheel(tmp_path, files={"größe/a": b"a" * 5000, "b": b""})
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:  # type: ignore[call-overload]
        for entry in old.infolist():
            with new.open(zipfile.ZipInfo(entry.filename), "w", force_zip64=True) as out:
                out.write(old.read(entry))
        new.writestr("folder/", b"")
        new.comment = b"with a comment"
    wheel = opened(buffer.getvalue())
    assert read_all(wheel)["größe/a"] == b"a" * 5000
    assert [member.path for member in wheel.members if member.is_dir] == ["folder/"]


def end64(data: bytes, **changes: int) -> bytes:
    """The archive with zip64 end records, which lie where `changes` say so."""
    end = data.rindex(b"PK\5\6")
    _, _, _, _, count, length, start, _ = struct.unpack("<4s4H2LH", data[end:])
    told = {"count": count, "length": length, "start": start, "record": end, "size": 44} | changes
    record = struct.pack(
        "<4sQ2H2L4Q",
        b"PK\6\6",
        told["size"],
        45,
        45,
        0,
        0,
        told["count"],
        told["count"],
        told["length"],
        told["start"],
    )
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, told["record"], 1)
    old = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:end] + record + locator + old


def test_a_zip64_archive_is_read() -> None:
    field = struct.pack("<2H2Q", 1, 16, 5, 5)
    large = Raw(name=b"a", data=b"12345", method=0, size=0xFFFFFFFF, compressed=0xFFFFFFFF, extra=field)
    wheel = opened(end64(zipped(large)))
    assert wheel.read("a") == b"12345"


TEXT = b"some text " * 100
GOOD = Raw(name=b"a.py", data=TEXT)


def flipped(data: bytes, needle: bytes, ahead: int = 0) -> bytes:
    at = data.index(needle) + ahead
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def overlapping() -> bytes:
    first = Raw(name=b"b.py", data=TEXT)
    whole = raw_zip([first])
    return raw_zip([*raw_wheel_entries(), first, replace(GOOD, offset=0)]) if whole else b""


def nested() -> bytes:
    """The best-known zip bomb: many members that share one body."""
    inner = Raw(name=b"c.py", data=bytes(100_000))
    body = raw_zip([*raw_wheel_entries(), inner])
    offset = body.index(b"c.py") - 30
    return raw_zip(
        [*raw_wheel_entries(), inner, *[replace(inner, name=b"%d.py" % n, offset=offset) for n in range(3)]]
    )


STRUCTURE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty file": (lambda: b"", "not a zip"),
    "not a zip": (lambda: b"#!/bin/sh\nexit 1\n" * 100, "not a zip"),
    "an HTML page": (lambda: b"<!doctype html><title>404</title>", "not a zip"),
    "truncated": (lambda: zipped(GOOD)[:-30], "not a zip"),
    "end cut off": (lambda: zipped(GOOD)[:-5], "not a zip|follows the end"),
    "something behind": (lambda: zipped(GOOD) + b"more", "follows the end"),
    "something before": (lambda: b"before" + zipped(GOOD), "central directory is not where"),
    "two archives": (lambda: zipped(GOOD) + zipped(GOOD), "central directory is not where"),
    "wrong count": (lambda: raw_zip([*raw_wheel_entries(), GOOD], count=2), "directory lies"),
    "count of many": (lambda: raw_zip([*raw_wheel_entries(), GOOD], count=60_000), "directory lies"),
    "damaged directory": (lambda: flipped(zipped(GOOD), b"PK\1\2", 1), "directory is damaged"),
    "zip64 that lies about the count": (lambda: end64(zipped(GOOD), count=2**40), "directory is too large"),
    "zip64 that lies about the start": (lambda: end64(zipped(GOOD), start=5), "not where"),
    "zip64 that lies about the length": (lambda: end64(zipped(GOOD), length=2**60), "not where"),
    "zip64 record elsewhere": (lambda: end64(zipped(GOOD), record=2**62), "zip64 end record"),
    "zip64 record too long": (lambda: end64(zipped(GOOD), size=2**50), "zip64 end record"),
    "zip64 sizes missing": (lambda: zipped(replace(GOOD, size=0xFFFFFFFF)), "zip64 sizes"),
    "zip64 sizes incomplete": (
        lambda: zipped(replace(GOOD, size=0xFFFFFFFF, extra=b"\1\0\4\0abcd")),
        "zip64 sizes",
    ),
    "zip64 offset beyond the end": (
        lambda: zipped(replace(GOOD, offset=0xFFFFFFFF, extra=struct.pack("<2HQ", 1, 8, 2**50))),
        "overlaps",
    ),
    "offset beyond the end": (lambda: zipped(replace(GOOD, offset=10**6)), "overlaps"),
    "overlapping": (overlapping, "overlaps"),
    "members that share a body": (nested, "overlaps"),
    "encrypted": (lambda: zipped(replace(GOOD, flags=1)), "encrypted"),
    "strongly encrypted": (lambda: zipped(replace(GOOD, flags=0x41)), "encrypted"),
    "patched data": (lambda: zipped(replace(GOOD, flags=0x20)), "do not know"),
    "unknown method": (lambda: zipped(replace(GOOD, method=97, packed=b"xx")), "do not know"),
    "stored with two sizes": (lambda: zipped(replace(GOOD, method=0, size=5)), "sizes of"),
    "an impossible ratio": (lambda: zipped(replace(GOOD, size=2**31)), "sizes of"),
    "a bomb of honest sizes": (
        lambda: zipped(*[Raw(name=b"%d" % n, packed=bytes(5_000_000), size=2**31, crc=0) for n in range(2)]),
        "zip bomb",
    ),
    "a name that is not UTF-8": (lambda: zipped(replace(GOOD, name=b"\xff\xfe", flags=0x800)), "UTF-8"),
    "a second name": (
        lambda: zipped(replace(GOOD, extra=struct.pack("<2HBL", 0x7075, 8, 1, 0) + b"evl")),
        "second name",
    ),
}

PATHS = {
    "traversal": b"../evil.py",
    "traversal inside": b"pkg/../../evil.py",
    "traversal that stays": b"pkg/../evil.py",
    "traversal by a folder": b"../evil/",
    "absolute": b"/etc/passwd",
    "backslash": b"..\\evil.py",
    "drive": b"C:/evil.py",
    "NUL": b"a.py\0.txt",
    "dot": b"./a.py",
    "empty part": b"pkg//a.py",
    "empty": b"",
    "a long name": b"n" * 256,
    "a long path": b"pkg/" * 1000 + b"a.py",
}

DATA: dict[str, tuple[Raw, str]] = {
    "wrong CRC": (replace(GOOD, crc=1), "CRC-32"),
    "wrong CRC, stored": (replace(GOOD, method=0, crc=1), "CRC-32"),
    "size too small": (replace(GOOD, size=5), "more than the declared"),
    "size too large": (replace(GOOD, size=5000), "not to the declared"),
    "packed size too small": (replace(GOOD, compressed=3), "ends early|not to the declared"),
    "corrupted": (replace(GOOD, packed=b"\xff" * 20), "damaged|CRC"),
    "data behind the stream": (replace(GOOD, packed=GOOD.payload() + b"tail"), "follow the end"),
    "a bomb": (replace(GOOD, data=bytes(10_000_000), size=40_000), "more than the declared"),
    "local name": (replace(GOOD, local={"name": b"b.py"}), "another name"),
    "local name of another length": (replace(GOOD, local={"name": b"longer.py"}), "another name"),
    "local method": (replace(GOOD, local={"method": 0, "packed": GOOD.payload()}), "contradicts"),
    "local size": (replace(GOOD, local={"size": 1}), "contradicts"),
    "local packed size": (replace(GOOD, local={"compressed": 1}), "contradicts"),
    "local CRC": (replace(GOOD, local={"crc": 1}), "contradicts"),
    "local encryption": (replace(GOOD, local={"flags": 1}), "contradicts"),
    "local extra field beyond the member": (
        replace(GOOD, local={"extra_length": 60_000}),
        "overlaps",
    ),
    "descriptor": (
        replace(GOOD, flags=8, descriptor=struct.pack("<4s3L", b"PK\7\x08", 1, 2, 3)),
        "descriptor",
    ),
    "descriptor missing": (replace(GOOD, flags=8), "descriptor"),
    "bzip2": (replace(GOOD, method=12, packed=b"BZh9" + b"\0" * 30), "damaged|instead of"),
    "lzma": (replace(GOOD, method=14, packed=b"\0" * 40), "LZMA"),
    "lzma that wants all memory": (
        replace(GOOD, method=14, packed=b"\x09\x04\5\0\x5d\xff\xff\xff\xff" + bytes(40)),
        "damaged",
    ),
}


@pytest.mark.parametrize("case", STRUCTURE)
def test_an_unsound_archive_is_refused(case: str) -> None:
    make, message = STRUCTURE[case]
    with pytest.raises(ArtefactUnusable, match=message):
        opened(make())


@pytest.mark.parametrize("case", PATHS)
def test_a_path_that_leads_astray_is_refused(case: str) -> None:
    with pytest.raises(ArtefactUnusable, match="path that"):
        opened(zipped(replace(GOOD, name=PATHS[case])))


@pytest.mark.parametrize("case", DATA)
def test_false_members_are_refused_when_read(case: str, tmp_path: Path) -> None:
    entry, message = DATA[case]
    path = tmp_path / NAME
    path.write_bytes(zipped(entry, Raw(name=b"z.py", data=b"z")))
    for source in (path, io.BytesIO(path.read_bytes())):
        with Wheel.open(source, NAME) as wheel, pytest.raises(ArtefactUnusable, match=message):
            read_all(wheel)


INFO = "sample-1.0.dist-info"
CONTENTS: dict[str, tuple[dict[str, bytes | Content], str, str]] = {
    "no dist-info": ({}, "none", "not a wheel"),
    "two dist-info folders": ({"other-1.0.dist-info/METADATA": b""}, "", "several packages"),
    "another name": ({}, "other-1.0-py3-none-any.whl", "another package"),
    "another version": ({}, "sample-1.1-py3-none-any.whl", "another package"),
    "another local version": ({}, "sample-1.0+cu130-py3-none-any.whl", "another package"),
    "not a wheel's name": ({}, "sample.zip", "not the name of a wheel"),
    "unknown Wheel-Version": ({f"{INFO}/WHEEL": b"Wheel-Version: 2.0\n"}, "", "Wheel-Version"),
    "no Wheel-Version": ({f"{INFO}/WHEEL": b"Tag: py3-none-any\n"}, "", "Wheel-Version"),
    "a file and a folder": ({"a": b"", "a/b": b""}, "", "a file and a folder"),
    "a link out": ({"a": Content(data=b"../../etc/passwd", mode=LINK)}, "", "leads out"),
    "an absolute link": ({"a": Content(data=b"/etc/passwd", mode=LINK)}, "", "leads out"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_a_wheel_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    files, filename, message = CONTENTS[case]
    path = make_wheel(tmp_path, files=files)
    if filename == "none":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.py", "")
    elif filename:
        path = path.rename(tmp_path / filename)
    with pytest.raises(ArtefactUnusable, match=message):
        Wheel.open(path)


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL", "RECORD"])
def test_a_wheel_without_its_papers_is_refused(missing: str) -> None:
    entries = [entry for entry in raw_wheel_entries() if not entry.name.endswith(missing.encode())]
    with pytest.raises(ArtefactUnusable, match=missing):
        opened(raw_zip(entries))


def test_two_members_for_one_path_are_refused() -> None:
    with pytest.raises(ArtefactUnusable, match="two files"):
        opened(zipped(GOOD, replace(GOOD, data=b"other")))


def test_a_link_inside_is_what_pip_makes_of_it_a_file(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, files={"pkg/a": b"", "pkg/b": Content(data=b"a", mode=LINK)})
    assert Wheel.open(path).read("pkg/b") == b"a"


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[console_scripts]\nno equals sign\n"])
def test_entry_points_that_cannot_be_read_are_an_error(text: bytes, tmp_path: Path) -> None:
    path = make_wheel(tmp_path, files={f"{INFO}/entry_points.txt": text})
    with Wheel.open(path) as wheel, pytest.raises(ArtefactUnusable, match=r"entry_points\.txt"):
        wheel.entry_points()


def test_a_file_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    with Wheel.open(make_wheel(tmp_path, files={"a": b"123456"})) as wheel:
        with pytest.raises(ArtefactUnusable, match="too large"):
            wheel.read("a", 5)
        with pytest.raises(ArtefactUnusable, match="there is no b"):
            wheel.read("b")


WHOLE = zipped(GOOD, Raw(name=b"b.py", data=b"stored", method=0), Raw(name=b"c.py", data=b"x" * 3000))


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, len(WHOLE)),
)
def test_damage_anywhere_is_an_error_or_harmless(changes: list[tuple[int, int]], cut: int) -> None:
    """Whatever bytes change: ArtefactUnusable or the same contents, never another exception."""
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    good = {m.path: m.crc for m in ZipArchive(io.BytesIO(WHOLE), "good").members}
    for damaged in (bytes(data), WHOLE[:cut]):
        try:
            contents = read_all(opened(damaged, None))
        except ArtefactUnusable:
            continue
        assert all(zlib.crc32(text) == good.get(path, zlib.crc32(text)) for path, text in contents.items())
