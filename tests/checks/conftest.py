from __future__ import annotations

from tests.support.fixtures import imagebuilder

__all__ = ["imagebuilder"]
