"""Plan → Dockerfile and the files of its context. Pure; docs/65-dockerfile.md."""

from imagebuilder.dockerfile.context import context_files
from imagebuilder.dockerfile.model import PIP, ContextFile, Derived, Fetch, WheelStep
from imagebuilder.dockerfile.quoting import NotExpressible
from imagebuilder.dockerfile.render import render

__all__ = ["PIP", "ContextFile", "Derived", "Fetch", "NotExpressible", "WheelStep", "context_files", "render"]
