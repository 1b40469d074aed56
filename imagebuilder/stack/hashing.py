"""The hash that tells whether a lock is still about this stack."""

from __future__ import annotations

import json
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.stack.model import Base, DebianBase, ImageBase, Stack
from imagebuilder.values import Digest


def resolution_hash(stack: Stack) -> Digest:
    """Over what resolution reads, and nothing else.

    That is target, base, system, resolve, indexes, requirements, overrides and the patches' contents; not
    comments, names of layers, reasons, waivers, environment, files, image settings, acceptance, deploy.
    """
    return _digest(_read_by_resolution(stack))


def resolution_parts(stack: Stack) -> tuple[tuple[str, Digest], ...]:
    """The same by part (`target`, `requirements`, …), so that a stale lock can say what changed."""
    return tuple((part, _digest(value)) for part, value in _read_by_resolution(stack).items())


def _digest(value: Any) -> Digest:
    return Digest.of(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def _read_by_resolution(stack: Stack) -> dict[str, Any]:
    target, system = stack.target, stack.system
    return {
        "target": {
            "platform": str(target.platform),
            "python": str(target.python),
            "gpus": [str(gpu) for gpu in target.gpus],
            "driver": str(target.driver or ""),
            "glibc": str(target.glibc or ""),
        },
        "base": _base(stack.base),
        "system": {
            "packages": list(system.packages),
            "snapshot": stack.apt_snapshot.isoformat() if stack.apt_snapshot else "",
            "resolve": system.resolve,
        },
        "as-of": stack.resolve.as_of.isoformat() if stack.resolve.as_of else "",
        "indexes": [[index.name, index.url, index.explicit] for index in stack.indexes],
        "requirements": [
            {"requirements": [_canonical(r) for r in layer.requirements], "index": layer.index or ""}
            for layer in stack.layers
        ],
        "patches": [[[patch.path, patch.digest.text] for patch in layer.patches] for layer in stack.layers],
        "overrides": [_canonical(override.requirement) for override in stack.overrides],
    }


def _base(base: Base) -> list[Any]:
    if isinstance(base, ImageBase):
        return ["image", str(base.ref)]
    if isinstance(base, DebianBase):
        return ["debian", base.suite, list(base.components), base.security]
    return ["oci", base.path]


def _canonical(requirement: Requirement) -> str:
    """One spelling for one meaning: `Foo == 1` and `foo==1` are the same."""
    copy = Requirement(str(requirement))
    copy.name = canonicalize_name(requirement.name)
    return str(copy)
