"""Acceptance results below the current folder: asked by `push --channel`, attached, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.values import Digest

if TYPE_CHECKING:
    from imagebuilder.diff.model import Accepted


def why_not_accepted(folder: Path, config: Digest) -> str | None:
    """None where a passing acceptance of this image lies below `folder`; else why it counts as none."""
    return f"no acceptance of it below {folder}"


def newest_acceptance(folder: Path, config: Digest | None, stack: str) -> Accepted | None:
    """The newest acceptance of this image, or of this stack, below `folder`."""
    return None
