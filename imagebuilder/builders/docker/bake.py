"""A docker-bake.json: all stacks as targets of one `docker buildx bake`, for a builder of many machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.plan import Plan
from imagebuilder.values import ImageRef


@dataclass(frozen=True, kw_only=True)
class BakeTarget:
    """A stack to bake. context: its folder, relative to the file. secrets: those that its build can take."""

    plan: Plan
    context: str
    names: tuple[ImageRef, ...]
    secrets: tuple[str, ...]


def bake_file(targets: Sequence[BakeTarget], *, push: bool) -> str:
    """The text of the file. With `push` each target goes to its registry, else into the engine.

    Secrets are taken from the environment of whoever bakes (`IMAGEBUILDER_SECRET_…`), so none is in the file;
    one that is not set is empty, and counts as not given.
    """
    data = {
        "group": {"default": {"targets": [t.plan.stack_name for t in targets]}},
        "target": {t.plan.stack_name: _target(t, push) for t in targets},
    }
    return json.dumps(data, indent=2) + "\n"


def _target(target: BakeTarget, push: bool) -> dict[str, Any]:
    plan = target.plan
    # A store that unpacks what is built cannot have its times rewritten; what goes to a registry can.
    pushed = "type=image,push=true,unpack=false,rewrite-timestamp=true,oci-mediatypes=true"
    return {
        "context": target.context,
        "dockerfile": "Dockerfile",
        "platforms": [str(plan.platform)],
        "args": {"SOURCE_DATE_EPOCH": str(int(plan.created.timestamp()))},
        "tags": [str(name) for name in target.names],
        "secret": [f"id={name},env={secret_variable(name)}" for name in target.secrets],
        "attest": ["type=provenance,disabled=true", "type=sbom,disabled=true"],
        "output": [pushed if push else "type=docker"],
    }


def secret_variable(name: str) -> str:
    """The variable that a build secret is taken from: `pip.conf` → IMAGEBUILDER_SECRET_PIP_CONF."""
    return "IMAGEBUILDER_SECRET_" + "".join(c if c.isalnum() else "_" for c in name.upper())
