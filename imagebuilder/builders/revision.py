"""Which commit a stack comes from, as far as git knows: for the build record, never for the image."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

_TIMEOUT = 30
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# A repository's own configuration may name programs for these.
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def source_revision(stack_file: Path, lock_file: Path) -> dict[str, object] | None:
    """{"commit", "path", "dirty"} of the repository that the stack lies in; None where git knows of none.

    path: of the stack file in the repository. dirty: a tracked file is changed, or the stack or its lock is
    not committed.
    """
    folder = stack_file.resolve().parent
    top = _git(folder, "rev-parse", "--show-toplevel")
    commit = _git(folder, "rev-parse", "HEAD").strip()
    if not top.strip() or not _COMMIT.fullmatch(commit):
        return None
    root = Path(top.rstrip("\n"))
    paths = [str(path.resolve()) for path in (stack_file, lock_file) if path.resolve().is_relative_to(root)]
    known = _git(folder, "ls-files", "--full-name", "-z", "--", *paths).split("\0")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "path": stack_file.resolve().relative_to(root).as_posix(),
        "dirty": bool(changed) or len([name for name in known if name]) < len(paths),
    }


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing where it is not installed, refuses, or takes too long."""
    command: Sequence[str] = ("git", "-C", str(folder), *_HARMLESS, *words)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
