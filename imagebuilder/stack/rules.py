"""What must agree between the tables of a stack file: judged on what could be read of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.stack.grammar import Place, Wrong
from imagebuilder.stack.model import Acceptance, DebianBase, Layer, Override

Fields = Mapping[str, Any]


def check(fields: Fields, place: Place) -> None:
    """Report every disagreement. `fields` are those of `Table.read_fields`; a wrong one is Wrong."""
    _packages_once(fields, place)
    _overrides_agree(fields, place)
    _debian_is_locked(fields, place)
    _decisive_levels(fields, place)


def items(fields: Fields, name: str) -> Iterator[tuple[int, Any]]:
    """(number, item) of what could be read of an array."""
    value = fields.get(name, ())
    if isinstance(value, Wrong):
        value = value.partial or ()
    return ((n, item) for n, item in enumerate(value) if item is not None)


def _requirements(fields: Fields) -> Iterator[tuple[str, Requirement, Layer]]:
    for number, layer in items(fields, "layers"):
        for position, requirement in enumerate(layer.requirements):
            yield f"layer[{number}].requirements[{position}]", requirement, layer


def _packages_once(fields: Fields, place: Place) -> None:
    first: dict[str, str] = {}
    for key, requirement, layer in _requirements(fields):
        name = canonicalize_name(requirement.name)
        if name in first and requirement.marker is None:
            place.at(key).wrong(f"{name} is required already, at {first[name]}")
        first.setdefault(name, key)
        if requirement.url and layer.index:
            place.at(key).wrong(
                f"{name} has an address of its own, so it cannot come from index {layer.index!r}"
            )


def _overrides_agree(fields: Fields, place: Place) -> None:
    overrides: dict[str, tuple[int, Override]] = {o.package: (n, o) for n, o in items(fields, "overrides")}
    for key, requirement, _ in _requirements(fields):
        number, override = overrides.get(canonicalize_name(requirement.name), (0, None))
        pins = list(override.requirement.specifier) if override else []
        if len(pins) != 1 or pins[0].operator != "==" or pins[0].version.endswith(".*"):
            continue
        if not requirement.specifier.contains(pins[0].version, prereleases=True):
            place.at(f"override[{number}].requirement").wrong(
                f"{override.requirement if override else ''} contradicts {key}, which asks for {requirement}",
                "say the same in both, or leave the version out of the layer",
            )


def _debian_is_locked(fields: Fields, place: Place) -> None:
    system = fields.get("system")
    written = place.names.get("system", ())
    if not isinstance(fields.get("base"), DebianBase) or system is None or isinstance(system, Wrong):
        return
    if "resolve" in written and system.resolve == "build":
        place.at("system.resolve").wrong(
            '"build" needs an image to run apt in, and a Debian base has none',
            'write "lock", or leave it out',
        )


def _decisive_levels(fields: Fields, place: Place) -> None:
    acceptance = fields.get("acceptance")
    if isinstance(acceptance, Acceptance):
        for number, level in enumerate(acceptance.load.decisive):
            if level not in acceptance.load.concurrency:
                place.at(f"acceptance.load.decisive[{number}]").wrong(
                    f"{level} is not among the levels of concurrency",
                    ", ".join(map(str, acceptance.load.concurrency)),
                )
