from __future__ import annotations

from tests.support.fixtures import imagebuilder, real_registry, small

__all__ = ["imagebuilder", "real_registry", "small"]
