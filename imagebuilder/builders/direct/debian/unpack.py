"""One package, unpacked as far as a layer needs it: its control files, and where each path's bytes lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from imagebuilder.builders.direct.debian.tree import DIRECTORY, FILE, SYMLINK, Content, Entry
from imagebuilder.errors import ArtefactUnusable, BuildFailed
from imagebuilder.index import debfile
from imagebuilder.index.debian_relations import parse_relations
from imagebuilder.lock.model import DebPackage

_SLACK = 1 << 30  # bytes; Installed-Size is an estimate, often too small for many little files


@dataclass(kw_only=True)
class Unpacked:
    """fields: the control stanza. control: its other files, name → (bytes, mode). entries: in their order.

    kept: the paths for dpkg's list of this package.
    """

    deb: DebPackage
    fields: Mapping[str, str]
    control: Mapping[str, tuple[bytes, int]]
    entries: Sequence[Entry]
    kept: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Without architecture."""
        return self.deb.name

    @property
    def info_name(self) -> str:
        """As dpkg calls its files: with the architecture where several may be installed together."""
        same = self.fields.get("Multi-Arch", "") == "same"
        return f"{self.deb.name}:{self.deb.architecture}" if same else self.deb.name

    def script(self, name: str) -> str:
        """A maintainer script's text, empty where there is none."""
        return self.control[name][0].decode("utf-8", "replace") if name in self.control else ""

    def lines(self, name: str) -> list[str]:
        """The lines of a control file that are not blank."""
        return [line.strip() for line in self.script(name).splitlines() if line.strip()]

    def replaces(self, name: str, version: str) -> bool:
        """Whether it may take over files of that package in that version."""
        groups = parse_relations(self.fields.get("Replaces", ""))
        return any(one.name == name and one.holds(version) for group in groups for one in group)


def unpack_all(
    debs: Sequence[tuple[DebPackage, Path]],
    spool: Path,
    workers: int,
    advance: Callable[[int], None],
) -> list[Unpacked]:
    """All of them, in order; decompressing runs in threads, as it does not hold the interpreter."""

    def one(numbered: tuple[int, tuple[DebPackage, Path]]) -> Unpacked:
        number, (deb, path) = numbered
        found = unpack(deb, path, spool / f"{number}.tar")
        advance(deb.size)
        return found

    pool = ThreadPoolExecutor(max_workers=max(1, workers))
    try:
        return list(pool.map(one, enumerate(debs)))
    finally:
        pool.shutdown(cancel_futures=True)


def unpack(deb: DebPackage, path: Path, spool: Path) -> Unpacked:
    """Spools the data archive and reads both archives' headers. ArtefactUnusable: anything unsafe or odd."""
    name = f"{deb.name} {deb.version}"
    with debfile.open_deb(path) as file:
        info = debfile.locate(file, name)
        control = debfile.read_control(file, info, name)
        fields = debfile.stanza(control.pop("control")[0], name)
        if (fields.get("Package"), fields.get("Version")) != (deb.name, deb.version):
            raise ArtefactUnusable(
                f"{path.name} holds another package than its archive's list says",
                seen=f"{fields.get('Package')} {fields.get('Version')}",
                wanted=name,
            )
        installed = fields.get("Installed-Size", "0")
        limit = _SLACK + 16 * 1024 * (int(installed) if installed.isdigit() else 0)
        try:
            with spool.open("wb") as out:
                for chunk in debfile.unpacked(file, info.data, name, min(limit, debfile.MAX_DATA)):
                    out.write(chunk)
        except OSError as error:
            raise BuildFailed(f"{name} cannot be unpacked to {spool.parent}: {error.strerror}") from None
    return Unpacked(deb=deb, fields=fields, control=control, entries=_entries(deb, spool, name))


def _entries(deb: DebPackage, spool: Path, name: str) -> list[Entry]:
    found: list[Entry] = []
    files: dict[str, Entry] = {}
    linked: dict[str, str] = {}
    with spool.open("rb") as file:
        for member in debfile.entries(file, spool.stat().st_size, name):
            path = debfile.clean(member.name, name)
            content = group = None
            if member.isdir():
                kind = DIRECTORY
            elif member.issym():
                kind = SYMLINK
                if not member.linkname or "\0" in member.linkname:
                    raise ArtefactUnusable(f"{name}: {path} is a link to {member.linkname!r}")
            elif member.isreg():
                kind = FILE
                content = Content(spool=spool, offset=member.offset_data, size=member.size)
            elif member.islnk():
                kind = FILE
                origin = debfile.clean(member.linkname, name)
                origin = linked.get(origin, origin)
                if origin not in files:
                    raise ArtefactUnusable(
                        f"{name}: {path} is a hard link to {origin!r}, which is not before it"
                    )
                content, linked[path] = files[origin].content, origin
                group = (deb.name, origin)
            else:
                raise ArtefactUnusable(
                    f"{name}: {path} is a device, a pipe or something else that is not unpacked"
                )
            if not path and kind != DIRECTORY:
                raise ArtefactUnusable(f"{name}: its root is not a folder")
            entry = Entry(
                kind=kind,
                mode=member.mode & 0o7777,
                uid=member.uid,
                gid=member.gid,
                mtime=int(member.mtime),
                owner=deb.name,
                name=path,
                target=member.linkname if kind == SYMLINK else "",
                content=content,
                group=group,
            )
            if kind == FILE:
                files[path] = entry
            found.append(entry)
    origins = {entry.group for entry in found if entry.group}
    return [
        _grouped(entry, (deb.name, entry.name)) if (deb.name, entry.name) in origins else entry
        for entry in found
    ]


def _grouped(entry: Entry, group: tuple[str, str]) -> Entry:
    from dataclasses import replace

    return replace(entry, group=group)
