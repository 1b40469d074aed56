"""The ELF reader against nm and readelf on this machine's libraries, and against files that lie."""

from __future__ import annotations

import io
import random
import re
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.elf import ElfFacts, read_elf
from imagebuilder.facts.exports import symbol_hash
from imagebuilder.facts.record import decode_elf, encode_elf

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
)
needs_binutils = pytest.mark.skipif(not shutil.which("readelf"), reason="binutils are not installed")


def _libraries(most: int) -> list[Path]:
    found = {}
    for folder in FOLDERS:
        for path in sorted(Path(folder).glob("**/*.so*")):
            if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
                found.setdefault(path.resolve(), path)
    return list(found)[:most]


def _read(path: Path) -> ElfFacts:
    with path.open("rb") as file:
        facts = read_elf(file, path.name)
    assert facts is not None
    return facts


def _nm(path: Path) -> tuple[set[str], set[str]]:
    """(undefined with versions, defined without), as nm sees them in .dynsym."""
    out = subprocess.run(
        ["nm", "-D", "--with-symbol-versions", str(path)], capture_output=True, text=True, check=False
    ).stdout
    undefined, defined = set(), set()
    for line in out.splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0] in "Uwv":
            undefined.add(fields[1].replace("@@", "@"))
        elif (fields[-2] != "a" and not fields[-2].islower()) or fields[-2] in "uiwv":
            defined.add(fields[-1].split("@")[0])
    return undefined, defined


@needs_binutils
def test_symbols_equal_nm_on_real_libraries() -> None:
    libraries = _libraries(205)
    if len(libraries) < 200:
        pytest.skip(f"only {len(libraries)} libraries on this machine")
    for path in libraries:
        facts = _read(path)
        undefined, defined = _nm(path)
        assert {str(w) for w in facts.wanted} == undefined, path
        mine = {n.decode() for n in facts.names()}
        versions = set(facts.version_defs)  # nm lists a version as a symbol of its own
        assert mine - versions == defined - versions, path


@needs_binutils
def test_dynamic_section_equals_readelf() -> None:
    for path in _libraries(50):
        facts = _read(path)
        out = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
        assert list(facts.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", out), path
        assert [facts.soname] * bool(facts.soname) == re.findall(r"\(SONAME\).*\[(.*)\]", out), path
        assert [":".join(facts.runpath)] * bool(facts.runpath) == re.findall(r"\(RUNPATH\).*\[(.*)\]", out)


@needs_binutils
def test_unreferenced_symbols_are_told_apart() -> None:
    """What readelf -r names is what some relocation refers to."""
    for path in _libraries(50):
        facts = _read(path)
        out = subprocess.run(["readelf", "-rW", str(path)], capture_output=True, text=True, check=True).stdout
        named = set(re.findall(r"^[0-9a-f]{16}  \S+ +R_\S+ +[0-9a-f]{16} ([^\s@]+)", out, re.M))
        assert {w.name for w in facts.wanted if w.referenced} <= named, path
        assert not {w.name for w in facts.wanted if not w.referenced} & named, path


def test_a_record_gives_the_same_facts() -> None:
    for path in _libraries(40):
        facts = _read(path)
        again = decode_elf(encode_elf(facts))
        assert again == facts
        assert again.names() == facts.names()


def test_versions_are_part_of_a_definition(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    source, script, out = tmp_path / "a.c", tmp_path / "a.map", tmp_path / "liba.so"
    source.write_text("void f(void) {} void g(void) {} void hidden(void) {}")
    script.write_text("A_1 { global: f; local: hidden; }; A_2 { global: g; } A_1;")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", str(source), f"-Wl,--version-script={script}", "-o", str(out)], check=True
    )
    facts = _read(out)
    assert facts.version_defs == ("A_1", "A_2")
    assert facts.exports.has_versioned(symbol_hash(b"f@A_1"))
    assert not facts.exports.has_versioned(symbol_hash(b"f@A_2"))
    assert facts.exports.has_plain(symbol_hash(b"g"))
    assert not facts.exports.has_plain(symbol_hash(b"hidden"))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01" + b"\0" * 80])
def test_other_files_are_none(data: bytes) -> None:
    assert read_elf(io.BytesIO(data), "x") is None


def _with(data: bytes, offset: int, form: str, value: int) -> bytes:
    return data[:offset] + struct.pack(form, value) + data[offset + struct.calcsize(form) :]


def test_lies_are_errors() -> None:
    data = _libraries(1)[0].read_bytes()
    for broken in (
        data[:2000],
        _with(data, 56, "<H", 60000),  # number of program headers
        _with(data, 54, "<H", 1),  # their size
        _with(data, 32, "<Q", 1 << 63),  # their place
    ):
        with pytest.raises(ArtefactUnusable) as error:
            read_elf(io.BytesIO(broken), "broken.so")
        assert "broken.so" in str(error.value)


def test_damage_never_crashes_or_hangs() -> None:
    data = min((p.read_bytes() for p in _libraries(50)), key=len)
    chance = random.Random(6)
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 3, 20))):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        with suppress(ArtefactUnusable):
            read_elf(io.BytesIO(bytes(broken)), "x")
