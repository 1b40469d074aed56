"""Wheels into layers, as pip 26.3 installs them.

The oracle is `pip install --no-index --find-links … --no-deps --no-compile name==version …` with umask 022 in
the environment's own Python, requirements by normalized name; the tree equals it path by path, in bytes and
modes. Nothing is unpacked: a tree says where each file's contents are, and files go from the wheel to the
layer in the form in which they lie there.
"""

from __future__ import annotations

import csv
import hashlib
import io
import posixpath
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence

from imagebuilder.builders.direct.scripts import (
    entry_point_names,
    entry_point_scripts,
    wants_interpreter,
    with_interpreter,
)
from imagebuilder.builders.direct.venv import EPOCH, TreeEntry, VenvLayout, venv_skeleton
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.wheel import Wheel
from imagebuilder.facts.ziparchive import DEFLATED, Member
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.values import Digest

__all__ = [
    "TreeEntry",
    "VenvLayout",
    "installed_tree",
    "mtime_of",
    "pip_order",
    "shared_paths",
    "venv_skeleton",
    "write_tree",
    "write_wheels_layer",
]

_SCRIPT_LIMIT = 64 << 20


def mtime_of(digest: Digest) -> int:
    """The time of a wheel's files, from its sha256.

    The same wheel gives the same blob in every stack, and a changed one other times, so that a cache of
    bytecode that goes by time and size (as Python's does) sees the change.
    """
    return EPOCH + int(digest.hex, 16) % 2**29


def pip_order(wheels: Iterable[tuple[Wheel, Digest]]) -> list[tuple[Wheel, Digest]]:
    """In the order in which pip installs them with --no-deps: by normalized name, descending."""
    return sorted(wheels, key=lambda pair: pair[0].name, reverse=True)


def installed_tree(wheel: Wheel, layout: VenvLayout) -> list[TreeEntry]:
    """What pip would make of this wheel, sorted by path, folders below the prefix included.

    ArtefactUnusable where pip would fail, and where a file would replace one that makes the environment one.
    """
    install = _Installation(wheel, layout)
    install.copy_files()
    install.generate_scripts()
    install.generate_metadata()
    return install.tree()


def write_wheels_layer(
    writer: LayerWriter, wheels: Iterable[tuple[Wheel, Digest]], layout: VenvLayout
) -> list[TreeEntry]:
    """One layer of these wheels, each with its sha256; the order of the argument does not matter.

    Returns what is in it. Where wheels have a path in common the last one in pip's order has it. `finish` is
    left to the caller.
    """
    files: dict[str, tuple[TreeEntry, Wheel, int]] = {}
    folders: dict[str, TreeEntry] = {}
    for wheel, digest in pip_order(wheels):
        mtime = mtime_of(digest)
        for entry in installed_tree(wheel, layout):
            if entry.kind == "directory":
                folders[entry.path] = entry
            else:
                files[entry.path] = (entry, wheel, mtime)
    for path in files.keys() & folders.keys():
        raise ArtefactUnusable(f"{files[path][1].archive.name}: its file {path} is a folder of another wheel")
    for path in sorted(files.keys() | folders.keys()):
        if path in folders:
            writer.directory(path, folders[path].mode, mtime=EPOCH)
        else:
            _write_file(writer, *files[path])
    return [
        folders[path] if path in folders else files[path][0] for path in sorted(files.keys() | folders.keys())
    ]


def write_tree(writer: LayerWriter, entries: Iterable[TreeEntry], *, mtime: int = EPOCH) -> None:
    """Entries that carry their contents themselves, such as `venv_skeleton`'s, in their order."""
    for entry in entries:
        if entry.kind == "directory":
            writer.directory(entry.path, entry.mode, mtime=mtime)
        elif entry.kind == "symlink":
            writer.symlink(entry.path, entry.target, mtime=mtime)
        else:
            writer.file_bytes(entry.path, entry.data or b"", entry.mode, mtime=mtime)


def shared_paths(trees: Mapping[str, Sequence[TreeEntry]]) -> dict[str, tuple[str, ...]]:
    """Files that several wheels bring: path → names in the order of installing, so the last one has it.

    trees: normalized name → what `installed_tree` gave, all of one pip run.
    """
    owners: dict[str, list[str]] = {}
    for name in sorted(trees, reverse=True):
        for entry in trees[name]:
            if entry.kind != "directory":
                owners.setdefault(entry.path, []).append(name)
    return {path: tuple(names) for path, names in sorted(owners.items()) if len(names) > 1}


def _write_file(writer: LayerWriter, entry: TreeEntry, wheel: Wheel, mtime: int) -> None:
    member = entry.member
    if member is None:
        writer.file_bytes(entry.path, entry.data or b"", entry.mode, mtime=mtime)
    elif member.method == DEFLATED:
        raw = wheel.raw_deflate(member)
        writer.file_deflated(entry.path, member.size, member.crc, raw, entry.mode, mtime=mtime)
    else:
        writer.file_stream(entry.path, member.size, wheel.stream(member), entry.mode, mtime=mtime)


