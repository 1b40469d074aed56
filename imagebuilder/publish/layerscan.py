"""Reading one layer: every path with what it is, and the few files that say whose it is.

These are `.dist-info` folders with RECORD and METADATA, dpkg's status, lists and copyright files.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.untar import Members, cleaned, open_layer

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
    with open_layer(path) as members:
        return _Scan(members).contents()


def scan_stream(stream: IO[bytes], name: str) -> LayerContents:
    """The same of a plain tar that comes in a stream, such as a container's file system."""
    return _Scan(Members(stream, name)).contents()


class _Scan:
    """Gathers a layer's entries, and the few files that say whose they are."""

    def __init__(self, members: Members) -> None:
        self.files: dict[str, Entry] = {}
        self.kept: dict[str, bytes] = {}
        for path, member in members:
            if path:
                self._add(members, path, member)

    def _add(self, members: Members, path: str, member: tarfile.TarInfo) -> None:
        if len(self.files) >= _MAX_PATHS:
            raise ArtefactUnusable(f"a layer has more than {_MAX_PATHS} paths")
        kind, content, size = "other", "", 0
        if member.isreg():
            kind, content, size = "file", self._read(members, path, member), member.size
        elif member.isdir():
            kind = "directory"
        elif member.issym():
            kind, content = "symlink", member.linkname
        elif member.islnk():
            target = cleaned(member.linkname)
            linked = self.files.get(target)
            kind, content = ("file", linked.content) if linked else ("hardlink", target)
        self.files[path] = Entry(kind=kind, size=size, mode=member.mode & 0o7777, content=content)

    def _read(self, members: Members, path: str, member: tarfile.TarInfo) -> str:
        if _is_kept(path):
            self.kept[path] = data = members.contents(member, _MAX_KEPT)
            return hashlib.sha256(data).hexdigest()[:32]
        hashing = hashlib.sha256()
        for chunk in members.chunks(member):
            hashing.update(chunk)
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
