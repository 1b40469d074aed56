"""Dynamic symbols of two sides: on libraries compiled here, against `nm`; and the pairing rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.diff.libraries import compare_abi
from imagebuilder.diff.model import AbiMove, Package, PackageMove
from imagebuilder.facts.elf import ElfFacts, read_elf
from imagebuilder.values import Digest

CC = shutil.which("cc") or shutil.which("gcc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler here")


def compiled(path: Path, source: str, *options: str, soname: str = "") -> ElfFacts:
    """A library, compiled and read; its file stays for `nm`."""
    assert CC is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_suffix(".c")
    code.write_text(source)
    named = [f"-Wl,-soname,{soname}"] if soname else []
    words = [CC, "-shared", "-fPIC", "-nostdlib", "-o", str(path), str(code), *named, *options]
    subprocess.run(words, check=True)
    with path.open("rb") as file:
        facts = read_elf(file, path.name)
    assert facts is not None
    return facts


def exported(path: Path) -> set[str]:
    """What nm says that a library exports."""
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], check=True, capture_output=True, text=True
    )
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if " A " not in line}


def package(name: str, version: str) -> Package:
    return Package(
        kind="wheel", name=name, version=version, sha256=Digest.of(f"{name}{version}".encode()), size=1
    )


Wheels = Mapping[str, Mapping[str, ElfFacts]]
"""Libraries by `NAME VERSION` of their wheel."""


def compare(old: Wheels, new: Wheels, renamed: Mapping[str, str] | None = None) -> tuple[AbiMove, ...]:
    """As `diff --abi` would, between wheels of the same or of renamed packages."""

    def elf(wheel: Package) -> Mapping[str, ElfFacts] | None:
        return {**old, **new}.get(f"{wheel.name} {wheel.version}")

    before = {name.split()[0]: package(*name.split()) for name in old}
    after = {name.split()[0]: package(*name.split()) for name in new}
    moves = []
    for name in dict.fromkeys((*(n for n in before), *after)):
        now = (renamed or {}).get(name, name)
        if now != name or name in before or name not in (renamed or {}).values():
            one, other = before.get(name), after.get(now)
            moves.append(PackageMove(kind="wheel", move="upgraded", name=now, old=one, new=other))
    found, unread = compare_abi(moves, tuple(before.values()), elf)
    assert not unread
    return found


def facts(*names: str, soname: str = "", needed: tuple[str, ...] = ()) -> ElfFacts:
    import zlib

    packed = zlib.compress("\n".join(sorted(names)).encode()) if names else b""
    return ElfFacts(machine="x86_64", soname=soname, needed=needed, packed_names=packed)


@needs_cc
def test_gained_lost_and_used_are_those_of_nm(tmp_path: Path) -> None:
    old = compiled(tmp_path / "1" / "libx.so.1", "int a; void b(void){} void gone(void){}", soname="libx.so")
    new = compiled(tmp_path / "2" / "libx.so.2", "int a; void b(void){} void come(void){}", soname="libx.so")
    user = compiled(
        tmp_path / "u" / "user.so",
        "void gone(void); void u(void){ gone(); }",
        str(tmp_path / "1" / "libx.so.1"),
    )
    (move,) = compare(
        {"x 1": {"x/libx.so.1": old}, "user 1": {"user/user.so": user}},
        {"x 2": {"x/libx.so.2": new}, "user 1": {"user/user.so": user}},
    )
    before, after = exported(tmp_path / "1" / "libx.so.1"), exported(tmp_path / "2" / "libx.so.2")
    assert set(move.gained) == after - before == {"come"}
    assert set(move.lost) == before - after == {"gone"}
    assert move.used == {"gone": ("user: user.so",)}
    assert (move.package, move.library, move.state) == ("x", "x/libx.so.2", "changed")


@needs_cc
def test_versions_of_symbols(tmp_path: Path) -> None:
    def library(folder: str, script: str) -> ElfFacts:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "map").write_text(script)
        option = f"-Wl,--version-script={tmp_path / folder / 'map'}"
        return compiled(
            tmp_path / folder / "libx.so", "void a(void){} void b(void){}", option, soname="libx.so.1"
        )

    old = library("1", "X_1 { global: a; b; };")
    new = library("2", "X_1 { global: a; }; X_2 { global: b; } X_1;")
    (move,) = compare({"x 1": {"libx.so": old}}, {"x 2": {"libx.so": new}})
    assert move.moved == (("b", "X_1", "X_2"),) and move.defines_gained == ("X_2",)
    assert not move.gained and not move.lost
    user = compiled(tmp_path / "u.so", "void b(void); void u(void){ b(); }", str(tmp_path / "2" / "libx.so"))
    older = compiled(tmp_path / "v.so", "void b(void); void u(void){ b(); }", str(tmp_path / "1" / "libx.so"))
    (move,) = compare({"u 1": {"u.so": older}}, {"u 2": {"u.so": user}})
    assert move.needs == (("X", "1", "2"),)


def test_libraries_are_paired_by_path_then_by_name() -> None:
    old = {"a/sm90/ops.so": facts("f"), "a/sm100/ops.so": facts("g"), "cu12/lib/libz.so.12": facts("z")}
    new = {"a/sm90/ops.so": facts("f2"), "a/sm100/ops.so": facts("g"), "cu13/lib/libz.so.13": facts("z", "y")}
    found = {m.library: (m.state, m.gained, m.lost) for m in compare({"a 1": old}, {"a 2": new})}
    assert found == {
        "a/sm90/ops.so": ("changed", ("f2",), ("f",)),
        "cu13/lib/libz.so.13": ("changed", ("y",), ()),
    }


def test_a_name_that_several_libraries_have_is_not_guessed() -> None:
    old = {"one/ops.so": facts("a"), "two/ops.so": facts("b")}
    found = compare({"a 1": old}, {"a 2": {"three/ops.so": facts("c")}})
    assert sorted((m.library, m.state) for m in found) == [
        ("one/ops.so", "removed"),
        ("three/ops.so", "added"),
        ("two/ops.so", "removed"),
    ]


WANTED = ("lost", "", "")
ROWS: dict[str, tuple[dict[str, object], bool]] = {
    "a plain reference": ({}, True),
    "a weak reference": ({"weak": True}, False),
    "a version of another library": ({"file": "libother.so", "version": "V"}, False),
    "a version of this library": ({"file": "libx.so", "version": "V"}, True),
}


@pytest.mark.parametrize("row", ROWS)
def test_who_uses_a_lost_symbol(row: str) -> None:
    from imagebuilder.facts.elf import Wanted

    fields, counts = ROWS[row]
    user = replace(facts(needed=("libx.so",)), wanted=(Wanted(name="lost", **fields),))  # type: ignore[arg-type]
    old = {"x 1": {"libx.so.1": facts("lost", soname="libx.so")}, "u 1": {"u.so": user}}
    new = {"x 2": {"libx.so.2": facts(soname="libx.so")}, "u 1": {"u.so": user}}
    (move,) = compare(old, new)
    assert bool(move.used) == counts
    stranger = {"u.so": replace(user, needed=("liby.so",))}
    (move,) = compare({**old, "u 1": stranger}, {**new, "u 1": stranger})
    assert not move.used, "it does not name the library"


def test_what_went_to_a_sibling_is_not_missed() -> None:
    from imagebuilder.facts.elf import Wanted

    user = replace(facts(needed=("libx.so",)), wanted=(Wanted(name="f"),))
    old = {"x 1": {"libx.so": facts("f"), "liby.so": facts()}, "u 1": {"u.so": user}}
    new = {"x 2": {"libx.so": facts(), "liby.so": facts("f")}, "u 1": {"u.so": user}}
    found = {m.library: (m.lost, dict(m.used)) for m in compare(old, new)}
    assert found == {"libx.so": (("f",), {}), "liby.so": ((), {})}


def test_a_renamed_package_is_no_user_of_itself() -> None:
    from imagebuilder.facts.elf import Wanted

    own = replace(facts(needed=("libx.so",)), wanted=(Wanted(name="f"),))
    old = {"x-cu12 1": {"libx.so": facts("f"), "own.so": own}}
    (move, *_) = compare(old, {"x-cu13 2": {"libx.so": facts(), "own.so": own}}, {"x-cu12": "x-cu13"})
    assert move.package == "x-cu13" and move.lost == ("f",) and not move.used


def test_names_that_are_no_text() -> None:
    import zlib

    odd = ElfFacts(machine="x86_64", packed_names=zlib.compress(b"\xff\xfe"))
    (move,) = compare({"x 1": {"a.so": odd}}, {"x 2": {"a.so": facts()}})
    assert move.lost == ("\\xff\\xfe",)
    assert not re.search(r"[^\x20-\x7e]", move.lost[0])
