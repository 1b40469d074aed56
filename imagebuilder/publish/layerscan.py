"""Reading one layer: every path with what it is, and the few files that say whose it is.

These are `.dist-info` folders with RECORD and METADATA, dpkg's status, lists and copyright files.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.archive import SmallHeaders
from imagebuilder.oci.inflate import decompressed

_CHUNK = 1 << 20
_MAX_KEPT = 64 << 20  # bytes of one file that is read whole; dpkg's status has about 1 MB, a RECORD 2 MB
_MAX_PATHS = 4_000_000
_DIST_INFO = re.compile(
    r"(?P<site>(?:.*/)?(?:site|dist)-packages)/(?P<name>[^/]+)\.dist-info/(?P<file>[^/]+)"
)
_LIST = re.compile(r"var/lib/dpkg/info/(?P<name>[^/]+)\.list")
_STATUS = re.compile(r"var/lib/dpkg/(?:status|status\.d/(?P<name>[^/.]+))")
_COPYRIGHT = re.compile(r"usr/share/doc/(?P<name>[^/]+)/copyright")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A path of a layer. kind: file, directory, symlink, hardlink or other.

    content: hash of a file's bytes, or where a link leads. owner: as `torch` or `debian:libc6`, or empty.
    """

    kind: str
    size: int
    mode: int
    content: str
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed wheel. licence: as METADATA says it, else empty."""

    name: str
    version: str
    licence: str = ""


@dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """A package in dpkg's database."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True, kw_only=True)
class LayerContents:
    """One layer. wheels (by their .dist-info folder), licences (by Debian package): what this layer adds.

    debs: dpkg's status as it stands in this layer; None where the layer has none.
    """

    files: Mapping[str, Entry]
    wheels: Mapping[str, Distribution] = field(default_factory=dict)
    debs: tuple[DebianPackage, ...] | None = None
    licences: Mapping[str, str] = field(default_factory=dict)


def scan(path: Path) -> LayerContents:
    """Reads a layer's blob to its end. Raises ArtefactUnusable."""
    scanned = _Scan()
    with open_layer(path) as tar:
        for member in entries(tar):
            scanned.add(tar, member)
    return scanned.contents()


def scan_stream(stream: IO[bytes], name: str) -> LayerContents:
    """The same of a plain tar that comes in a stream, such as a container's file system."""
    scanned = _Scan()
    with open_tar(stream, name) as tar:
        for member in entries(tar):
            scanned.add(tar, member)
    return scanned.contents()


@contextmanager
def open_layer(path: Path) -> Iterator[tarfile.TarFile]:
    """A layer's blob, to be read once from its beginning. ArtefactUnusable for whatever is wrong with it."""
    with (
        errors_of_reading(path.name),
        path.open("rb") as file,
        open_tar(decompressed(file), path.name) as tar,
    ):
        yield tar


