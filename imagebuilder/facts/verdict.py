"""Will this library of this wheel load in this environment? Symbols and layouts together. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from imagebuilder.facts.environment import Environment
from imagebuilder.facts.layouts import Layout, LayoutRisk, risks
from imagebuilder.facts.loader import Outcome, Process

Kind = Literal["loads", "missing-library", "missing-version", "undefined-symbol", "crash", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is known about one library. `kind` says the first thing that goes wrong, as the loader would."""

    path: str
    outcome: Outcome
    risks: tuple[LayoutRisk, ...] = ()

    @property
    def kind(self) -> Kind:
        """`crash`: all resolves, and it dies in a constructor. `unknown`: it may."""
        if self.outcome.libraries:
            return "missing-library"
        if self.outcome.versions:
            return "missing-version"
        if self.outcome.symbols:
            return "undefined-symbol"
        if any(risk.crash for risk in self.risks):
            return "crash"
        return "unknown" if self.risks else "loads"

    @property
    def first(self) -> str:
        """The library or symbol that the loader would name; empty where it names none."""
        if self.outcome.libraries:
            return self.outcome.libraries[0].name
        if self.outcome.versions:
            return self.outcome.versions[0].version
        return self.outcome.symbols[0].symbol.name if self.outcome.symbols else ""


def judge(
    environment: Environment,
    process: Process,
    wheel: str,
    member: str,
    *,
    layouts: Iterable[Layout],
    version_of: dict[str, str],
    siblings: bool = True,
) -> Verdict:
    """The verdict on one member, in a copy of this process.

    siblings: as the packages' own Python code does, load what the member needs and does not find from
    wherever else in site-packages it lies.
    """
    trial = process.clone()
    path = environment.absolute(member)
    outcome = trial.load_with_siblings(path, environment.siblings) if siblings else trial.load(path)
    facts = environment.wheels[wheel]
    found: list[LayoutRisk] = []
    if outcome.loads:
        found = list(risks(layouts, facts, facts.elf[member], version_of))
    return Verdict(path=member, outcome=outcome, risks=tuple(found))
