"""Patched packages: a wheel made from a locked wheel and patches, which both builders install like any other.

Its version says that it is patched (`0.5.9+patched.1a2b3c4d`), and so does `pip list` in the image. Members
that no patch touches keep their packed data; the same wheel and patches give the same bytes.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from packaging.version import Version

from imagebuilder.builders.direct.zipwriter import ZipWriter
from imagebuilder.facts.patched import FILE, Changed, PatchedFiles, apply_patches
from imagebuilder.facts.wheel import Wheel
from imagebuilder.facts.ziparchive import DEFLATED, Member
from imagebuilder.oci import encode
from imagebuilder.values import Digest


def patched_version(version: str, wheel: Digest, patches: Sequence[Digest]) -> str:
    """The version of what these patches, in this order, make of this wheel (its version and sha256)."""
    identity = "\n".join([wheel.hex, *(patch.hex for patch in patches)])
    mark = "patched." + hashlib.sha256(identity.encode()).hexdigest()[:8]
    return str(Version(f"{version}.{mark}" if "+" in version else f"{version}+{mark}"))


def derive_patched(
    wheel_path: Path, patches: Sequence[tuple[str, bytes]], out: Path, *, digest: Digest | None = None
) -> tuple[str, Digest]:
    """Write the patched wheel into the folder `out`; returns its file name and sha256.

    wheel_path: a wheel under its own name. patches: (name, contents), unified diffs with paths of level p1
    relative to the wheel's root, applied in this order. digest: of the wheel, where the caller knows it.
    ArtefactUnusable where a patch does not apply exactly.
    """
    digest = digest or _digest_of(wheel_path)
    with Wheel.open(wheel_path) as wheel:
        version = patched_version(wheel.version, digest, [Digest.of(patch) for _, patch in patches])
        contents = apply_patches(wheel, patches)
        filename = _filename(wheel_path.name, version)
        temporary = out / f".{filename}.partial"
        try:
            with temporary.open("w+b", buffering=1 << 20) as file_out:
                _write(wheel, contents, version, file_out)
            result = _digest_of(temporary)
            temporary.replace(out / filename)
        finally:
            temporary.unlink(missing_ok=True)
    return filename, result


def _write(wheel: Wheel, contents: PatchedFiles, version: str, out: BinaryIO) -> None:
    """The archive: members in the wheel's order, then new ones, then RECORD."""
    name = wheel.dist_info.removesuffix(".dist-info").partition("-")[0]
    info, record = f"{name}-{version}.dist-info", f"{wheel.dist_info}/RECORD"
    rows = {row[0]: row[1:] for row in wheel.record() if row}
    changed = dict(contents.changed)
    metadata = wheel.member(f"{wheel.dist_info}/METADATA")
    assert metadata is not None
    text = _with_version(wheel, wheel.read(metadata), version)
    changed[metadata.path] = Changed(data=text, mode=FILE)
    signatures = (f"{record}.jws", f"{record}.p7s")  # of a RECORD that is no more

    def renamed(path: str) -> str:
        top, slash, rest = path.partition("/")
        if top == wheel.dist_info:
            return f"{info}{slash}{rest}"
        if top == f"{wheel.dist_info.removesuffix('.dist-info')}.data":
            return f"{name}-{version}.data{slash}{rest}"
        return path

    archive = ZipWriter(out)
    new_rows: list[list[str]] = []
    kept = [m for m in wheel.members if not m.is_dir and m.path != record and m.path not in signatures]
    added = [path for path in changed if wheel.member(path) is None]
    for path, member in [*((m.path, m) for m in kept), *((path, None) for path in added)]:
        now = changed.get(path)
        if now is not None:
            _add_changed(archive, renamed(path), now)
            new_rows.append([renamed(path), *_hash_and_size(now.data)])
        elif member is not None and path not in changed:
            _add_kept(archive, renamed(path), member, wheel)
            if path in rows:
                new_rows.append([renamed(path), *rows[path]])
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([*new_rows, [f"{info}/RECORD", "", ""]])
    _add_changed(archive, f"{info}/RECORD", Changed(data=buffer.getvalue().encode(), mode=FILE))
    archive.finish()


def _add_changed(archive: ZipWriter, path: str, now: Changed) -> None:
    packed = bytes(encode.raw_deflate(now.data))
    crc, size = zlib.crc32(now.data), len(now.data)
    archive.add(path, now.mode, DEFLATED, crc=crc, size=size, compressed=len(packed), data=[packed])


def _add_kept(archive: ZipWriter, path: str, member: Member, wheel: Wheel) -> None:
    archive.add(
        path,
        member.mode,
        member.method,
        crc=member.crc,
        size=member.size,
        compressed=member.compressed,
        data=wheel.raw_deflate(member),
    )


def _with_version(wheel: Wheel, metadata: bytes, version: str) -> bytes:
    """METADATA, the one line changed that gives the version; its description is not looked into."""
    head, blank, body = re.match(rb"(.*?)(\r?\n\r?\n|\Z)(.*)", metadata, re.DOTALL).groups()  # type: ignore[union-attr]
    head, count = re.subn(rb"(?im)^(Version:[ \t]*)[^\r\n]*", rb"\g<1>" + version.encode(), head)
    if count != 1:
        raise wheel.archive.bad("its METADATA does not give one version", seen=f"{count} lines Version:")
    return bytes(head + blank + body)


def _filename(name: str, version: str) -> str:
    """The wheel's file name with another version; build tag and compatibility tags stay."""
    parts = name.split("-")
    return "-".join([parts[0], version, *parts[2:]])


def _hash_and_size(data: bytes) -> tuple[str, str]:
    encoded = urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={encoded}", str(len(data))


def _digest_of(path: Path) -> Digest:
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return Digest.from_hex(found.hexdigest())
