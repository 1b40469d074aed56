"""What a Debian archive offers: `Packages` files, parsed once into a small database and asked by name.

The database is SQLite, so that 60 000 packages cost no memory and the second look takes no time. It holds
what a closure needs and nothing else.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.debian_relations import Relations, compare, parse_relations
from imagebuilder.values import Digest

SCHEMA = 1
"""Part of the database's file name: another parser must not read an old database."""

_FIELDS = (
    "Package",
    "Version",
    "Architecture",
    "Filename",
    "Size",
    "SHA256",
    "Essential",
    "Priority",
    "Pre-Depends",
    "Depends",
    "Provides",
    "Conflicts",
    "Breaks",
    "Status",
)
_FIELD = re.compile(
    ("^(" + "|".join(_FIELDS) + r"):[ \t]*(.*(?:\n[ \t].*)*)").encode(), re.MULTILINE | re.IGNORECASE
)
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._~%:-]*(/[A-Za-z0-9+._~%:-]+)*")
_PRIORITIES = ("required", "important", "standard", "optional", "extra")
_MAX_STANZA = 1 << 20
_NO_FILE = Digest.of(b"")


@dataclass(frozen=True, kw_only=True)
class DebFile:
    """One package of one pocket, as the archive describes it.

    path: below the archive's root. size: bytes. rank: 0 for Priority `required` … 4 for `extra`.
    The relations are the fields' text; `*_groups` is their parsed form.
    """

    name: str
    version: str
    architecture: str
    path: str
    size: int
    sha256: Digest
    pocket: str
    essential: bool = False
    rank: int = 3
    pre_depends: str = ""
    depends: str = ""
    provides: str = ""
    conflicts: str = ""

    @cached_property
    def pre_depends_groups(self) -> Relations:
        """Packages that must be configured before this one is unpacked."""
        return parse_relations(self.pre_depends)

    @cached_property
    def depends_groups(self) -> Relations:
        """Packages that must be there for this one to work."""
        return parse_relations(self.depends)

    @cached_property
    def provides_groups(self) -> Relations:
        """Virtual packages that this one is."""
        return parse_relations(self.provides)

    @cached_property
    def conflicts_groups(self) -> Relations:
        """Conflicts and Breaks together: none of them may be there."""
        return parse_relations(self.conflicts)


_COLUMNS = (
    "name, version, architecture, path, size, sha256, essential, rank, "
    "pre_depends, depends, provides, conflicts"
)


class PackageIndex:
    """The packages of one or several pockets, together."""

    def __init__(self, parts: Sequence[tuple[str, sqlite3.Connection]]) -> None:
        self._parts = tuple(parts)

    @classmethod
    def open(cls, parts: Sequence[tuple[str, Path]]) -> PackageIndex:
        """From (pocket, database file) pairs, read only."""
        return cls(
            [
                (pocket, sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True))
                for pocket, path in parts
            ]
        )

    @classmethod
    def from_text(cls, text: bytes, pocket: str) -> PackageIndex:
        """From the text of a Packages file, in memory."""
        connection = sqlite3.connect(":memory:")
        fill(connection, [text], pocket)
        return cls([(pocket, connection)])

    def named(self, name: str) -> list[DebFile]:
        """The packages of this name, newest version first; of equal versions the first pocket's."""
        found = list(self._select("name = ?", (name,)))
        return sorted(found, key=_newest, reverse=True)

    def providers(self, name: str) -> list[DebFile]:
        """The packages that Provide this name: by Priority, then by name; of each its newest version only."""
        found: dict[str, DebFile] = {}
        rows = self._select("rowid IN (SELECT package FROM provided WHERE name = ?)", (name,))
        for deb in rows:
            if self.named(deb.name)[0] == deb:
                found[deb.name] = deb
        return sorted(found.values(), key=lambda deb: (deb.rank, deb.name))

    def required(self) -> list[DebFile]:
        """What every Debian system has: Essential, or of Priority required; by name."""
        names = {deb.name for deb in self._select("essential OR rank = 0", ())}
        return [self.named(name)[0] for name in sorted(names)]

    def names(self) -> Iterator[str]:
        """Every package name, for suggestions."""
        for _, connection in self._parts:
            yield from (row[0] for row in connection.execute("SELECT DISTINCT name FROM package"))

    def close(self) -> None:
        """Gives the databases back."""
        for _, connection in self._parts:
            connection.close()

    def _select(self, where: str, values: tuple[str, ...]) -> Iterator[DebFile]:
        for pocket, connection in self._parts:
            for row in connection.execute(f"SELECT {_COLUMNS} FROM package WHERE {where}", values):
                yield DebFile(
                    name=row[0],
                    version=row[1],
                    architecture=row[2],
                    path=row[3],
                    size=row[4],
                    sha256=Digest.from_hex(row[5]),
                    pocket=pocket,
                    essential=bool(row[6]),
                    rank=row[7],
                    pre_depends=row[8],
                    depends=row[9],
                    provides=row[10],
                    conflicts=row[11],
                )


