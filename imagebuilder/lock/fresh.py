"""Whether a lock still belongs to its stack file. Pure."""

from __future__ import annotations

import json
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.errors import LockUnusable
from imagebuilder.lock.model import Lock
from imagebuilder.stack import resolution_hash
from imagebuilder.stack.model import Base, DebianBase, ImageBase, Stack
from imagebuilder.values import Digest


def check_fresh(stack: Stack, lock: Lock) -> None:
    """Raises LockUnusable, naming the parts of the stack that changed since the lock was made."""
    wanted = resolution_hash(stack)
    if lock.stack_hash == wanted:
        return
    before = dict(lock.stack_parts)
    now = dict(stack_parts(stack))
    changed = [part for part, digest in now.items() if before.get(part) != digest]
    raise LockUnusable(
        f"the lock of {stack.name} is stale: the stack file has changed since",
        seen=f"changed: {', '.join(changed)}" if changed else f"a lock for {lock.stack_hash}",
        wanted="" if changed else str(wanted),
        hint=f"imagebuilder lock {stack.name}",
    )


def stack_parts(stack: Stack) -> tuple[tuple[str, Digest], ...]:
    """A digest for each part of the stack that resolution reads, to say later which one changed."""
    target, system = stack.target, stack.system
    parts: dict[str, Any] = {
        "target": [str(target.platform), str(target.python), str(target.glibc)],
        "base": _base(stack.base),
        "system": [list(system.packages), str(system.snapshot), system.resolve],
        "resolve": str(stack.resolve.as_of),
        "index": [[i.name, i.url, i.explicit] for i in stack.indexes],
        "requirements": [
            [requirement_text(r), layer.index] for layer in stack.layers for r in layer.requirements
        ],
        "patches": [[p.path, str(p.digest)] for layer in stack.layers for p in layer.patches],
        "overrides": [requirement_text(o.requirement) for o in stack.overrides],
    }
    return tuple((part, Digest.of(json.dumps(value).encode())) for part, value in parts.items())


def requirement_text(requirement: Requirement) -> str:
    """A requirement, the same text however it was spelled."""
    extras = (
        f"[{','.join(sorted(canonicalize_name(e) for e in requirement.extras))}]"
        if requirement.extras
        else ""
    )
    url = f" @ {requirement.url}" if requirement.url else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{canonicalize_name(requirement.name)}{extras}{requirement.specifier}{url}{marker}"


def _base(base: Base) -> list[Any]:
    if isinstance(base, ImageBase):
        return ["image", str(base.ref)]
    if isinstance(base, DebianBase):
        return ["debian", base.suite, list(base.components), base.security]
    return ["oci", base.path]
