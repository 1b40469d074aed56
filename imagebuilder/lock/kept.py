"""What a new lock keeps of the previous one: everything that nobody asked to upgrade. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.utils import NormalizedName, canonicalize_name

from imagebuilder.errors import UsageProblem
from imagebuilder.lock.model import DebPackage, Lock
from imagebuilder.stack import Stack, resolution_parts

Upgrade = bool | Iterable[str] | None
"""True: nothing is kept; names: all but these (wheels or Debian packages); None: all is kept."""

_DEBIAN_PARTS = ("target", "base", "system")


def kept_versions(previous: Lock | None, upgrade: Upgrade) -> dict[NormalizedName, str]:
    """Versions of wheels to prefer. Raises UsageProblem: an upgrade of what is not locked."""
    if previous is None or upgrade is True:
        return {}
    names = _names(upgrade)
    debs = {canonicalize_name(deb.name) for deb in previous.debs}
    if unknown := sorted(names - previous.by_name.keys() - debs):
        raise UsageProblem(
            f"{', '.join(unknown)} cannot be upgraded: not in the lock of {previous.stack_name}",
            hint=f"imagebuilder lock {previous.stack_name} --upgrade looks for newer versions of everything",
        )
    return {w.name: w.version for w in previous.wheels if w.url is None and w.name not in names}


def kept_debs(stack: Stack, previous: Lock | None, upgrade: Upgrade) -> tuple[DebPackage, ...] | None:
    """The previous Debian packages, where the stack asks for the same ones and none is to be upgraded.

    None: to be resolved. The archive offers present versions only, so they are kept all or none.
    """
    if previous is None or upgrade is True:
        return None
    if _names(upgrade) & {canonicalize_name(deb.name) for deb in previous.debs}:
        return None
    before, now = dict(previous.stack_parts), dict(resolution_parts(stack))
    same = all(before.get(part) == now[part] for part in _DEBIAN_PARTS)
    return previous.debs if same else None


def _names(upgrade: Upgrade) -> set[NormalizedName]:
    if upgrade is None or isinstance(upgrade, bool):
        return set()
    return {canonicalize_name(name) for name in upgrade}
