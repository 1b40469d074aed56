"""Stack + lock → an ordered tuple of layers, each with a content key. Pure."""

from imagebuilder.plan.config import RunConfig, merged_environment
from imagebuilder.plan.make import make_plan
from imagebuilder.plan.model import VENV, LayerKind, Plan, PlannedLayer, PlannedWheel

__all__ = [
    "VENV",
    "LayerKind",
    "Plan",
    "PlannedLayer",
    "PlannedWheel",
    "RunConfig",
    "make_plan",
    "merged_environment",
]
