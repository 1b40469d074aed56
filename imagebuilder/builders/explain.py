"""Why two builds of one image differ: the layer, the file, and the usual cause of that difference.

The causes are those known to make container builds differ: time stamps, bytecode, caches, logs, ids, order.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.oci.untar import Members, open_layer

# (pattern of the path, cause). The first that matches is told.
_CAUSES_BY_PATH: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"\.pyc$", "bytecode holds its source's time, or a build folder's path: install with --no-compile"),
        (r"(^|/)uv_cache\.json$", "uv records the time of the file that it installed"),
        (r"(^|/)direct_url\.json$", "an install by path records that path: use --no-index --find-links"),
        (r"\.dist-info/RECORD$", "the installer lists other generated files, or in another order"),
        (r"^var/cache/ldconfig/", "ldconfig's auxiliary cache holds inode numbers and times"),
        (r"^etc/ld\.so\.cache$", "ldconfig orders its cache by what it met first"),
        (r"^var/log/", "a log of the installation with its times"),
        (r"^var/lib/apt/lists/", "apt's package lists are those of the day"),
        (r"^var/cache/(apt|debconf)/", "a cache of the package manager"),
        (r"(-old|^etc/(shadow|passwd|group|gshadow)-)$", "a backup copy that a package manager left"),
        (r"^etc/(shadow|gshadow)$", "a password entry holds the day on which it was made"),
        (r"^etc/(hostname|hosts|resolv\.conf|machine-id)$", "this file says on which machine it was made"),
        (r"(^|/)(\.triton|\.cache|torchinductor|tvm-ffi|__pycache__)(/|$)", "a cache that a program filled"),
        (r"^(root|home/[^/]+)/\.", "a program wrote into a home folder while the image was built"),
        (r"^tmp/|^var/tmp/|^run/", "a temporary file was left behind"),
    )
)

_CAUSES_BY_ASPECT = {
    "time": "a time stamp is not the one that SOURCE_DATE_EPOCH or the content decides",
    "mode": "another umask while it was written",
    "owner": "built as another user",
    "order": "entries were written in the order in which the file system listed them",
    "encoding": "the same tar, compressed by another encoder or with another header",
    "content": "other bytes: an input changed, or a step that is not reproducible made it",
    "only in one": "a step of one build did not happen in the other",
    "link": "the link points elsewhere",
    "type": "one build made a file where the other made something else",
}


@dataclass(frozen=True, kw_only=True)
class LayerFile:
    """A layer to compare: its name for people, its tar's sha256 (hex), and where the blob lies."""

    name: str
    diff_id: str
    blob: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs: layer, path (or ""), in what, the two values, and why it usually does."""

    layer: str
    path: str
    aspect: str
    first: str
    second: str
    cause: str

    def __str__(self) -> str:
        place = f"{self.layer}: /{self.path}" if self.path else self.layer
        return f"{place}: {self.aspect} {self.first} ≠ {self.second}: {self.cause}"


@dataclass(frozen=True)
class _Entry:
    type: str
    mode: str
    owner: str
    time: str
    link: str
    content: str


def differences(first: Sequence[LayerFile], second: Sequence[LayerFile]) -> Iterator[Difference]:
    """Every difference between two lists of layers, in the order of the layers and then of the paths."""
    for number in range(max(len(first), len(second))):
        if number >= len(first) or number >= len(second):
            here = (first if number < len(first) else second)[number]
            sides = ("there", "missing") if number < len(first) else ("missing", "there")
            yield _difference(here.name, "", "only in one", *sides)
            continue
        one, two = first[number], second[number]
        if one.diff_id != two.diff_id:
            yield from _between(one, two)
        elif one.blob != two.blob:
            yield _difference(one.name, "", "encoding", one.blob, two.blob)


def _between(first: LayerFile, second: LayerFile) -> Iterator[Difference]:
    ours, theirs = _entries(first.path), _entries(second.path)
    found = False
    for path in sorted(ours.keys() | theirs.keys()):
        one, two = ours.get(path), theirs.get(path)
        if one is None or two is None:
            found = True
            sides = ("there", "missing") if two is None else ("missing", "there")
            yield _difference(first.name, path, "only in one", *sides)
            continue
        for aspect in ("type", "content", "link", "mode", "owner", "time"):
            if getattr(one, aspect) != getattr(two, aspect):
                found = True
                yield _difference(first.name, path, aspect, getattr(one, aspect), getattr(two, aspect))
    if not found and list(ours) != list(theirs):
        path = next(a for a, b in zip(ours, theirs, strict=True) if a != b)
        places = (f"entry {list(side).index(path)}" for side in (ours, theirs))
        yield _difference(first.name, path, "order", *places)
    elif not found:
        yield _difference(first.name, "", "encoding", f"tar {first.diff_id}", f"tar {second.diff_id}")


def _difference(layer: str, path: str, aspect: str, first: str, second: str) -> Difference:
    cause = next((c for pattern, c in _CAUSES_BY_PATH if path and pattern.search(path)), None)
    return Difference(
        layer=layer,
        path=path,
        aspect=aspect,
        first=first,
        second=second,
        cause=cause or _CAUSES_BY_ASPECT[aspect],
    )


def _entries(path: Path) -> dict[str, _Entry]:
    """What a layer holds, by path, in the order of its tar."""
    kinds = {tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "symbolic link", tarfile.LNKTYPE: "hard link"}
    with open_layer(path) as members:
        return {
            name: _Entry(
                type=kinds.get(member.type, "file"),
                mode=f"{member.mode:04o}",
                owner=f"{member.uid}:{member.gid}",
                time=str(int(member.mtime)),
                link=member.linkname,
                content=_content(members, member),
            )
            for name, member in members
        }


def _content(members: Members, member: tarfile.TarInfo) -> str:
    if not member.isreg():
        return ""
    digest = hashlib.sha256()
    for chunk in members.chunks(member):
        digest.update(chunk)
    return f"{member.size} bytes, sha256:{digest.hexdigest()[:16]}"
