"""Reading a .deb: all compressions, and everything that is refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index import debfile
from tests.support.debian import file, folder, info, make_deb, member, tar
from tests.support.tars import HARMFUL

DATA = [file("./usr/bin/hello", b"#!/bin/sh\n" * 1000, 0o755)]


def read(deb: bytes) -> tuple[dict[str, tuple[bytes, int]], list[str]]:
    stream = io.BytesIO(deb)
    found = debfile.locate(stream, "x")
    control = debfile.read_control(stream, found, "x")
    data = b"".join(debfile.unpacked(stream, found.data, "x", 1 << 30))
    return control, [debfile.clean(e.name, "x") for e in debfile.entries(io.BytesIO(data), len(data), "x")]


@pytest.mark.parametrize("pack", ["xz", "gz", "zst", ""])
def test_a_package(pack: str) -> None:
    control, paths = read(make_deb("hello", DATA, scripts={"postinst": "true\n"}, pack=pack))
    assert debfile.stanza(control["control"][0], "x")["Package"] == "hello"
    assert control["postinst"] == (b"true\n", 0o755)
    assert paths == ["", "usr", "usr/bin", "usr/bin/hello"]


def test_one_file_of_a_package() -> None:
    deb = io.BytesIO(make_deb("hello", DATA))
    assert debfile.read_data(deb, "usr/bin/hello", "x", 1 << 20) == b"#!/bin/sh\n" * 1000
    assert debfile.read_data(deb, "usr/bin/other", "x", 1 << 20) is None


def _pax_bomb() -> bytes:
    header = info("././@PaxHeader", b"x", size=1 << 32)
    return header.tobuf(tarfile.USTAR_FORMAT) + bytes(4096)


def _bad_header() -> bytes:
    whole = tar([folder("./"), *DATA])
    return whole[:512] + b"x" * 512 + whole[1024:]


def _without_header_magic(deb: bytes) -> bytes:
    return deb.replace(b"`\n", b"xx", 1)


GOOD = make_deb("hello", DATA)
BAD = {
    "nothing": b"",
    "no ar archive": b"PK\x03\x04" + bytes(100),
    "a bad ar header": _without_header_magic(GOOD),
    "a negative size": GOOD.replace(b"4         `\n", b"-60       `\n", 1),
    "a size that lies": GOOD[:-20],
    "only the first member": GOOD[:72],
    "not debian-binary first": b"!<arch>\n" + member("data.tar", b""),
    "format 3": b"!<arch>\n" + member("debian-binary", b"3.0\n"),
    "no control": b"!<arch>\n" + member("debian-binary", b"2.0\n") + member("data.tar", b""),
    "data twice": GOOD + member("data.tar.gz", gzip.compress(b"")),
    "an unknown compression": GOOD.replace(b"data.tar.xz ", b"data.tar.lzo", 1),
    "a damaged xz stream": GOOD[:-40] + b"\0" * 8 + GOOD[-32:],
    "no control file": b"!<arch>\n"
    + member("debian-binary", b"2.0\n")
    + member("control.tar.gz", gzip.compress(tar([folder("./")])))
    + member("data.tar.gz", gzip.compress(tar([]))),
    "an absolute path": make_deb("x", [file("/etc/passwd")], whole=True),
    "a path upwards": make_deb("x", [file("./../etc/passwd")], whole=True),
    "a line break in a path": make_deb("x", [file("./a\nb")], whole=True),
    "a huge tar extension header": make_deb("x", raw_data=_pax_bomb()),
    "a bad tar header in the middle": make_deb("x", raw_data=_bad_header()),
    "a tar file that is cut off": make_deb("x", raw_data=tar(DATA)[:3000]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    with pytest.raises(ArtefactUnusable):
        read(BAD[case])


@pytest.mark.parametrize("data", HARMFUL.values(), ids=list(HARMFUL))
def test_headers_that_were_made_to_harm(data: bytes) -> None:
    with pytest.raises(ArtefactUnusable):
        list(debfile.entries(io.BytesIO(data), len(data), "x"))


def test_a_bomb() -> None:
    deb = io.BytesIO(make_deb("x", [file("./zeros", bytes(10 << 20))]))
    assert len(deb.getvalue()) < 20_000
    found = debfile.locate(deb, "x")
    with pytest.raises(ArtefactUnusable, match="more than it may"):
        for _ in debfile.unpacked(deb, found.data, "x", 1 << 20):
            pass


@settings(max_examples=200, deadline=None)
@given(st.integers(min_value=0, max_value=len(GOOD) - 1), st.integers(min_value=0, max_value=255))
def test_any_changed_byte_is_read_or_refused(at: int, value: int) -> None:
    """Never anything but the answer or ArtefactUnusable."""
    changed = bytearray(GOOD)
    changed[at] = value
    with contextlib.suppress(ArtefactUnusable):
        read(bytes(changed))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ArtefactUnusable):
        read(b"!<arch>\n" + noise)
