"""`imagebuilder init`: a shipped stack, with everything it needs, copied to where it can be changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.files import YOUR_FOLDER, new_file
from imagebuilder.stack.find import FOLDER, lock_path
from imagebuilder.stack.model import Stack


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One file to copy; `optional`: only if it is there (the lock)."""

    source: Path
    target: Path
    optional: bool = False


def plan_copy(stack: Stack, cwd: Path) -> tuple[Copy, ...]:
    """What `init` copies: the file that `stack` was read from, its patches and files, and its lock. Pure."""
    assert stack.path is not None
    source, target = stack.path.parent, cwd / FOLDER
    beside = [patch.path for layer in stack.layers for patch in layer.patches]
    beside += [file.source for file in stack.files if file.source]
    lock = lock_path(stack.path, stack.name)
    return (
        Copy(source=stack.path, target=target / stack.path.name),
        *(Copy(source=source / path, target=target / path) for path in dict.fromkeys(beside)),
        Copy(source=lock, target=target / lock.name, optional=True),
    )


def perform_copy(copies: Iterable[Copy], *, force: bool = False, dry_run: bool = False) -> list[Path]:
    """Copy; gives the files written, none for one that is there with the same bytes.

    All is read and compared before anything is written, and each file appears whole. Raises UsageProblem when
    a file is there with other bytes, unless `force`. dry_run: write nothing.
    """
    try:
        wanted = {c.target: c.source.read_bytes() for c in copies if not c.optional or c.source.is_file()}
        changed = {t: data for t, data in wanted.items() if not t.exists() or t.read_bytes() != data}
        in_the_way = [str(target) for target in changed if target.exists()]
        if in_the_way and not force:
            raise UsageProblem(
                "files are there already and would be overwritten",
                seen=", ".join(in_the_way),
                hint="use --force",
            )
        for target, data in () if dry_run else changed.items():
            with new_file(target, YOUR_FOLDER) as out:
                out.write(data)
    except OSError as problem:
        raise MachineLacks(
            f"cannot copy the stack: {problem.strerror}", seen=str(problem.filename or "")
        ) from None
    return list(changed)
