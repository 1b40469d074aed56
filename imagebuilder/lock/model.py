"""What a lock says: every file that goes into an image, by name, size and sha256, and no host.

Values only; `lock.pylock` reads and writes them, `lock.resolve` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from packaging.utils import NormalizedName

from imagebuilder.values import Digest, ImageRef, Platform, Release

DEFAULT_INDEX = "default"
"""The name, in locks, of the index that pip and uv are configured with."""

HASH_FROM_INDEX = "index"
"""`Wheel.hash_origin`: the index published the sha256."""
HASH_COMPUTED = "computed"
"""`Wheel.hash_origin`: the index published none; it is that of the file as it was when locking."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One locked wheel. Its address is looked up when needed, by index name and file name.

    name: normalized (PEP 503). version: as in the file name, with its local part. size: bytes.
    index: the stack's name of the index, or `default`; for a direct URL requirement `url` is set instead.
    path: where `fetch` puts the file, relative to the lock. requires: normalized names of locked packages
    that this one needs for the lock's target (METADATA, markers evaluated, requested extras included).
    extras: the extras of this package that are in use. metadata_version: only where the wheel's METADATA
    disagrees with its file name.
    """

    name: NormalizedName
    version: str
    filename: str
    size: int
    sha256: Digest
    path: str
    index: str | None = DEFAULT_INDEX
    url: str | None = None
    requires: tuple[NormalizedName, ...] = ()
    extras: tuple[str, ...] = ()
    hash_origin: str = HASH_FROM_INDEX
    upload_time: datetime | None = None
    metadata_version: str | None = None


@dataclass(frozen=True, kw_only=True)
class DebPackage:
    """One locked Debian package; the lock's order of them is the order of unpacking.

    path: below the archive's root (`pool/main/…`). pocket: the suite it came from, such as `bookworm` or
    `bookworm-security`. size: bytes of the .deb.
    """

    name: str
    version: str
    architecture: str
    path: str
    size: int
    sha256: Digest
    pocket: str


@dataclass(frozen=True, kw_only=True)
class LockedBase:
    """The base image. `ref` is the stack's, by name; `index` is the digest that pins it.

    manifest: the digest of the one platform's manifest, where the registry was asked for it.
    path: for an OCI layout on disk (then `ref` is None), as the stack names it.
    """

    ref: ImageRef | None
    index: Digest
    manifest: Digest | None = None
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class LockedPatch:
    """A patch file for one package: path as the stack resolves it, and its sha256."""

    package: NormalizedName
    path: str
    sha256: Digest


@dataclass(frozen=True, kw_only=True)
class LockedOverride:
    """A declared break of a wheel's own requirement, with its reason."""

    requirement: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """A newer version that the index has and the lock does not, and why."""

    name: NormalizedName
    version: str
    chosen: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Everything an image depends on.

    stack_hash: of what resolution reads from the stack; stack_parts: the same by part (`target`, …),
    so that a stale lock can say what changed. resolver: as `uv 0.13.9`. glibc: what wheel tags were chosen
    for. as_of: nothing newer was considered. wheels: sorted by name. debs: in unpack order.
    """

    stack_name: str
    stack_hash: Digest
    stack_parts: tuple[tuple[str, Digest], ...]
    resolver: str
    python: Release
    platform: Platform
    glibc: Release
    as_of: datetime | None = None
    wheels: tuple[Wheel, ...] = ()
    debs: tuple[DebPackage, ...] = ()
    base: LockedBase | None = None
    patches: tuple[LockedPatch, ...] = ()
    overrides: tuple[LockedOverride, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Wheel]:
        """The wheels by normalized name."""
        return {wheel.name: wheel for wheel in self.wheels}

    def patches_of(self, package: str) -> Iterator[LockedPatch]:
        """The patches of one package, in the order in which they apply."""
        return (patch for patch in self.patches if patch.package == package)

    @property
    def download_size(self) -> int:
        """Bytes of all wheels and Debian packages."""
        return sum(w.size for w in self.wheels) + sum(d.size for d in self.debs)
