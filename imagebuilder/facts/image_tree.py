"""What is in an image: every path of its layers, merged, and the bytes of the few files that say what it is.

Layers are read as streams; a path costs some hundred bytes, a file's contents nothing unless they are kept.
Source: OCI image-spec, layer.md (whiteouts).
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.inflate import decompressed

DIRECTORY, FILE, SYMLINK = "directory", "file", "symlink"

KEPT = re.compile(
    r"(?:usr/lib|etc)/os-release"
    r"|etc/(?:passwd|group|shadow|gshadow|shells|debian_version)"
    r"|var/lib/dpkg/(?:status|status\.d/[^/]+|triggers/[^/]+|alternatives/[^/]+|info/(?:[^/]+\.list|format))"
    r"|var/lib/shells\.state|usr/share/debianutils/.*|usr/share/pam(?:-configs)?/[^/]+"
)
"""Paths whose bytes are kept."""

_MAX_KEPT = 64 << 20  # bytes of one kept file; a status file has about 1 MB
_MAX_HEADER = 1 << 20  # bytes of one tar extension header
_MAX_PATHS = 8_000_000
_MAX_LINKS = 40
_CHUNK = 1 << 18


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
        for entry, parts, stream in layer_entries(layer):
            self._add(entry, parts, stream, layer.name, new)

    def _add(
        self, entry: tarfile.TarInfo, parts: Sequence[str], stream: Forward, name: str, new: set[int]
    ) -> None:
        self._count += 1
        if self._count > _MAX_PATHS:
            raise ArtefactUnusable(f"the layer {name} has more than {_MAX_PATHS} paths")
        folder = self._folder(parts[:-1], new)
        last = parts[-1]
        if last == ".wh..wh..opq":
            for child in [key for key, node in folder.items() if id(node) not in new]:
                del folder[child]
        elif last.startswith(".wh."):
            folder.pop(last[4:], None)
        else:
            node = self._node(entry, stream, "/".join(parts), name)
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

    def _node(self, entry: tarfile.TarInfo, stream: Forward, path: str, name: str) -> _Node:
        if entry.isdir():
            return _Node(DIRECTORY)
        if entry.issym():
            return _Node(SYMLINK, entry.linkname)
        if entry.islnk():
            return _Node(FILE, data=self.data(entry.linkname.strip("/")))
        if entry.isreg() and KEPT.fullmatch(path):
            if entry.size > _MAX_KEPT:
                raise ArtefactUnusable(f"the layer {name}: {path} is too large", seen=f"{entry.size} bytes")
            return _Node(FILE, data=stream.contents(entry.offset_data, entry.size))
        return _Node(FILE)


def layer_entries(layer: Path) -> Iterator[tuple[tarfile.TarInfo, list[str], Forward]]:
    """(entry, parts of its path, the stream behind its header) of a layer blob, in order.

    Raises ArtefactUnusable for a damaged layer, and for paths that lead out of it.
    """
    import zstandard

    try:
        with layer.open("rb") as file:
            stream = Forward(decompressed(file), layer.name)
            with tarfile.open(
                fileobj=stream,  # type: ignore[call-overload]
                mode="r:",
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                for entry in tar:
                    tar.members = []
                    parts = [part for part in entry.name.split("/") if part not in {"", "."}]
                    if ".." in parts:
                        raise ArtefactUnusable(f"the layer {layer.name} has the unsafe path {entry.name!r}")
                    if parts:
                        yield entry, parts, stream
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ArtefactUnusable(f"the layer {layer.name} is damaged: {error}") from None
    except (OSError, zstandard.ZstdError) as error:  # gzip.BadGzipFile too
        raise ArtefactUnusable(f"the layer {layer.name} cannot be read: {error}") from None


def _joined(folder: Sequence[str], target: str, rest: Sequence[str]) -> str:
    parts = [] if target.startswith("/") else list(folder)
    for part in (*target.split("/"), *rest):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


class Forward:
    """A stream as tarfile wants it: it only ever seeks forward, and header reads are bounded."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._at = 0

    def tell(self) -> int:
        """As io.IOBase.tell."""
        return self._at

    def seek(self, offset: int) -> int:
        """Forward only."""
        if offset < self._at:
            raise ArtefactUnusable(f"the layer {self._name} is damaged: a header points back")
        for chunk in self._pieces(offset - self._at):
            if not chunk:
                break
        return self._at

    def read(self, size: int = -1) -> bytes:
        """A header's bytes; never all that is left."""
        if not 0 <= size <= _MAX_HEADER:
            raise ArtefactUnusable(f"the layer {self._name} has a tar header of {size} bytes")
        return b"".join(self._pieces(size))

    def contents(self, offset: int, size: int) -> bytes:
        """A file's bytes, just after its header was read."""
        self.seek(offset)
        return b"".join(self._pieces(size))

    def copy(self, offset: int, size: int, out: BinaryIO) -> None:
        """A file's bytes into another file, just after its header was read."""
        self.seek(offset)
        for chunk in self._pieces(size):
            out.write(chunk)

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size:
            chunk: bytes = self._stream.read(min(size, _CHUNK))
            if not chunk:
                return
            self._at += len(chunk)
            size -= len(chunk)
            yield chunk
