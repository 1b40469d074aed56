"""What lies below a layer of Debian packages: nothing, or a base image (`facts.image_tree.ImageTree`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Lower(Protocol):
    """Read only; paths as in `tree`, no links followed."""

    def kind(self, path: str) -> str | None:
        """`directory`, `file`, `symlink` or None."""

    def target(self, path: str) -> str:
        """Of a symbolic link."""

    def data(self, path: str) -> bytes | None:
        """A file's bytes, as far as they are kept."""

    def owner(self, path: str) -> str:
        """The package that has the path, or nothing."""

    def names(self, folder: str) -> Iterable[str]:
        """The names in a folder."""


class _Nothing:
    def kind(self, path: str) -> str | None:
        return None

    def target(self, path: str) -> str:
        return ""

    def data(self, path: str) -> bytes | None:
        return None

    def owner(self, path: str) -> str:
        return ""

    def names(self, folder: str) -> Iterable[str]:
        return ()


EMPTY: Lower = _Nothing()
"""Below a base there is nothing."""
