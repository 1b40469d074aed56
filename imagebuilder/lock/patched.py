"""Which package a patch file belongs to: the one whose wheel holds the files that it changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from packaging.utils import NormalizedName, canonicalize_name

from imagebuilder.errors import Unresolvable
from imagebuilder.lock.model import LockedPatch
from imagebuilder.stack.model import Layer, Patch, Stack

_HEADER = re.compile(r"^(---|\+\+\+) ([^\t\n]+)", re.MULTILINE)


def locked_patches(
    stack: Stack, members: Callable[[NormalizedName], Collection[str]]
) -> tuple[LockedPatch, ...]:
    """Every patch with its package. members: the paths in the locked wheel of a package.

    Raises Unresolvable where no wheel of the patch's layer holds what it changes, or where several do.
    """
    return tuple(
        LockedPatch(package=_package_of(patch, layer, members), path=patch.path, sha256=patch.digest)
        for layer in stack.layers
        for patch in layer.patches
    )


def changed_paths(content: bytes) -> tuple[str, ...]:
    """The existing files that a unified diff changes, one leading folder taken off (`patch -p1`)."""
    pairs: list[tuple[str, str]] = []
    before = ""
    for mark, path in _HEADER.findall(content.decode("utf-8", errors="replace")):
        if mark == "---":
            before = path.strip()
        elif before:
            pairs.append((before, path.strip()))
            before = ""
    return tuple(dict.fromkeys(old.partition("/")[2] for old, _ in pairs if old != "/dev/null"))


def _package_of(
    patch: Patch, layer: Layer, members: Callable[[NormalizedName], Collection[str]]
) -> NormalizedName:
    wanted = changed_paths(patch.content)
    names = list(dict.fromkeys(canonicalize_name(r.name) for r in layer.requirements))
    if not wanted:
        raise Unresolvable(
            f"the patch {patch.path} changes no file",
            wanted="a unified diff with --- and +++ lines, as `git diff` or `diff -u` write it",
        )
    holders = [name for name in names if set(wanted) <= set(members(name))]
    if len(holders) == 1:
        return holders[0]
    raise Unresolvable(
        f"the patch {patch.path} belongs to {'several' if holders else 'no'} package of layer {layer.name}",
        seen=f"it changes {', '.join(wanted)}",
        wanted=f"files of one of: {', '.join(names)}",
        hint="put the patch into its package's layer; its paths are below site-packages, behind a/ and b/",
    )
