"""METADATA from the last entries of an archive: right, or None, or an error; never something else."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.http import Session
from imagebuilder.index.metadata import wheel_metadata
from imagebuilder.index.ranged import RangedFile
from tests.support.http_server import Server

TEXT = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n" * 50
NAME = "demo-1.0.dist-info/METADATA"


def archive(
    files: int = 0,
    *,
    after: int = 0,
    name: str = NAME,
    method: int = zipfile.ZIP_DEFLATED,
    comment: bytes = b"",
) -> bytes:
    """A wheel with so many files before and after its METADATA."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for number in range(files):
            made.writestr(f"demo/include/some/long/folder/name/file_{number}.h", b"")
        made.writestr(name, TEXT)
        for number in range(after):
            made.writestr(f"demo-1.0.dist-info/licenses/{number}", b"")
        made.comment = comment
    return out.getvalue()


@pytest.fixture
def read(server: Server, http: Session) -> Callable[[bytes], bytes | None]:
    def read(data: bytes) -> bytes | None:
        server.put("/demo.whl", data)
        return wheel_metadata(RangedFile(server.url + "/demo.whl", http))

    return read


Read = Callable[[bytes], "bytes | None"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
@pytest.mark.parametrize("files", [0, 1, 100, 2000])
def test_metadata_is_found_from_the_end(read: Read, files: int, method: int) -> None:
    assert read(archive(files, after=3, method=method)) == TEXT


def test_a_large_directory_is_not_read(server: Server, http: Session) -> None:
    data = archive(20_000, after=3)
    file = RangedFile(server.put("/demo.whl", data), http)
    assert wheel_metadata(file) == TEXT
    assert file.received < 200_000 < len(data)


def test_a_comment_at_the_end(read: Read) -> None:
    assert read(archive(5, comment=b"a comment")) == TEXT


@pytest.mark.parametrize(
    "data",
    [
        archive(5, after=2000),  # too far from the end
        archive(5, name="demo/METADATA"),
        archive(5, name="vendored/demo-1.0.dist-info/METADATA"),
        archive(5) + b"more",
        b"before" + archive(5),
        b"no archive at all",
        b"PK\5\6",
        archive(5)[:-1],
    ],
)
def test_where_it_is_not_found_the_answer_is_none(read: Read, data: bytes) -> None:
    assert read(data) is None


def test_two_of_them_are_none(read: Read) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr(NAME, TEXT)
        made.writestr("other-1.0.dist-info/METADATA", TEXT)
    assert read(out.getvalue()) is None


def patched(field: int, form: str, value: int) -> bytes:
    """The archive with one field of METADATA's directory entry changed."""
    data = bytearray(archive())
    struct.pack_into(form, data, data.rfind(b"PK\1\2") + field, value)
    return bytes(data)


BROKEN = {
    "crc": patched(16, "<L", 1),
    "packed size": patched(20, "<L", 3),
    "packed size beyond the end": patched(20, "<L", 1 << 20),
    "size": patched(24, "<L", 3),
    "a bomb": patched(24, "<L", 1 << 31),
    "method": patched(10, "<H", 99),
    "offset": patched(42, "<L", 7),
    "offset beyond the end": patched(42, "<L", 1 << 31),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_metadata_is_an_error(read: Read, data: bytes) -> None:
    with pytest.raises(ArtefactUnusable, match=r"the METADATA of demo\.whl cannot be read"):
        read(data)


@hypothesis_settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(position=st.integers(0, len(archive(3)) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_harmless(read: Read, position: int, value: int) -> None:
    data = bytearray(archive(3))
    data[position] = value
    with contextlib.suppress(ArtefactUnusable):
        assert read(bytes(data)) in (TEXT, None)
