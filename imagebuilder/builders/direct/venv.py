"""The virtual environment of an image: where things lie in it, and the files that make it one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imagebuilder.facts.ziparchive import Member
from imagebuilder.values import Release

EPOCH = 946684800
"""2000-01-01: the time of folders and of what no wheel brings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """One path of an installed tree, relative to the image's root.

    A file's contents are `data`, or else `member` of the wheel it comes from, unchanged. size: bytes.
    target: of a symbolic link.
    """

    path: str
    kind: Literal["file", "directory", "symlink"] = "file"
    mode: int = 0o644
    size: int = 0
    data: bytes | None = None
    member: Member | None = None
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class VenvLayout:
    """Where a virtual environment lies, and for which Python.

    python: 3.11 or 3.11.2, only the first two parts count. prefix: absolute. base_interpreter: the Python
    that it is made from, by default /usr/bin/pythonX.Y.
    """

    python: Release
    prefix: str = "/opt/venv"
    base_interpreter: str = ""

    @property
    def python_xy(self) -> str:
        """`3.11`."""
        return ".".join(str(part) for part in self.python.parts[:2])

    @property
    def root(self) -> str:
        """The prefix as a path in a layer: `opt/venv`."""
        return self.prefix.strip("/")

    @property
    def site_packages(self) -> str:
        """As a path in a layer. Debian and Ubuntu have one for pure and for compiled packages."""
        return f"{self.root}/lib/python{self.python_xy}/site-packages"

    @property
    def interpreter(self) -> str:
        """What runs scripts of the environment: `/opt/venv/bin/python`, absolute."""
        return f"/{self.root}/bin/python"

    @property
    def base(self) -> str:
        """The interpreter that the environment is made from, absolute."""
        return self.base_interpreter or f"/usr/bin/python{self.python_xy}"


def venv_skeleton(layout: VenvLayout) -> list[TreeEntry]:
    """What makes a folder a virtual environment, and the folders that lead to it, sorted.

    As `python -m venv --without-pip` makes it, without the activate scripts, which differ between patch
    releases of Python and which nothing in an image sources: PATH says where the environment is.
    """
    root, site = layout.root, layout.site_packages
    config = (
        f"home = {layout.base.rpartition('/')[0]}\n"
        "include-system-site-packages = false\n"
        f"version = {layout.python_xy}\n"
        f"executable = {layout.base}\n"
    ).encode()
    above = [root[:place] for place, letter in enumerate(root) if letter == "/"]
    folders = (*above, root, f"{root}/bin", f"{root}/include", f"{root}/lib", site.rpartition("/")[0], site)
    links = {
        f"{root}/bin/python": layout.base,
        f"{root}/bin/python{layout.python_xy.partition('.')[0]}": "python",
        f"{root}/bin/python{layout.python_xy}": "python",
        f"{root}/lib64": "lib",
    }
    entries = [TreeEntry(path=path, kind="directory", mode=0o755) for path in folders]
    entries += [TreeEntry(path=path, kind="symlink", mode=0o777, target=to) for path, to in links.items()]
    entries.append(TreeEntry(path=f"{root}/pyvenv.cfg", size=len(config), data=config))
    return sorted(entries, key=lambda entry: entry.path)