class _Installation:
    """The steps of pip's `_install_wheel`, on paths instead of on a disk."""

    def __init__(self, wheel: Wheel, layout: VenvLayout) -> None:
        self._wheel, self._layout = wheel, layout
        self._site = layout.site_packages
        self._schemes = {
            "purelib": self._site,
            "platlib": self._site,
            "headers": f"{layout.root}/include/site/python{layout.python_xy}/{wheel.name}",
            "scripts": f"{layout.root}/bin",
            "data": layout.root,
        }
        self._files: dict[str, TreeEntry] = {}
        self._recorded: dict[str, str] = {}  # path in the wheel → path in the new RECORD
        self._changed: dict[str, str] = {}  # path in the new RECORD → path in the image
        self._generated: list[str] = []  # paths in the image, one twice if it was written twice

    def copy_files(self) -> None:
        """Every file of the wheel, to its scheme; ready-made scripts last."""
        scripts = []
        for member in self._wheel.files:
            top, _, rest = member.path.partition("/")
            if not top.endswith(".data"):
                self._copy(member, f"{self._site}/{member.path}")
                continue
            scheme, _, inner = rest.partition("/")
            if scheme not in self._schemes or not inner:
                raise self._wheel.archive.bad(
                    f"{member.path!r} has no place to be installed to",
                    wanted=f"{top}/SCHEME/PATH, SCHEME one of {', '.join(sorted(self._schemes))}",
                )
            if scheme == "scripts":
                scripts.append((member, inner))
            else:
                self._copy(member, f"{self._schemes[scheme]}/{inner}")
        made = entry_point_names(self._wheel) if scripts else frozenset()
        for member, inner in scripts:
            if _wrapped_name(inner) not in made:
                self._copy_script(member, f"{self._schemes['scripts']}/{inner}")

    def generate_scripts(self) -> None:
        """What the entry points ask for."""
        for path, data in entry_point_scripts(self._wheel, self._layout):
            self._generate(path, data, 0o755)

    def generate_metadata(self) -> None:
        """INSTALLER, REQUESTED, and RECORD rewritten to say what is installed."""
        folder = f"{self._site}/{self._wheel.dist_info}"
        self._generate(f"{folder}/INSTALLER", b"pip\n", 0o644)
        self._generate(f"{folder}/REQUESTED", b"", 0o644)
        text = io.StringIO(newline="")
        csv.writer(text).writerows(sorted(self._record_rows()))
        self._put(f"{folder}/RECORD", data=text.getvalue().encode())

    def tree(self) -> list[TreeEntry]:
        """Files and the folders they lie in, sorted."""
        skeleton = {e.path for e in venv_skeleton(self._layout) if e.kind != "directory"}
        folders: set[str] = set()
        for path in self._files:
            folder = posixpath.dirname(path)
            while folder not in folders and folder != self._layout.root:
                folders.add(folder)
                folder = posixpath.dirname(folder)
        for path in sorted(skeleton & (folders | self._files.keys())):
            raise self._wheel.archive.bad(
                f"it would replace /{path}, which belongs to the environment itself"
            )
        for path in sorted(folders & self._files.keys()):
            raise self._wheel.archive.bad(f"/{path} would be both a file and a folder")
        entries = [TreeEntry(path=path, kind="directory", mode=0o755) for path in folders]
        return sorted([*entries, *self._files.values()], key=lambda entry: entry.path)

    def _copy(self, member: Member, path: str) -> None:
        self._put(path, member=member)
        self._recorded[member.path] = self._record_path(path)

    def _copy_script(self, member: Member, path: str) -> None:
        if not wants_interpreter(next(self._wheel.stream(member), b"")):
            self._copy(member, path)
            return
        script = with_interpreter(self._wheel.read(member, _SCRIPT_LIMIT), self._layout.interpreter)
        self._put(path, data=script, mode=0o755 if member.is_executable else 0o644)
        self._recorded[member.path] = self._record_path(path)
        self._changed[self._recorded[member.path]] = path

    def _generate(self, path: str, data: bytes, mode: int) -> None:
        self._put(path, data=data, mode=mode)
        self._generated.append(path)

    def _put(self, path: str, *, member: Member | None = None, data: bytes = b"", mode: int = 0o644) -> None:
        path = self._through_links(path)
        if member is not None:
            mode = 0o755 if member.is_executable else 0o644
            self._files[path] = TreeEntry(path=path, mode=mode, size=member.size, member=member)
        else:
            self._files[path] = TreeEntry(path=path, mode=mode, size=len(data), data=data)

    def _through_links(self, path: str) -> str:
        """Where a file comes to lie: lib64 is a link to lib, through which pip writes."""
        linked = f"{self._layout.root}/lib64/"
        return f"{self._layout.root}/lib/{path.removeprefix(linked)}" if path.startswith(linked) else path

    def _record_path(self, path: str) -> str:
        inside = self._site + "/"
        return path.removeprefix(inside) if path.startswith(inside) else posixpath.relpath(path, self._site)

    def _record_rows(self) -> Iterator[tuple[str, str, str]]:
        """The old rows under their new paths, those that were generated, those that had been forgotten."""
        left = dict(self._recorded)
        for row in self._wheel.record():
            if not row:
                raise self._wheel.archive.bad("its RECORD has an empty line, at which pip fails")
            path = left.pop(row[0], row[0])
            if path in self._changed:
                yield path, *self._hash_and_size(self._changed[path])
            else:
                yield path, row[1] if len(row) > 1 else "", row[2] if len(row) > 2 else ""
        for path in self._generated:
            yield self._record_path(path), *self._hash_and_size(path)
        for path in left.values():
            yield path, "", ""

    def _hash_and_size(self, path: str) -> tuple[str, str]:
        """The two fields of a RECORD row, for what a path that was written here holds in the end."""
        data = self._files[self._through_links(path)].data or b""
        encoded = urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        return f"sha256={encoded}", str(len(data))


def _wrapped_name(path: str) -> str:
    """The entry point that a script in a wheel stands for: setuptools once packed them ready-made."""
    name = posixpath.basename(path)
    for ending in (".exe", "-script.py", ".pya"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name
