"""A command line in a folder and with a cache of its own."""

from __future__ import annotations

from tests.support.fixtures import fake, imagebuilder, small

__all__ = ["fake", "imagebuilder", "small"]
