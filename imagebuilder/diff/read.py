"""What an argument of `diff` means, read: a stack, a lock, an image on disk or in a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagebuilder.cache import Cache
from imagebuilder.checks.gather import read_wheels
from imagebuilder.checks.model import Finding
from imagebuilder.diff import sides
from imagebuilder.diff.compare import Tables
from imagebuilder.diff.libraries import Elf, GpuCode
from imagebuilder.diff.model import Accepted, Package, Side
from imagebuilder.diff.packages import Names
from imagebuilder.errors import UsageProblem
from imagebuilder.facts.elf import ElfFacts
from imagebuilder.facts.store import FactStore
from imagebuilder.facts.tables import table
from imagebuilder.lock.model import Lock
from imagebuilder.lock.pylock import read_lock
from imagebuilder.oci.base import fetch_layers, resolve_base
from imagebuilder.oci.image import Image
from imagebuilder.progress import Reporter
from imagebuilder.publish.built import is_image, read_built
from imagebuilder.publish.contents import ImageContents, read_image
from imagebuilder.settings import Settings
from imagebuilder.stack import find_stack, load_stack
from imagebuilder.stack.model import Stack
from imagebuilder.values import Digest, ImageRef, Platform

_PLAIN = 20 << 20  # bytes

LockOf = Callable[[Stack], Lock | None]
Acceptance = Callable[[Digest | None, str], Accepted | None]
"""The newest acceptance of this config digest; for a stack, whose image is not known, of its name."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What is attached to an image in a registry: its packages (None: no SBOM), and names of its layers."""

    packages: tuple[Package, ...] | None
    layers: tuple[Mapping[str, Any], ...] = ()


Attachments = Callable[[ImageRef, Image], Listed]

Findings = Callable[[Stack, Lock], Sequence[Finding] | None]
"""What `check` finds in a stack with this lock; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sides are read. files: read the layers of images; None: of those that lie here.

    lock_of: finds a stack's lock. wheels: read the facts of a stack's wheels where they are not known.
    """

    cwd: Path
    settings: Settings
    cache: Cache
    reporter: Reporter
    lock_of: LockOf
    acceptance: Acceptance
    attachments: Attachments
    findings: Findings
    platform: Platform
    files: bool | None = None
    wheels: bool = False
    known: dict[Digest, ImageContents] = field(default_factory=dict)

    def side(self, argument: str) -> Side:
        """The side that this argument names. UsageProblem: nothing; else what reading it raises."""
        path = self.cwd / argument
        if is_image(path):
            return self._on_disk(path, argument)
        if path.is_file() and path.name.startswith("pylock."):
            return sides.of_lock(read_lock(path), label=argument)
        if self._may_be_reference(argument):
            return self._in_registry(argument)
        try:
            stack = load_stack(find_stack(argument, self.cwd))
        except UsageProblem as error:
            raise UsageProblem(
                f"{argument!r} is nothing that can be compared",
                seen=error.what,
                wanted="a stack, a lock (pylock.NAME.toml), a layout, an archive (.tar), or a reference",
                hint=error.hint,
            ) from None
        lock = self.lock_of(stack)
        if lock is not None and self.wheels:
            read_wheels(stack, lock, settings=self.settings, cache=self.cache, reporter=self.reporter)
        side = sides.of_stack(stack, lock, label=argument, acceptance=self.acceptance(None, stack.name))
        found = self.findings(stack, lock) if lock is not None else None
        return replace(side, findings=None if found is None else tuple(found))

    def _may_be_reference(self, argument: str) -> bool:
        """A stack's name has no such mark, its path ends in .toml; a folder here is no registry."""
        if argument.endswith(".toml") or argument.startswith((".", "/")):
            return False
        folder = self.cwd / argument.partition("/")[0]
        return ":" in argument or "@" in argument or ("/" in argument and not folder.is_dir())

    def _on_disk(self, path: Path, label: str) -> Side:
        built = read_built(path, self.cache)
        contents = None if self.files is False else self._contents(built.image)
        notes = () if contents else ("its files were not read (--files)",)
        return sides.of_image(
            built.image,
            label=label,
            built_layers=built.record.layers if built.record else (),
            contents=contents,
            acceptance=self.acceptance(built.image.config_digest, ""),
            notes=notes,
        )

    def _in_registry(self, argument: str) -> Side:
        try:
            ref = ImageRef.parse(argument)
        except ValueError as error:
            raise UsageProblem(str(error)) from None
        found = resolve_base(ref, self.platform, settings=self.settings, cache=self.cache)
        contents: ImageContents | None = None
        listed = self.attachments(ref, found.image)
        notes: list[str] = []
        if self.files:
            found = fetch_layers(found, settings=self.settings, cache=self.cache, reporter=self.reporter)
            contents = self._contents(found.image)
        elif listed.packages is None:
            notes.append("it has no SBOM, so its packages are not known without its layers (--files)")
        return sides.of_image(
            found.image,
            label=argument,
            contents=contents,
            packages=listed.packages,
            built_layers=listed.layers,
            acceptance=self.acceptance(found.image.config_digest, ""),
            notes=notes,
        )

    def _contents(self, image: Image) -> ImageContents:
        if image.digest not in self.known:
            self.known[image.digest] = read_image(image, self.cache, self.reporter, self.settings.workers)
        return self.known[image.digest]


def load_tables() -> Tables:
    """The tables that a comparison needs."""
    names, drivers = table("packages"), table("drivers")
    return Tables(
        names=Names(renamed=names["renamed"]),
        headline=[(words, stem) for words, stem in names["headline"]],
        runtimes=drivers["runtime-packages"],
        major_floors=drivers["major"],
        toolkit_floors=drivers["toolkit"],
    )


def gpu_code_from(cache: Cache) -> GpuCode:
    """GPU code of wheels whose facts are in the cache (`check` and `matrix` put them there)."""
    store = FactStore(cache)

    def gpu_code(package: Package) -> Mapping[str, tuple[str, ...]] | None:
        facts = store.known(package.sha256)
        if facts is None:
            return {} if _is_plain(package) else None
        return {path: tuple(sorted(map(str, code.entries))) for path, code in facts.gpu.items()}

    return gpu_code


def elf_from(cache: Cache) -> Elf:
    """Dynamic symbols of wheels whose facts are in the cache."""
    store = FactStore(cache)

    def elf(package: Package) -> Mapping[str, ElfFacts] | None:
        facts = store.known(package.sha256)
        if facts is None:
            return {} if _is_plain(package) else None
        return facts.elf

    return elf


def _is_plain(package: Package) -> bool:
    """Whether a wheel is for any platform and small: those that carry cubins (flashinfer-cubin) are not."""
    small = package.size is not None and package.size < _PLAIN
    return small and bool(package.filename and package.filename.endswith("-any.whl"))
