"""What is in an image: every path of its layers, merged, and the bytes of the few files that say what it is.

Layers are read as streams; a path costs some hundred bytes, a file's contents nothing unless they are kept.
Source: OCI image-spec, layer.md (whiteouts).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.untar import Members, cleaned, open_layer

DIRECTORY, FILE, SYMLINK = "directory", "file", "symlink"

KEPT = re.compile(
    r"(?:usr/lib|etc)/os-release"
    r"|etc/(?:passwd|group|shadow|gshadow|shells|debian_version)"
    r"|var/lib/dpkg/(?:status|status\.d/[^/]+|triggers/[^/]+|alternatives/[^/]+|info/(?:[^/]+\.list|format))"
    r"|var/lib/shells\.state|usr/share/debianutils/.*|usr/share/pam(?:-configs)?/[^/]+"
)
"""Paths whose bytes are kept."""

_MAX_KEPT = 64 << 20  # bytes of one kept file; a status file has about 1 MB
_MAX_PATHS = 8_000_000
_MAX_LINKS = 40


class _Node:
    __slots__ = ("children", "data", "kind", "target")

    def __init__(self, kind: str, target: str = "", data: bytes | None = None) -> None:
        self.kind, self.target, self.data = kind, target, data
        self.children: dict[str, _Node] | None = {} if kind == DIRECTORY else None


class ImageTree:
    """The merged paths of layers. Paths are relative to the root, without slashes at the ends."""

    def __init__(self) -> None:
        self._root = _Node(DIRECTORY)
        self._count = 0

    @classmethod
    def read(cls, layers: Sequence[Path]) -> ImageTree:
        """From layer blobs (tar; plain, gzip or zstd), bottom first. Raises ArtefactUnusable."""
        tree = cls()
        for layer in layers:
            tree._apply(layer)
        return tree

    # ------------------------------------------------------------------ asking

    def kind(self, path: str) -> str | None:
        """`directory`, `file` (whatever is neither), `symlink` or None; no links are followed."""
        node = self._find(path)
        return node.kind if node else None

    def target(self, path: str) -> str:
        """Of a symbolic link, as it is written."""
        node = self._find(path)
        return node.target if node else ""

    def data(self, path: str) -> bytes | None:
        """The bytes of a kept file at exactly this path."""
        node = self._find(path)
        return node.data if node else None

    def read_file(self, path: str) -> bytes | None:
        """The bytes of a kept file, links followed."""
        at = path
        for _ in range(_MAX_LINKS):
            parts = at.split("/")
            for depth in range(1, len(parts) + 1):
                node = self._find("/".join(parts[:depth]))
                if node is None:
                    return None
                if node.kind == SYMLINK:
                    at = _joined(parts[: depth - 1], node.target, parts[depth:])
                    break
            else:
                return self.data(at)
        return None

    def names(self, folder: str) -> Iterable[str]:
        """The names in a folder."""
        node = self._find(folder)
        return tuple(node.children or ()) if node else ()

    def owner(self, path: str) -> str:
        """The Debian package that has the path, or nothing."""
        return self._owners.get(path, "")

    @cached_property
    def _owners(self) -> dict[str, str]:
        owners: dict[str, str] = {}
        for name in self.names("var/lib/dpkg/info"):
            if name.endswith(".list"):
                package = name.removesuffix(".list").partition(":")[0]
                text = (self.data(f"var/lib/dpkg/info/{name}") or b"").decode("utf-8", "surrogateescape")
                for line in text.splitlines():
                    path = line.strip("/")
                    first, slash, rest = path.partition("/")
                    if slash and self.kind(first) == SYMLINK:  # the usr-merge
                        path = f"{self.target(first).strip('/')}/{rest}"
                    owners[path] = package
        return owners

    def _find(self, path: str) -> _Node | None:
        node = self._root
        for part in path.split("/") if path else ():
            found = (node.children or {}).get(part)
            if found is None:
                return None
            node = found
        return node

    # ------------------------------------------------------------------ reading layers

    def _apply(self, layer: Path) -> None:
        new: set[int] = set()  # nodes of this layer, which its own opaque markers do not hide
        with open_layer(layer) as members:
            for path, member in members:
                if path:
                    self._add(path, member, members, new)

    def _add(self, path: str, member: tarfile.TarInfo, members: Members, new: set[int]) -> None:
        self._count += 1
        if self._count > _MAX_PATHS:
            raise ArtefactUnusable(f"an image has more than {_MAX_PATHS} paths")
        *parts, last = path.split("/")
        folder = self._folder(parts, new)
        if last == ".wh..wh..opq":
            for child in [key for key, node in folder.items() if id(node) not in new]:
                del folder[child]
        elif last.startswith(".wh."):
            folder.pop(last[4:], None)
        else:
            node = self._node(path, member, members)
            before = folder.get(last)
            if before is not None and before.kind == DIRECTORY and node.kind == DIRECTORY:
                node = before
            folder[last] = node
            new.add(id(node))

    def _folder(self, parts: Sequence[str], new: set[int]) -> dict[str, _Node]:
        node = self._root
        for part in parts:
            children = node.children
            assert children is not None, "only folders are walked into"
            found = children.get(part)
            if found is None or found.kind != DIRECTORY:
                found = children[part] = _Node(DIRECTORY)
            new.add(id(found))
            node = found
        assert node.children is not None, "only folders are walked into"
        return node.children

    def _node(self, path: str, member: tarfile.TarInfo, members: Members) -> _Node:
        if member.isdir():
            return _Node(DIRECTORY)
        if member.issym():
            return _Node(SYMLINK, member.linkname)
        if member.islnk():
            return _Node(FILE, data=self.data(cleaned(member.linkname)))
        if member.isreg() and KEPT.fullmatch(path):
            return _Node(FILE, data=members.contents(member, _MAX_KEPT))
        return _Node(FILE)


def _joined(folder: Sequence[str], target: str, rest: Sequence[str]) -> str:
    parts = [] if target.startswith("/") else list(folder)
    for part in (*target.split("/"), *rest):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)
