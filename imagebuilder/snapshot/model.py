"""What a snapshot is made of, as values: the environment as it is found, and what becomes of each package."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from packaging.utils import NormalizedName

from imagebuilder.lock.measure import Measured
from imagebuilder.lock.metadata import Metadata
from imagebuilder.values import Platform, Release

SHORT = 32
"""Digits of a sha256 that files are compared by: 128 bits, as layers' contents are kept."""
LARGEST_FILE = 16 << 20
"""Bytes of a file that is taken into the stack's folder; a stack file's own limit."""


class Unreadable(Exception):
    """A file of the environment that this user may not read, or that is damaged; says why."""


class Files(Protocol):
    """The files of an environment. Paths have no slash at their ends; links are followed."""

    def kind(self, path: str) -> str | None:
        """`file`, `directory`, or None."""

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in a folder, sorted; nothing where it is none."""

    def walk(self, folder: str) -> Iterator[str]:
        """Paths of the files below a folder; links to folders are not followed."""

    def digest(self, path: str) -> str:
        """The first SHORT hexadecimal digits of the file's sha256. Raises Unreadable."""

    def executable(self, path: str) -> bool:
        """Whether its owner may execute it."""

    def size(self, path: str) -> int:
        """Bytes of a file; 0 where it is none."""

    def read(self, paths: Iterable[str], limit: int) -> Mapping[str, bytes]:
        """The bytes of those that are files of at most `limit` bytes and can be read."""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python and where it looks for packages.

    version: as 3.11.2, or 3.11 where only that is known. prefix, sites: paths as in `Files`; sites in the
    order of sys.path. base: the prefix of the Python that a virtual environment was made from. glibc: where
    it is known.
    """

    version: Release
    platform: Platform
    prefix: str
    base: str
    sites: tuple[str, ...]
    glibc: Release | None = None

    @property
    def python(self) -> Release:
        """`3.11`."""
        return Release(".".join(map(str, self.version.parts[:2])))


@dataclass(frozen=True, kw_only=True)
class Run:
    """How an image is run, as its config says."""

    env: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    healthcheck: bool = False


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is to be rebuilt. label: what the user called it. whole: its Debian packages count, as in an
    image.

    elsewhere: prefixes of other Pythons in it. beside: (folder, number) of files of no package.
    """

    label: str
    name: str
    files: Files
    interpreter: Interpreter
    run: Run = Run()
    whole: bool = False
    elsewhere: tuple[str, ...] = ()
    beside: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What direct_url.json says. kind: editable, folder, vcs, wheel or archive."""

    kind: Literal["editable", "folder", "vcs", "wheel", "archive"]
    url: str
    revision: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A distribution as it lies there.

    folder: its .dist-info (or what stands for it). record: path in `Files` → digest ("": none given); None
    where it has no RECORD. outside: paths of RECORD that lead out of the environment. problem: why it cannot
    be a wheel's.
    """

    name: NormalizedName
    version: str
    site: str
    folder: str
    record: Mapping[str, str] | None = None
    outside: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    origin: Origin | None = None
    top_level: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What is in a wheel: path → digest as in `Installed.record`, for every file. scripts: of its entry
    points.
    """

    dist_info: str
    members: Mapping[str, str]
    metadata: Metadata
    scripts: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A wheel of an index that may be the installed one, and where each of its files lies when it is
    installed.
    """

    measured: Measured
    listing: Listing
    places: Mapping[str, str]


What = Literal["changed", "added", "deleted", "extra", "metadata", "script"]
"""extra: the wheel has it and its installer left it out; script: one that installers make from an entry
point.
"""
How = Literal["patch", "file", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A file that is not as in the wheel. member: its path in the wheel, or below site-packages for an added
    one.

    how: what brings it back. Then: for a patch, its text; for a file, its bytes.
    """

    path: str
    member: str
    what: What
    how: How
    why: str = ""
    data: bytes = field(default=b"", repr=False)
    executable: bool = False

    @property
    def lost(self) -> bool:
        """Whether the image will differ in it, in a way that counts."""
        return self.how == "nothing" and self.what not in ("extra", "metadata")


State = Literal["equal", "patched", "unlockable", "debian"]


@dataclass(frozen=True, kw_only=True)
class Package:
    """What becomes of a distribution. proven: RECORD says that exactly this wheel was installed.

    patch: one unified diff of all that is changed; empty where nothing is. problem, fix: of one that cannot
    be locked.
    """

    installed: Installed
    state: State
    candidate: Candidate | None = None
    proven: bool = False
    changes: tuple[Change, ...] = ()
    patch: bytes = field(default=b"", repr=False)
    problem: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> NormalizedName:
        """The normalized name."""
        return self.installed.name

    @property
    def version(self) -> str:
        """As the index knows it: without the mark of a patched wheel."""
        found = self.candidate
        return str(found.measured.file.version) if found else self.installed.version

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        measured = self.candidate.measured if self.candidate else None
        return {
            "name": self.name,
            "version": self.version,
            "installed": self.installed.version,
            "state": self.state,
            "proven": self.proven,
            "index": (measured.file.index or None) if measured else None,
            "filename": measured.file.filename if measured else None,
            "sha256": measured.sha256.hex if measured else None,
            "changes": [{"path": c.path, "what": c.what, "how": c.how, "why": c.why} for c in self.changes],
            "problem": self.problem,
            "fix": self.fix,
            "notes": list(self.notes),
        }


def inside(path: str, folders: Collection[str]) -> bool:
    """Whether a path lies below one of these folders."""
    return any(path.startswith(f"{folder}/") if folder else True for folder in folders)


def joined(folder: str, path: str) -> str:
    """`path` as seen from `folder`, in the form of `Files`; `..` beyond the root stays and is seen as
    such.
    """
    if path.startswith("/"):
        return posixpath.normpath(path).lstrip("/")
    return posixpath.normpath(f"{folder}/{path}")
