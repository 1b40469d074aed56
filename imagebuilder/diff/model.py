"""What is compared, and what a comparison says: values only.

A side knows what its kind can know; None means "not known", which is never reported as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from imagebuilder.checks.model import Finding, Severity
from imagebuilder.publish.layerscan import Entry
from imagebuilder.values import Digest

PackageKind = Literal["wheel", "deb"]
SideKind = Literal["stack", "lock", "image"]
Move = Literal["added", "removed", "upgraded", "downgraded", "renamed", "rebuilt", "moved", "patched"]
"""`rebuilt`: the same version in another file; `moved`: the same file from another index; `patched`: the same
wheel under other patches; `renamed`: the same software under another name (its version may differ)."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package of a side. version: without the mark that patching adds, which is `patched`.

    index, filename, sha256, size: where the side knows them (a lock does, the files of an image do not).
    patched: the mark; empty: no patches; None: not known.
    """

    kind: PackageKind
    name: str
    version: str
    index: str | None = None
    filename: str | None = None
    sha256: Digest | None = None
    size: int | None = None
    patched: str | None = None


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """A layer of a side. key: its content key, where the plan is known; digest: of its blob, where built.

    size: bytes of the blob, or of what is packed into it. base: of somebody else's image below.
    """

    title: str
    size: int
    key: Digest | None = None
    digest: Digest | None = None
    base: bool = False


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An acceptance of a side, as far as two of them are set side by side. figures: by name, as text."""

    verdict: str
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two. label: as it was named; identity: what pins it (a digest), for the heading.

    settings: section → name → value (`env`, `image`, `target`, `override`, `patch`, `waiver`, `file`).
    partial: sections whose names are not all known (an image base brings more): what only a side that knows
    them all has there is not called a difference. findings: of `check`, waivers applied. notes: what is not
    known, and why.
    """

    label: str
    kind: SideKind
    identity: str = ""
    packages: tuple[Package, ...] | None = None
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    layers: tuple[LayerRow, ...] | None = None
    files: Mapping[str, Entry] | None = None
    acceptance: Accepted | None = None
    findings: tuple[Finding, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A line of the summary: CUDA, driver floor, torch, … of both sides; empty where a side has none."""

    name: str
    old: str
    new: str

    @property
    def same(self) -> bool:
        """Whether both say the same."""
        return self.old == self.new


@dataclass(frozen=True, kw_only=True)
class PackageMove:
    """What happened to one package. name: the new one's; notes: what it means, as short phrases."""

    kind: PackageKind
    move: Move
    name: str
    old: Package | None
    new: Package | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SettingMove:
    """A value that differs; None where it is not there."""

    section: str
    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, kw_only=True)
class GpuMove:
    """GPU code of one library, gained and lost."""

    package: str
    library: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AbiMove:
    """Dynamic symbols of one library.

    library: its path in the wheel, of the new side where it is there. gained, lost: exported names; of a
    library that is new or gone, all of them. moved: (name, versions before, versions after) of names that
    stayed. defines: versions that it has now, and no longer. needs: (kind, highest before, highest now) of
    the versions that it asks of others, such as ("GLIBC", "2.17", "2.34"); empty texts where it asks for
    none. used: lost names that libraries of other packages of the old side refer to, with those.
    """

    package: str
    library: str
    state: Literal["changed", "removed", "added"]
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    moved: tuple[tuple[str, str, str], ...] = ()
    defines_gained: tuple[str, ...] = ()
    defines_lost: tuple[str, ...] = ()
    needs: tuple[tuple[str, str, str], ...] = ()
    used: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing of it differs."""
        return not (
            self.gained or self.lost or self.moved or self.defines_gained or self.defines_lost or self.needs
        )


@dataclass(frozen=True, kw_only=True)
class FindingMove:
    """A finding of `check` that only one side has, or that both have with another weight or waiver.

    severity, place: of the side that has it, the new one before the old one. old, new: what it says there;
    None where it is not found. note: what changed about one that both have.
    """

    move: Literal["appeared", "vanished", "changed"]
    code: str
    severity: Severity
    place: str
    old: str | None
    new: str | None
    waived: str | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LayerSharing:
    """What a node that has the first image need not pull for the second. exact: sizes are those of blobs."""

    shared: tuple[LayerRow, ...]
    pulled: tuple[LayerRow, ...]
    dropped: tuple[LayerRow, ...]
    exact: bool

    @property
    def shared_bytes(self) -> int:
        """That lie on the node already."""
        return sum(layer.size for layer in self.shared)

    @property
    def pulled_bytes(self) -> int:
        """That the node has to get."""
        return sum(layer.size for layer in self.pulled)


@dataclass(frozen=True, kw_only=True)
class FileMove:
    """A path that differs. aspects: of a changed one, in what (content, mode, kind)."""

    path: str
    move: Literal["added", "removed", "changed"]
    owner: str
    old: Entry | None
    new: Entry | None
    aspects: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diff:
    """Everything that differs between two sides; what could not be compared is None, and in notes."""

    old: Side
    new: Side
    headlines: tuple[Headline, ...]
    packages: tuple[PackageMove, ...] | None
    settings: tuple[SettingMove, ...]
    gpu: tuple[GpuMove, ...]
    layers: LayerSharing | None
    files: tuple[FileMove, ...] | None
    abi: tuple[AbiMove, ...] | None = None
    findings: tuple[FindingMove, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing differs, as far as both sides are known."""
        layers = bool(self.layers and (self.layers.pulled or self.layers.dropped))
        return not (self.packages or self.settings or self.files or layers)
