"""Tar archives made on the spot, also such as no honest program makes."""

from __future__ import annotations

import io
import tarfile


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
HARMFUL = {
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
}  # fmt: skip
"""Headers that make tarfile fail in its own ways, fill memory, or read for ever."""
