"""A wheel as it lies there: what it is called, what is in it, what it says about itself.

Read without unpacking, from disk or from a file object that reads over HTTP ranges, and hostile until
checked: a Wheel that exists has harmless paths, one `.dist-info` folder that belongs to its file name, and no
two members for one path. Whatever is wrong raises ArtefactUnusable. Source: the binary distribution format
specification; where it is silent, what pip does.
"""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from packaging.tags import Tag, parse_tag
from packaging.utils import (
    InvalidWheelFilename,
    NormalizedName,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.ziparchive import Member, ZipArchive

if TYPE_CHECKING:
    from email.message import Message

    from packaging.metadata import RawMetadata

_TEXT_LIMIT = 32 << 20  # torch's RECORD has 1.5 MB
_NAME_LIMIT, _PATH_LIMIT = 255, 3072  # bytes; ext4's limits, less a prefix

# Absolute, a drive, a backslash, NUL, or an empty, "." or ".." part.
_HARMFUL = re.compile(r"^[A-Za-z]:|[\\\0]|(?:^|/)\.{0,2}(?:/|$)")


def harmful_path(path: str) -> bool:
    """Whether no file of a wheel may lie here: the path leads out of the wheel, or is ambiguous."""
    return bool(_HARMFUL.search(path))


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """One line of entry_points.txt, as it is written there."""

    group: str
    name: str
    value: str


class Wheel:
    """One wheel, opened; a context manager. Made by `Wheel.open`.

    filename: as the index calls it, where known. name: normalized. version: as its dist-info folder says it.
    dist_info: the folder's name. members: in the archive's order, folders included.
    """

    def __init__(self, archive: ZipArchive, filename: str | None) -> None:
        self.archive = archive
        self.filename = filename
        self.members = archive.members
        self._by_path = _checked_paths(archive)
        self.dist_info = self._find_dist_info()
        self.name, self.version = self._identity()
        for file in ("METADATA", "WHEEL", "RECORD"):
            if f"{self.dist_info}/{file}" not in self._by_path:
                raise archive.bad(f"there is no {self.dist_info}/{file} in it")
        self._check_wheel_version()

    @classmethod
    def open(cls, source: Path | IO[bytes], filename: str | None = None, *, label: str = "") -> Wheel:
        """Open a wheel on disk, or in a seekable file object (which stays the caller's to close).

        filename: its real name, where `source` has another one (a cache names files by hash). label: what
        errors call it where it has no name that its contents must agree with.
        """
        if filename is None and isinstance(source, Path):
            filename = source.name
        archive = ZipArchive(source, filename or label or "the wheel")
        try:
            return cls(archive, filename)
        except BaseException:
            archive.close()
            raise

    def close(self) -> None:
        """Close the file, if it was opened here."""
        self.archive.close()

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def files(self) -> tuple[Member, ...]:
        """The members that are no folders, in the archive's order."""
        return tuple(member for member in self.members if not member.is_dir)

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """Compatibility tags: of the file name, which is what installers go by, else those inside."""
        if self.filename is not None:
            return parse_wheel_filename(self.filename)[3]
        found: set[Tag] = set()
        for text in self.wheel_file().get_all("Tag", []):
            found |= parse_tag(text.strip())
        return frozenset(found)

    def member(self, path: str) -> Member | None:
        """The file at this path inside the wheel."""
        return self._by_path.get(path)

    def read(self, member: Member | str, limit: int = _TEXT_LIMIT) -> bytes:
        """A file's contents, proven by its CRC; refused when larger than `limit` bytes."""
        if isinstance(member, str):
            found = self._by_path.get(member)
            if found is None:
                raise self.archive.bad(f"there is no {member} in it")
            member = found
        return self.archive.read(member, limit)

    def stream(self, member: Member) -> Iterator[bytes]:
        """A file's contents in pieces, proven when they end."""
        return self.archive.stream(member)

    def raw_deflate(self, member: Member) -> Iterator[bytes]:
        """A deflated file's data as they are stored, in pieces; not proven."""
        return self.archive.raw(member)

    def metadata(self) -> RawMetadata:
        """METADATA, parsed by `packaging.metadata`; fields that it does not know are left out."""
        from packaging.metadata import parse_email

        return parse_email(self.read(f"{self.dist_info}/METADATA"))[0]

    def wheel_file(self) -> Message:
        """WHEEL, as the headers it is written as."""
        from email.parser import Parser

        return Parser().parsestr(self._text("WHEEL"))

    def record(self) -> list[list[str]]:
        """The rows of RECORD as pip reads them, well-formed or not."""
        try:
            return list(csv.reader(self._text("RECORD").splitlines()))
        except csv.Error as error:
            raise self.archive.bad(f"its RECORD cannot be read: {error}") from None

    def entry_points(self) -> tuple[EntryPoint, ...]:
        """All entry points, in the order of the file; none where it has no entry_points.txt."""
        if f"{self.dist_info}/entry_points.txt" not in self._by_path:
            return ()
        group, found = None, []
        for line in self._text("entry_points.txt").splitlines():
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("[") and text.endswith("]"):
                group = text.strip("[]")
                continue
            name, equals, value = text.partition("=")
            if not equals:
                raise self.archive.bad(
                    "its entry_points.txt cannot be read", seen=repr(text), wanted="name = value"
                )
            if group is not None:
                found.append(EntryPoint(group=group, name=name.strip(), value=value.strip()))
        return tuple(found)

    def record_oddities(self) -> tuple[str, ...]:
        """What is odd about RECORD, for people: pip installs such wheels all the same."""
        rows = {row[0]: row for row in self.record() if row}
        own = {f"{self.dist_info}/RECORD", f"{self.dist_info}/RECORD.jws", f"{self.dist_info}/RECORD.p7s"}
        found = [f"{m.path} is not in RECORD" for m in self.files if m.path not in rows and m.path not in own]
        for path, row in rows.items():
            member = self._by_path.get(path)
            if member is None:
                found.append(f"RECORD lists {path}, which is not in the wheel")
            elif len(row) > 2 and row[2] and row[2] != str(member.size):
                found.append(f"RECORD gives {path} {row[2]} bytes, it has {member.size}")
        return tuple(found)

    def _text(self, file: str) -> str:
        try:
            return self.read(f"{self.dist_info}/{file}").decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.archive.bad(f"its {file} is not UTF-8: {error}") from None

    def _find_dist_info(self) -> str:
        top = {member.path.split("/", 1)[0] for member in self.members}
        found = sorted(name for name in top if name.endswith(".dist-info"))
        if len(found) != 1:
            raise self.archive.bad(
                "it is not a wheel" if not found else "it holds several packages",
                seen=", ".join(found) or "no .dist-info folder",
                wanted="one .dist-info folder",
            )
        return found[0]

    def _identity(self) -> tuple[NormalizedName, str]:
        """Name and version by the dist-info folder, as pip; they must agree with the file name."""
        name_text, _, version_text = self.dist_info.removesuffix(".dist-info").partition("-")
        name = canonicalize_name(name_text)
        try:
            version = Version(version_text)
        except InvalidVersion:
            raise self.archive.bad(
                "the name of its dist-info folder has no version",
                seen=self.dist_info,
                wanted="NAME-VERSION.dist-info",
            ) from None
        if self.filename is not None:
            try:
                wanted_name, wanted_version, _, _ = parse_wheel_filename(self.filename)
            except InvalidWheelFilename as error:
                raise ArtefactUnusable(f"{self.filename} is not the name of a wheel: {error}") from None
            if (name, version) != (wanted_name, wanted_version):
                raise self.archive.bad(
                    "it holds another package than its name says",
                    seen=self.dist_info,
                    wanted=f"{wanted_name} {wanted_version}",
                )
        return name, version_text

    def _check_wheel_version(self) -> None:
        text = (self.wheel_file()["Wheel-Version"] or "").strip()
        if not re.fullmatch(r"1(\.\d+)*", text):
            raise self.archive.bad(
                "its Wheel-Version is not one that is known", seen=text or "none", wanted="1.0"
            )


def _checked_paths(archive: ZipArchive) -> dict[str, Member]:
    """The files by path, once every path is known to be harmless and to be there once."""
    files: dict[str, Member] = {}
    folders: set[str] = set()
    for member in archive.members:
        path = member.path.removesuffix("/")
        if harmful_path(path):
            raise archive.bad(f"a file in it has a path that leads astray: {member.path!r}")
        encoded = path.encode()
        # Most paths as a whole are no longer than a name may be.
        if len(encoded) > _NAME_LIMIT and (
            len(encoded) > _PATH_LIMIT or any(len(p) > _NAME_LIMIT for p in encoded.split(b"/"))
        ):
            raise archive.bad(f"a file in it has a path that is too long: {path[:60]!r}…")
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if member.is_dir:
            folders.add(path)
        elif path in files:
            raise archive.bad(f"it has two files called {path!r}")
        else:
            files[path] = member
    for path in files.keys() & folders:
        raise archive.bad(f"{path!r} is a file and a folder in it")
    for member in files.values():
        if member.is_symlink:
            _check_link(archive, member)
    return files


def _check_link(archive: ZipArchive, member: Member) -> None:
    """Refuse a symbolic link that points out of the wheel.

    pip would write its target into a regular file, which is harmless; other installers would make the link,
    and whoever made it had that in mind.
    """
    target = archive.read(member, _PATH_LIMIT).decode("utf-8", "surrogateescape")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), target))
    if target.startswith("/") or place == ".." or place.startswith("../"):
        raise archive.bad(f"{member.path!r} is a symbolic link that leads out of it", seen=repr(target))
