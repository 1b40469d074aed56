"""The merged tree of many packages: who owns which path, what dpkg would let replace what, and links.

Nothing is unpacked to disk below its own name: an entry points into the spooled data archive of its package.
Paths are relative to the image's root, without a slash at either end; the root is the empty string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.builders.direct.debian.lower import EMPTY, Lower
from imagebuilder.errors import BuildFailed
from imagebuilder.oci.layer import LayerWriter

DIRECTORY, FILE, SYMLINK = "directory", "file", "symlink"

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32")
"""Folders of the root that are links into /usr (the usr-merge)."""

_CHUNK = 1 << 20
_MAX_LINKS = 40  # as the kernel


@dataclass(frozen=True, kw_only=True)
class Content:
    """Bytes of a file: in memory, or `size` bytes at `offset` of `spool`."""

    data: bytes | None = None
    spool: Path | None = None
    offset: int = 0
    size: int = 0

    @classmethod
    def of(cls, data: bytes) -> Content:
        """In memory."""
        return cls(data=data, size=len(data))

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces."""
        if self.spool is None:
            yield self.data or b""
            return
        with self.spool.open("rb") as file:
            file.seek(self.offset)
            left = self.size
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise BuildFailed(f"{self.spool} was cut off while it was read")
                left -= len(chunk)
                yield chunk

    def read(self) -> bytes:
        """All bytes at once; for small files."""
        return b"".join(self.chunks())


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One path. owner: the package it came from, empty for what is made here. name: the path in the package.

    group: files with the same one are hard links of each other.
    """

    kind: str
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int
    owner: str = ""
    name: str = ""
    target: str = ""
    content: Content | None = None
    group: tuple[str, str] | None = None


Replaces = Callable[[str, str], bool]
"""Whether the package of the first name may replace files of the second."""


class Tree:
    """The paths of one layer, above a lower one (an image's layers, or nothing)."""

    def __init__(self, mtime: int, lower: Lower = EMPTY) -> None:
        self.mtime = mtime
        self.lower = lower
        self.entries: dict[str, Entry] = {}
        self.lost: list[tuple[str, str]] = []  # (package, its name of a path that another one replaced)
        self._redirects: dict[str, str] = {}
        self._real: dict[str, str] = {}
        for name in MERGED:
            if lower.kind(name) in {None, SYMLINK}:
                self._redirects[name] = f"usr/{name}"

    # ------------------------------------------------------------------ looking

    def kind(self, path: str) -> str | None:
        """What is at exactly this path, in this layer or below; None: nothing."""
        found = self.entries.get(path)
        if found:
            return found.kind
        return DIRECTORY if not path else self.lower.kind(path)

    def folder(self, path: str) -> str:
        """The real path of a folder, links among its parents and itself followed."""
        if not path:
            return ""
        real = self._real.get(path)
        if real is None:
            parent, _, name = path.rpartition("/")
            real = self._join(self.folder(parent), name)
            redirect = self._redirects.get(real)
            if redirect is not None:
                real = self.folder(redirect)
            self._real[path] = real
        return real

    def place(self, path: str) -> str:
        """Where a path really lies: links among its parents followed."""
        parent, _, name = path.strip("/").rpartition("/")
        return self._join(self.folder(parent), name)

    def follow(self, path: str) -> str | None:
        """Where a path leads, all links followed; None: nowhere."""
        at = path.strip("/")
        for _ in range(_MAX_LINKS):
            at = self.place(at)
            kind = self.kind(at)
            if kind != SYMLINK:
                return at if kind else None
            target = self.entries[at].target if at in self.entries else self.lower.target(at)
            at = _resolve(at, target)
        return None

    def exists(self, path: str) -> bool:
        """Whether the path leads to something."""
        return self.follow(path) is not None

    def read(self, path: str) -> bytes | None:
        """A file's bytes, links followed; None: no such file, or one below whose bytes are not known."""
        at = self.follow(path)
        if at is None:
            return None
        entry = self.entries.get(at)
        if entry:
            return entry.content.read() if entry.content else None
        return self.lower.data(at)

    def below(self, folder: str) -> list[str]:
        """The names in a folder, sorted, this layer's and the lower one's."""
        start = self.folder(folder.strip("/")) + "/"
        names = {
            path[len(start) :]
            for path in self.entries
            if path.startswith(start) and "/" not in path[len(start) :]
        }
        return sorted(names | set(self.lower.names(start[:-1])))

    # ------------------------------------------------------------------ adding what packages hold

    def add(self, entry: Entry, replaces: Replaces) -> bool:
        """A package's path. False: it is left out, as another package replaces it (dpkg's rules)."""
        place = self.place(entry.name)
        if entry.kind == DIRECTORY:
            self._add_folder(place, entry)
            return True
        if place in self._redirects and place in MERGED:
            if entry.kind == SYMLINK and entry.target.lstrip("/") == f"usr/{place}":
                self.entries[place] = entry  # the usr-merge links of base-files itself (Debian 13)
                return True
            raise self._collision(place, entry, "a link of the usr-merge")
        there = self.kind(place)
        if there == DIRECTORY:
            raise self._collision(place, entry, "a folder")
        if there is None:
            self.entries[place] = entry
            return True
        before = self.entries.get(place)
        owner = before.owner if before else self.lower.owner(place)
        if owner and owner != entry.owner:
            if replaces(owner, entry.owner) and not replaces(entry.owner, owner):
                return False
            if not replaces(entry.owner, owner):
                raise self._collision(place, entry, f"a {there} of {owner}")
            self.lost.append((owner, before.name if before else place))
        elif owner:
            raise self._collision(place, entry, "there twice")
        self.entries[place] = entry
        return True

    def _add_folder(self, place: str, entry: Entry) -> None:
        if place in self._redirects:
            place = self.folder(place)
        there = self.kind(place)
        if there == SYMLINK:
            target = self.follow(place)
            if target is None or self.kind(target) != DIRECTORY:
                raise self._collision(place, entry, "a link that leads to no folder")
            self._redirects[place] = target
            self._real.clear()
        elif there is None:
            self.entries[place] = entry
        elif there != DIRECTORY:
            raise self._collision(place, entry, f"a {there}")

    def _collision(self, place: str, entry: Entry, other: str) -> BuildFailed:
        return BuildFailed(
            f"/{place} is in the package {entry.owner} a {entry.kind}, and it is already {other}",
            hint="the packages cannot be installed together: take one of them out of system.packages",
        )

    # ------------------------------------------------------------------ adding what is made here

    def put_folder(self, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        """A folder, and its parents, unless there is one."""
        place = self.folder(path.strip("/"))
        if self.kind(place) is None:
            self.put_folder(place.rpartition("/")[0])
            self.entries[place] = Entry(kind=DIRECTORY, mode=mode, uid=uid, gid=gid, mtime=self.mtime)

    def put_file(self, path: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """A file, instead of any that is there."""
        self._put(
            path,
            Entry(kind=FILE, mode=mode, uid=uid, gid=gid, mtime=self.mtime, content=Content.of(data)),
        )

    def put_link(self, path: str, target: str) -> None:
        """A symbolic link, instead of any file or link that is there."""
        self._put(path, Entry(kind=SYMLINK, mode=0o777, mtime=self.mtime, target=target))

    def _put(self, path: str, entry: Entry) -> None:
        place = self.place(path)
        self.put_folder(place.rpartition("/")[0])
        if self.kind(place) == DIRECTORY:
            raise BuildFailed(f"/{place} is a folder where a {entry.kind} has to be made")
        self.entries[place] = entry

    def drop_folder(self, path: str) -> None:
        """Takes an empty folder out, to make something else there."""
        place = path.strip("/")
        found = self.entries.get(place)
        if found and found.kind == DIRECTORY and not self.below(place):
            del self.entries[place]
            self._real.clear()

    # ------------------------------------------------------------------ the end

    def merge_usr(self) -> None:
        """The links of the usr-merge, where base-files has not brought them and their targets exist."""
        for name in MERGED:
            if name in self._redirects and self.kind(name) is None and self.kind(f"usr/{name}") is not None:
                self.entries[name] = Entry(kind=SYMLINK, mode=0o777, mtime=self.mtime, target=f"usr/{name}")

    def write(self, writer: LayerWriter) -> None:
        """All entries, sorted by path; of hard links the first one carries the contents."""
        first: dict[tuple[str, str], str] = {}
        for path in sorted(self.entries):
            entry = self.entries[path]
            parent = path.rpartition("/")[0]
            if self.kind(parent) != DIRECTORY:
                raise BuildFailed(
                    f"/{path} of the package {entry.owner} lies below /{parent}, which is no folder"
                )
            if entry.kind == DIRECTORY:
                writer.directory(path, entry.mode, uid=entry.uid, gid=entry.gid, mtime=entry.mtime)
            elif entry.kind == SYMLINK:
                writer.symlink(path, entry.target, uid=entry.uid, gid=entry.gid, mtime=entry.mtime)
            elif entry.group and entry.group in first:
                writer.hardlink(
                    path,
                    first[entry.group],
                    mode=entry.mode,
                    uid=entry.uid,
                    gid=entry.gid,
                    mtime=entry.mtime,
                )
            else:
                content = entry.content or Content()
                writer.file_stream(
                    path,
                    content.size,
                    content.chunks(),
                    entry.mode,
                    uid=entry.uid,
                    gid=entry.gid,
                    mtime=entry.mtime,
                )
                if entry.group:
                    first[entry.group] = path

    @staticmethod
    def _join(folder: str, name: str) -> str:
        return f"{folder}/{name}" if folder else name


def _resolve(path: str, target: str) -> str:
    """A link's target as a path from the root; `..` above the root is the root."""
    parts = [] if target.startswith("/") else path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)