def installed(status: bytes) -> tuple[DebFile, ...]:
    """The installed packages of a dpkg status file, as far as a closure wants to know them (no file)."""
    found: list[DebFile] = []
    for stanza in _stanzas([status], "dpkg's status"):
        fields = _fields(stanza)
        if fields.get("package") and fields.get("status", "").endswith(" installed"):
            found.append(
                DebFile(
                    name=fields["package"],
                    version=fields.get("version", ""),
                    architecture=fields.get("architecture", ""),
                    path="",
                    size=0,
                    sha256=_NO_FILE,
                    pocket="",
                    essential=fields.get("essential") == "yes",
                    rank=_rank(fields),
                    pre_depends=fields.get("pre-depends", ""),
                    depends=fields.get("depends", ""),
                    provides=fields.get("provides", ""),
                    conflicts=", ".join(filter(None, (fields.get("conflicts"), fields.get("breaks")))),
                )
            )
    return tuple(found)


class _Newest:
    """Sort key: Debian's version order."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __lt__(self, other: _Newest) -> bool:
        return compare(self.version, other.version) < 0


def _newest(deb: DebFile) -> _Newest:
    return _Newest(deb.version)


def fill(connection: sqlite3.Connection, chunks: Iterable[bytes], pocket: str) -> int:
    """Parses the text of a Packages file into an empty database; returns the number of packages."""
    connection.executescript(
        """
        PRAGMA journal_mode = OFF;
        PRAGMA synchronous = OFF;
        CREATE TABLE package (
            name TEXT, version TEXT, architecture TEXT, path TEXT, size INTEGER, sha256 TEXT,
            essential INTEGER, rank INTEGER, pre_depends TEXT, depends TEXT, provides TEXT, conflicts TEXT);
        CREATE TABLE provided (name TEXT, package INTEGER);
        """
    )
    count = 0
    for stanza in _stanzas(chunks, pocket):
        row = _row(stanza, pocket)
        count += 1
        connection.execute("INSERT INTO package VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", row)
        if row[10]:
            names = {relation.name for group in parse_relations(str(row[10])) for relation in group}
            connection.executemany(
                "INSERT INTO provided VALUES (?,?)", [(name, count) for name in sorted(names)]
            )
    connection.executescript(
        "CREATE INDEX by_name ON package (name); CREATE INDEX by_provided ON provided (name);"
    )
    connection.commit()
    return count


def _stanzas(chunks: Iterable[bytes], pocket: str) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > _MAX_STANZA:
            raise ArtefactUnusable(
                f"the package list of {pocket} has an entry of more than {_MAX_STANZA} bytes"
            )
        yield from (stanza for stanza in whole if stanza.strip())
    if rest.strip():
        yield rest


def _fields(stanza: bytes) -> dict[str, str]:
    return {key.decode().lower(): value.decode("utf-8", "replace") for key, value in _FIELD.findall(stanza)}


def _row(stanza: bytes, pocket: str) -> tuple[str | int, ...]:
    fields = _fields(stanza)
    name, path = fields.get("package", ""), fields.get("filename", "").removeprefix("./")
    size, sha256 = fields.get("size", ""), fields.get("sha256", "")
    if (
        not name
        or not fields.get("version")
        or not size.isdigit()
        or not re.fullmatch(r"[0-9a-fA-F]{64}", sha256)
        or not _PATH.fullmatch(path)
        or ".." in path.split("/")
    ):
        raise ArtefactUnusable(
            f"the package list of {pocket} has an entry that cannot be used",
            seen=f"Package: {name!r}, Filename: {path!r}, Size: {size!r}, SHA256: {sha256!r}",
        )
    conflicts = ", ".join(filter(None, (fields.get("conflicts"), fields.get("breaks"))))
    return (
        name,
        fields["version"],
        fields.get("architecture", ""),
        path,
        int(size),
        sha256,
        int(fields.get("essential") == "yes"),
        _rank(fields),
        fields.get("pre-depends", ""),
        fields.get("depends", ""),
        fields.get("provides", ""),
        conflicts,
    )


def _rank(fields: Mapping[str, str]) -> int:
    priority = fields.get("priority", "optional").lower()
    return _PRIORITIES.index(priority) if priority in _PRIORITIES else 3
