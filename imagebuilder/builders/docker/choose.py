"""Which builder `auto` means: Docker where an engine with BuildKit answers, else the direct one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagebuilder.builders.docker.buildx import find_buildx
from imagebuilder.builders.docker.engine import OLDEST_WITH_BUILDKIT, Engine
from imagebuilder.errors import MachineLacks

AUTO, DOCKER, DIRECT = BUILDERS = ("auto", "docker", "direct")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """docker or direct, and why."""

    builder: str
    reason: str


def choose(environment: Mapping[str, str]) -> Choice:
    """The builder that `auto` means on this machine. Never fails: the reason says what is missing."""
    try:
        with Engine.connect(environment) as engine:
            facts = engine.facts
        buildx = find_buildx(environment)
    except MachineLacks as error:
        return Choice(builder=DIRECT, reason=error.what)
    if not facts.builds:
        return Choice(
            builder=DIRECT, reason=f"Docker Engine {facts.version} is older than {OLDEST_WITH_BUILDKIT}"
        )
    return Choice(
        builder=DOCKER, reason=f"Docker Engine {facts.version} answers, with buildx {buildx.version}"
    )