@contextmanager
def open_tar(stream: Any, name: str) -> Iterator[tarfile.TarFile]:
    """A tar in a stream, to be read once from its beginning. Errors as `open_layer`."""
    with (
        errors_of_reading(name),
        tarfile.open(
            fileobj=stream,
            mode="r|",
            tarinfo=SmallHeaders,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar,
    ):
        yield tar


def entries(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Its members, none of them remembered."""
    for member in tar:
        yield member
        tar.members = []  # type: ignore[attr-defined]


@contextmanager
def errors_of_reading(name: str) -> Iterator[None]:
    """Turns what is wrong with a layer into ArtefactUnusable."""
    import zstandard

    try:
        yield
    except (tarfile.TarError, OSError, EOFError, zlib.error, zstandard.ZstdError, UnicodeError) as error:
        raise ArtefactUnusable(f"{name} cannot be read as a layer", seen=str(error)[:200]) from None


class _Scan:
    """Gathers a layer's entries, and the few files that say whose they are."""

    def __init__(self) -> None:
        self.files: dict[str, Entry] = {}
        self.kept: dict[str, bytes] = {}

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = [p for p in member.name.split("/") if p not in ("", ".")]
        if ".." in parts:
            raise tarfile.TarError(f"the unsafe path {member.name[:100]!r}")
        if not parts:
            return
        if len(self.files) >= _MAX_PATHS:
            raise tarfile.TarError(f"more than {_MAX_PATHS} paths")
        path = "/".join(parts)
        kind, content = "other", ""
        if member.isreg():
            kind, content = "file", self._read(tar, member, path)
        elif member.isdir():
            kind = "directory"
        elif member.issym():
            kind, content = "symlink", member.linkname
        elif member.islnk():
            kind = "hardlink"
            target = "/".join(p for p in member.linkname.split("/") if p not in ("", "."))
            linked = self.files.get(target)
            kind, content = ("file", linked.content) if linked else ("hardlink", target)
        size = member.size if member.isreg() else 0
        self.files[path] = Entry(kind=kind, size=size, mode=member.mode & 0o7777, content=content)

    def _read(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> str:
        stream = tar.extractfile(member)
        assert stream is not None, "regular files have content"
        hashing = hashlib.sha256()
        keep = bytearray() if _is_kept(path) else None
        while chunk := stream.read(_CHUNK):
            hashing.update(chunk)
            if keep is not None:
                keep += chunk
                if len(keep) > _MAX_KEPT:
                    raise tarfile.TarError(f"{path} has more than {_MAX_KEPT} bytes")
        if keep is not None:
            self.kept[path] = bytes(keep)
        return hashing.hexdigest()[:32]

    def contents(self) -> LayerContents:
        owners = dict(_owners(self.kept, self.files))
        files = {
            path: Entry(kind=e.kind, size=e.size, mode=e.mode, content=e.content, owner=owners.get(path, ""))
            for path, e in self.files.items()
        }
        debs = [d for path, data in self.kept.items() if _STATUS.fullmatch(path) for d in _debs(data)]
        return LayerContents(
            files=files,
            wheels=dict(_wheels(self.kept)),
            debs=tuple(debs) if any(_STATUS.fullmatch(path) for path in self.kept) else None,
            licences=dict(_licences(self.kept)),
        )


def _is_kept(path: str) -> bool:
    if match := _DIST_INFO.fullmatch(path):
        return match["file"] in ("METADATA", "RECORD")
    return any(pattern.fullmatch(path) for pattern in (_LIST, _STATUS, _COPYRIGHT))


def _owners(kept: Mapping[str, bytes], files: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    import csv
    import posixpath

    for path, data in kept.items():
        if match := _LIST.fullmatch(path):
            package = f"debian:{match['name'].partition(':')[0]}"
            for line in data.decode("utf-8", "surrogateescape").splitlines():
                name = line.strip("/")
                yield name, package
                if name.partition("/")[0] in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
                    yield f"usr/{name}", package  # dpkg's lists speak of the time before the usr-merge
            yield path, package
        elif (match := _DIST_INFO.fullmatch(path)) and match["file"] == "RECORD":
            package = _project(match["name"])
            text = data.decode("utf-8", "surrogateescape")
            for row in csv.reader(text.splitlines()):
                if row:
                    yield posixpath.normpath(f"{match['site']}/{row[0]}"), package
    for path in files:
        if match := _COPYRIGHT.fullmatch(path):
            yield path, f"debian:{match['name']}"


def _project(folder: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(folder.rpartition("-")[0] or folder)


def _wheels(kept: Mapping[str, bytes]) -> Iterator[tuple[str, Distribution]]:
    for path, data in kept.items():
        if (match := _DIST_INFO.fullmatch(path)) and match["file"] == "METADATA":
            name, _, version = match["name"].rpartition("-")
            if name and version:
                licence = wheel_licence(data)
                folder = path.rpartition("/")[0]
                yield folder, Distribution(name=_project(match["name"]), version=version, licence=licence)


def wheel_licence(metadata: bytes) -> str:
    """Of a METADATA file: License-Expression, else a short License, else the classifiers; empty: none."""
    from email.parser import BytesHeaderParser

    fields = BytesHeaderParser().parsebytes(metadata)
    expression = str(fields.get("License-Expression", "")).strip()
    if expression:
        return expression[:200]
    short = str(fields.get("License", "")).strip()
    if short and "\n" not in short and len(short) <= 80 and short.upper() != "UNKNOWN":
        return short
    classifiers = [str(c) for c in fields.get_all("Classifier", [])]
    known = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ")]
    return " AND ".join(k for k in known if k != "OSI Approved")[:200]


def _debs(status: bytes) -> Iterator[DebianPackage]:
    for paragraph in status.decode("utf-8", "replace").split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in paragraph.splitlines()
            if ": " in line and not line.startswith(" ")
        )
        installed = fields.get("Status", "install ok installed").endswith(" installed")
        if installed and "Package" in fields and "Version" in fields:
            yield DebianPackage(
                name=fields["Package"], version=fields["Version"], architecture=fields.get("Architecture", "")
            )


def _licences(kept: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """By Debian package: the short names that its machine-readable copyright file gives its licences."""
    for path, data in kept.items():
        match = _COPYRIGHT.fullmatch(path)
        if match and data.lstrip().startswith(b"Format:"):
            found = re.findall(rb"(?m)^License:[ \t]*(\S[^\n]*)$", data)
            names = dict.fromkeys(x.decode("utf-8", "replace").strip() for x in found)
            if names:
                yield match["name"], " AND ".join(names)[:500]
