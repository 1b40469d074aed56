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
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from packaging.version import Version

from imagebuilder.builders.direct import unified
from imagebuilder.builders.direct.zipwriter import ZipWriter
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.wheel import Wheel, harmful_path
from imagebuilder.facts.ziparchive import DEFLATED, Member
from imagebuilder.oci import encode
from imagebuilder.values import Digest

_FILE, _EXECUTABLE = 0o100644, 0o100755
_PATCHABLE = 64 << 20  # bytes; a larger file is no source text


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
        contents = _Contents(wheel)
        for name, patch in patches:
            for file in unified.parse(name, patch):
                contents.apply(name, file)
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


@dataclass(frozen=True, kw_only=True)
class _Changed:
    data: bytes
    mode: int


class _Contents:
    """A wheel's files while patches change them: path → what it has become, None where it is gone."""

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self.changed: dict[str, _Changed | None] = {}

    def apply(self, patch: str, file: unified.FilePatch) -> None:
        """One file of a patch."""
        before = b""
        mode = _FILE
        if file.old is not None:
            self._check_path(patch, file.old)
            before, mode = self._current(patch, file.old)
            executable = bool(mode & 0o111)
            if file.old_executable not in (None, executable):
                kinds = {True: "executable", False: "not executable"}
                raise ArtefactUnusable(
                    f"{patch} does not apply to {file.old}: its mode is another one",
                    seen=kinds[executable],
                    wanted=kinds[not executable],
                )
        if file.new != file.old and file.new is not None:
            self._check_path(patch, file.new)
            if self._exists(file.new):
                raise ArtefactUnusable(f"{patch} makes {file.new}, which is there already")
        after = unified.apply(patch, file, before)
        if file.new is None and after:
            raise ArtefactUnusable(
                f"{patch} deletes {file.old} without taking all of it away", seen=f"{len(after)} bytes left"
            )
        if file.old is not None:
            self.changed[file.old] = None
        if file.new is not None:
            if file.new_executable is not None:
                mode = _EXECUTABLE if file.new_executable else _FILE
            self.changed[file.new] = _Changed(data=after, mode=mode)

    def _exists(self, path: str) -> bool:
        return self.changed[path] is not None if path in self.changed else self.wheel.member(path) is not None

    def _current(self, patch: str, path: str) -> tuple[bytes, int]:
        if not self._exists(path):
            ending = "/" + path.rpartition("/")[2]
            similar = [m.path for m in self.wheel.files if ("/" + m.path).endswith(ending)]
            raise ArtefactUnusable(
                f"{patch}: there is no {path} in {self.wheel.archive.name}",
                wanted="a path from the wheel's root, after one part that is taken away (p1)"
                + (f"; is it {similar[0]}?" if similar else ""),
            )
        now = self.changed.get(path)
        if now is not None:
            return now.data, now.mode
        member = self.wheel.member(path)
        assert member is not None
        return self.wheel.read(member, _PATCHABLE), _EXECUTABLE if member.is_executable else _FILE

    def _check_path(self, patch: str, path: str) -> None:
        if harmful_path(path):
            raise ArtefactUnusable(f"{patch} changes a path that leads astray", seen=repr(path))
        if path.partition("/")[0] == self.wheel.dist_info:
            raise ArtefactUnusable(
                f"{patch} changes {path}",
                hint="patch the package's files; what it requires is changed by an [[override]]",
            )


def _write(wheel: Wheel, contents: _Contents, version: str, out: BinaryIO) -> None:
    """The archive: members in the wheel's order, then new ones, then RECORD."""
    name = wheel.dist_info.removesuffix(".dist-info").partition("-")[0]
    info, record = f"{name}-{version}.dist-info", f"{wheel.dist_info}/RECORD"
    rows = {row[0]: row[1:] for row in wheel.record() if row}
    changed = dict(contents.changed)
    metadata = wheel.member(f"{wheel.dist_info}/METADATA")
    assert metadata is not None
    text = _with_version(wheel, wheel.read(metadata), version)
    changed[metadata.path] = _Changed(data=text, mode=_FILE)
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
    _add_changed(archive, f"{info}/RECORD", _Changed(data=buffer.getvalue().encode(), mode=_FILE))
    archive.finish()


def _add_changed(archive: ZipWriter, path: str, now: _Changed) -> None:
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
