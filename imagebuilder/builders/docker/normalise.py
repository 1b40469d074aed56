"""Layers as an engine made them → the same files as layers whose bytes depend on nothing else.

What differs between two engines, stores or runs goes: order of entries, times after the image's date, names
of owners, forms of headers, folders that were only touched, the compressor. So one lock gives one digest.
"""

from __future__ import annotations

import copy
import shutil
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from imagebuilder.errors import BuildFailed
from imagebuilder.oci import encode, tar
from imagebuilder.oci.inflate import Buffer, decompressed
from imagebuilder.oci.layer import LayerBlob, LayerWriter
from imagebuilder.oci.untar import cleaned, errors_of_reading, open_layer
from imagebuilder.tarheaders import SmallHeaders

IDENTITY = f"normalise-1 {encode.IDENTITY}"
"""What decides the bytes besides the layer itself; part of the key under which results are kept."""

Attributes = tuple[int, int, int]
"""Mode, uid, gid."""

_CHUNK = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_KEPT_RECORDS = "SCHILY.xattr."
_KINDS = {
    tarfile.REGTYPE: tar.FILE,
    tarfile.AREGTYPE: tar.FILE,
    tarfile.CONTTYPE: tar.FILE,
    tarfile.LNKTYPE: tar.HARDLINK,
    tarfile.SYMTYPE: tar.SYMLINK,
    tarfile.DIRTYPE: tar.DIRECTORY,
}


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders that a layer has: all with their attributes, those with nothing below, those it removes."""

    attributes: Mapping[str, Attributes]
    leaves: frozenset[str]
    removed: tuple[str, ...]

    def only_touched(self, below: Mapping[str, Attributes]) -> frozenset[str]:
        """Folders that the layer has although nothing of theirs differs from the layers below.

        A build step's mounts come and go in them; some stores then count them as changed, some do not.
        """
        return frozenset(path for path in self.leaves if below.get(path) == self.attributes[path])

    def over(self, below: Mapping[str, Attributes]) -> dict[str, Attributes]:
        """The folders of this layer on top of those below."""
        gone = tuple(f"{path}/" for path in self.removed)
        left = {p: a for p, a in below.items() if not f"{p}/".startswith(gone)} if gone else dict(below)
        return left | dict(self.attributes)


def folders(layer: Path) -> Folders:
    """The folders of a layer's tar, plain or compressed. ArtefactUnusable: it is no layer."""
    attributes: dict[str, Attributes] = {}
    parents: set[str] = set()
    removed: list[str] = []
    with open_layer(layer) as members:
        for path, member in members:
            parent, _, name = path.rpartition("/")
            parents.add(parent)
            if name == _OPAQUE:
                removed.append(parent)
            elif name.startswith(_WHITEOUT):
                removed.append(f"{parent}/{name.removeprefix(_WHITEOUT)}".strip("/"))
            if member.isdir():
                attributes[path] = (member.mode & 0o7777, member.uid, member.gid)
    return Folders(attributes=attributes, leaves=frozenset(attributes) - parents, removed=tuple(removed))


def normalise(
    layer: Path, out: BinaryIO, *, latest: int, scratch: Path, drop: Collection[str] = ()
) -> LayerBlob:
    """Write the layer in `layer` (a tar, plain or compressed) to `out`; no entry's time is after `latest`.

    drop: paths to leave out. scratch: a folder for the unpacked tar. ArtefactUnusable: it is no layer.
    BuildFailed: it holds what images of ours must not hold (device nodes).
    """
    writer = _Copy(out)
    with (
        errors_of_reading(layer.name),
        _plain(layer, scratch) as file,
        tarfile.open(fileobj=file, mode="r:", tarinfo=SmallHeaders, encoding="utf-8") as archive,
    ):
        members = {cleaned(m.name): m for m in archive}  # the last of a path counts, as when unpacking
        for path, member in _in_order(members):
            if path not in drop:
                _copy(writer, path, member, archive, latest)
    return writer.finish()


class _Copy(LayerWriter):
    """Writes entries of a layer that exists already: whiteouts and extended attributes are taken over."""

    def copy(self, entry: tar.Entry, chunks: Iterable[Buffer]) -> None:
        self._entry(tar.header(entry))
        if entry.size:
            self._end_headers()
            for chunk in chunks:
                self._plain.add(chunk)
                for member in encode.gzip_members(chunk):
                    self._packed.add(member)
            self._pad(entry.size)


def _in_order(members: dict[str, tarfile.TarInfo]) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """By path, part by part. Of the names of one file the first becomes the file, the others its links."""
    names: dict[str, list[str]] = {}
    for path, member in members.items():
        if member.islnk():
            names.setdefault(cleaned(member.linkname), []).append(path)
    # The name that the engine made the file → the name that is ours.
    first = {original: min([original, *links], key=_order) for original, links in names.items()}
    for path in sorted(members, key=_order):
        member = members[path]
        original = cleaned(member.linkname) if member.islnk() else path
        chosen = first.get(original, path)
        if chosen == path:
            yield path, members.get(original, member)
        else:
            link = copy.copy(member)
            link.type, link.linkname, link.size = tarfile.LNKTYPE, chosen, 0
            yield path, link


def _order(path: str) -> list[str]:
    return path.split("/")


def _copy(writer: _Copy, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile, latest: int) -> None:
    kind = _KINDS.get(member.type)
    if kind is None:
        raise BuildFailed(
            f"/{path} in a layer of the build is a device or pipe",
            wanted="files, folders and links",
            hint="remove it in the instruction that makes it",
        )
    if not path:
        return  # the root itself: every image has it
    size = member.size if kind == tar.FILE else 0
    records = ((k, v) for k, v in member.pax_headers.items() if k.startswith(_KEPT_RECORDS))
    entry = tar.Entry(
        _bytes(path) + (b"/" if kind == tar.DIRECTORY else b""),
        kind,
        size,
        member.mode & 0o7777,
        member.uid,
        member.gid,
        min(int(member.mtime), latest),
        _bytes(member.linkname) if kind in (tar.SYMLINK, tar.HARDLINK) else b"",
        tuple((_bytes(key), _bytes(value)) for key, value in records),
    )
    writer.copy(entry, _chunks(archive, member) if size else ())


def _chunks(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(member)
    assert content is not None, "only files have a size"
    left = member.size
    while left:
        chunk = content.read(min(_CHUNK, left))
        if not chunk:
            raise tarfile.ReadError(f"the data of {member.name} end early")
        left -= len(chunk)
        yield chunk


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _plain(layer: Path, scratch: Path) -> BinaryIO:
    """The layer's tar, seekable: sorting needs to jump."""
    file = layer.open("rb")
    source = decompressed(file)
    packed = source is not file
    if not packed:
        return file
    with file:
        return _unpacked(source, scratch / f"{layer.name}.tar")


def _unpacked(source: IO[bytes], path: Path) -> BinaryIO:
    """All that `source` holds in a file at `path`, which is gone when it is closed."""
    with path.open("wb") as out:
        shutil.copyfileobj(source, out, _CHUNK)
    handle = path.open("rb")
    path.unlink()
    return handle
