"""Tables of the field, gathered once and handed to the checks (data/*.toml, each with source and date)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagebuilder.facts import tables as facts_tables
from imagebuilder.facts.environment import Runtime
from imagebuilder.facts.exports import NO_EXPORTS, Exports
from imagebuilder.facts.filesystem import Assumed
from imagebuilder.facts.layouts import Layout

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """driver, runtimes, layouts, alternate_words: see `facts.tables`. The others are the rows of a file."""

    driver: tuple[Assumed, ...] = ()
    runtimes: tuple[Runtime, ...] = ()
    layouts: tuple[Layout, ...] = ()
    alternate_words: tuple[str, ...] = ()
    system_names: Exports = NO_EXPORTS
    sonames: Mapping[str, str] = field(default_factory=dict)
    drivers: Mapping[str, Any] = field(default_factory=dict)
    gpus: Mapping[str, Any] = field(default_factory=dict)
    toolchain: Mapping[str, Any] = field(default_factory=dict)
    couplings: Rows = ()
    optional: Rows = ()
    registries: Mapping[str, Any] = field(default_factory=dict)
    serving: Mapping[str, Any] = field(default_factory=dict)
    systems: Mapping[str, Any] = field(default_factory=dict)
    issues: Rows = ()


def load_tables() -> Tables:
    """All tables that are shipped."""
    table = facts_tables.table
    return Tables(
        driver=facts_tables.driver(),
        runtimes=facts_tables.runtimes(),
        layouts=facts_tables.layouts(),
        alternate_words=facts_tables.alternate_words(),
        system_names=facts_tables.system_names(),
        sonames={soname: row["package"] for row in table("systems")["package"] for soname in row["sonames"]},
        drivers=table("drivers"),
        gpus=table("gpu_features"),
        toolchain=table("toolchain"),
        couplings=table("couplings")["coupling"],
        optional=table("optional")["optional"],
        registries=table("registries"),
        serving=table("serving"),
        systems=table("systems"),
        issues=table("issues").get("issue", ()),
    )
