"""Generations of a type's layout, by pins and by markers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagebuilder.facts.elf import ElfFacts, Wanted
from imagebuilder.facts.layouts import Built, Layout, Markers, generation_of_build, risks
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.tables import layouts

LAYOUT = Layout(
    type="t",
    package="torch",
    changed_in=Version("2.9"),
    users=re.compile("Registrar"),
    markers=Markers.parse(Markers.make([b"old", b"older"], [b"new"])),
)


def _elf(*names: str) -> ElfFacts:
    return ElfFacts(machine="x86_64", wanted=tuple(Wanted(name=name) for name in names))


def _wheel(metadata: str = "", **elf: ElfFacts) -> WheelFacts:
    return WheelFacts(metadata=metadata, tags=(), files={}, elf=elf, gpu={})


def test_markers() -> None:
    assert LAYOUT.markers.generation(["x", "old"]) == "before"
    assert LAYOUT.markers.generation(["new"]) == "after"
    assert LAYOUT.markers.generation(["new", "older"]) == "unknown"
    assert LAYOUT.markers.generation([]) == "unknown"


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", b"\0\0\0\0abc"])
def test_damaged_markers_are_refused(data: bytes) -> None:
    if data == b"":
        assert Markers.parse(b"\0\0\0\0").before == b""
    else:
        with pytest.raises(ValueError, match="markers"):
            Markers.parse(data)


@pytest.mark.parametrize(
    ("metadata", "own", "other", "wanted"),
    [
        ("", ["old"], ["new"], "before"),  # the library itself counts first
        ("Requires-Dist: torch==2.8.0\n", [], ["new"], "before"),  # then what is pinned
        ("Requires-Dist: torch (==2.10.0)\n", [], [], "after"),
        ("Requires-Dist: torch>=2\n", [], ["new"], "after"),  # then the rest of the wheel
        ("Requires-Dist: torch==2.8.0; extra == 'x'\n", [], [], "unknown"),
        ("", [], ["old", "new"], "unknown"),
    ],
)
def test_generation(metadata: str, own: list[str], other: list[str], wanted: str) -> None:
    member = _elf(*own)
    wheel = _wheel(f"Metadata-Version: 2.1\nName: x\nVersion: 1\n{metadata}", a=member, b=_elf(*other))
    assert generation_of_build(LAYOUT, wheel, member) == wanted


@pytest.mark.parametrize(
    ("name", "version", "own", "wanted"),
    [
        ("X_y", "1.4.2", [], "before"),
        ("x-y", "1.5", [], "unknown"),
        ("x-y", "not a version", [], "unknown"),
        ("z", "1.4.2", [], "unknown"),
        ("x-y", "1.4.2", ["new"], "after"),  # what the artefact tells comes first
    ],
)
def test_what_the_makers_say_comes_last(name: str, version: str, own: list[str], wanted: str) -> None:
    built = Built(package="x-y", versions=SpecifierSet(">=1,<1.5"), against=Version("2.8"))
    member = _elf(*own)
    wheel = _wheel(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", a=member)
    assert generation_of_build(replace(LAYOUT, built=(built,)), wheel, member) == wanted


@pytest.mark.parametrize(
    ("installed", "own", "wanted"),
    [
        ("2.8.0", ["old", "Registrar"], []),
        ("2.9.1+cu130", ["old", "Registrar"], [True]),
        ("2.9.0", ["Registrar"], [False]),
        ("2.9.0", ["old"], []),  # does not pass the type
        ("2.9.0rc1", ["new", "Registrar"], []),
    ],
)
def test_risks(installed: str, own: list[str], wanted: list[bool]) -> None:
    member = _elf(*own)
    found = risks([LAYOUT], _wheel(a=member), member, {"torch": installed})
    assert [risk.crash for risk in found] == wanted
    assert not list(risks([LAYOUT], _wheel(a=member), member, {}))


def test_what_is_shipped_reads() -> None:
    (shipped,) = layouts()
    assert shipped.package == "torch"
    assert shipped.markers.generation(["_ZNK3c106SymInt6sym_neERKS0_"]) == "before"
    assert shipped.markers.generation(["_ZNK3c106SymInt22maybe_as_int_slow_pathEv"]) == "after"
