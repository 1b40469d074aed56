"""What this machine can and cannot do, and how to fix it."""

from imagebuilder.doctor.examine import Line, examine

__all__ = ["Line", "examine"]
