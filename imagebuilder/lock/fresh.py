"""Whether a lock still belongs to its stack file. Pure."""

from __future__ import annotations

from imagebuilder.errors import LockUnusable
from imagebuilder.lock.model import Lock
from imagebuilder.stack import resolution_hash, resolution_parts
from imagebuilder.stack.model import Stack


def check_fresh(stack: Stack, lock: Lock) -> None:
    """Raises LockUnusable, naming the parts of the stack that changed since the lock was made."""
    wanted = resolution_hash(stack)
    if lock.stack_hash == wanted:
        return
    before = dict(lock.stack_parts)
    now = dict(resolution_parts(stack))
    changed = [part for part, digest in now.items() if before.get(part) != digest]
    raise LockUnusable(
        f"the lock of {stack.name} is stale: the stack file has changed since",
        seen=f"changed: {', '.join(changed)}" if changed else f"a lock for {lock.stack_hash}",
        wanted="" if changed else str(wanted),
        hint=f"imagebuilder lock {stack.name}",
    )
