"""From a STACK argument to stack, lock and plan: what most verbs begin with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.cli.context import Context
from imagebuilder.errors import LockUnusable
from imagebuilder.lock.model import Lock
from imagebuilder.stack import Stack, find_stack, load_stack, lock_path, shipped_folder
from imagebuilder.stack.find import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagebuilder.lock.kept import Upgrade
    from imagebuilder.lock.model import DebPackage, Wheel
    from imagebuilder.plan import Plan
    from imagebuilder.values import Digest


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A stack with its lock and plan.

    lock_file: where the lock was read or written. folder: the one that its wheels' paths start from, which
    for a shipped lock lies below the current folder.
    """

    stack: Stack
    lock: Lock
    lock_file: Path
    folder: Path
    plan: Plan


def stack_of(context: Context, argument: str) -> Stack:
    """The stack that the argument means. Raises UsageProblem, StackInvalid."""
    return load_stack(find_stack(argument, context.cwd))


def own_lock_file(context: Context, stack: Stack) -> Path:
    """Where `lock` writes: beside the stack, or below the current folder for a shipped one."""
    assert stack.path is not None
    if stack.path.parent.resolve() == shipped_folder().resolve():
        return lock_path(context.cwd / FOLDER / stack.path.name, stack.name)
    return lock_path(stack.path, stack.name)


def existing_lock_file(context: Context, stack: Stack) -> Path | None:
    """One's own lock, else the shipped one; None where there is neither."""
    assert stack.path is not None
    candidates = (own_lock_file(context, stack), lock_path(stack.path, stack.name))
    return next((path for path in candidates if path.is_file()), None)


def previous_lock(context: Context, stack: Stack) -> Lock | None:
    """The lock as it is now, fresh or stale."""
    from imagebuilder.lock.pylock import read_lock

    path = existing_lock_file(context, stack)
    return read_lock(path) if path else None


def fresh_lock(context: Context, stack: Stack) -> tuple[Lock, Path]:
    """The lock that fits the stack. LockUnusable where there is none, or a stale one."""
    from imagebuilder.lock.fresh import check_fresh
    from imagebuilder.lock.pylock import read_lock

    path = existing_lock_file(context, stack)
    if path is None:
        raise LockUnusable(
            f"stack {stack.name} has no lock",
            wanted=str(own_lock_file(context, stack)),
            hint=f"imagebuilder lock {argument_of(context, stack)}",
        )
    lock = read_lock(path)
    check_fresh(stack, lock)
    return lock, path


def argument_of(context: Context, stack: Stack) -> str:
    """What one types to name this stack: its name where that finds it, else its path."""
    assert stack.path is not None
    by_name = (context.cwd / FOLDER, shipped_folder())
    return stack.name if stack.path.parent in by_name else str(stack.path)


def lock_now(
    context: Context, stack: Stack, previous: Lock | None = None, *, upgrade: Upgrade = None
) -> Lock:
    """Resolve, keeping what the previous lock has unless it is to be upgraded. Writes nothing."""
    from imagebuilder.lock.resolve import lock_stack

    return lock_stack(
        stack, context.settings, context.cache, context.reporter, previous=previous, upgrade=upgrade
    )


def prepare(context: Context, argument: str, *, lock_if_missing: bool = False) -> Prepared:
    """Stack, lock and plan; with `lock_if_missing` a stack without a lock is locked first, and told."""
    from imagebuilder.lock.pylock import check_lock_place, write_lock
    from imagebuilder.plan import make_plan

    stack = stack_of(context, argument)
    if lock_if_missing and existing_lock_file(context, stack) is None:
        path = own_lock_file(context, stack)
        check_lock_place(path)
        context.reporter.note(f"{stack.name} has no lock yet: locking it to {path}")
        lock = lock_now(context, stack)
        write_lock(path, lock)
    else:
        lock, path = fresh_lock(context, stack)
    folder = own_lock_file(context, stack).parent
    return Prepared(stack=stack, lock=lock, lock_file=path, folder=folder, plan=make_plan(stack, lock))


def obtain(
    context: Context, prepared: Prepared, wheels: Sequence[Wheel], debs: Sequence[DebPackage]
) -> Mapping[Digest, Path]:
    """Bring these artefacts of the lock into the cache; each one's file by its sha256."""
    from imagebuilder.lock.fetch import fetch

    part = replace(prepared.lock, wheels=tuple(wheels), debs=tuple(debs), base=None)
    return fetch(
        part,
        prepared.stack,
        context.settings,
        context.cache,
        context.reporter,
        folder=prepared.folder,
    )
