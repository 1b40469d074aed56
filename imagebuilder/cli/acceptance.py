"""Acceptance results below the current folder: asked by `push --channel`, attached, and compared."""

from __future__ import annotations

from pathlib import Path

from imagebuilder.values import Digest


def why_not_accepted(folder: Path, config: Digest) -> str | None:
    """None where a passing acceptance of this image lies below `folder`; else why it counts as none."""
    return f"no acceptance of it below {folder}"
