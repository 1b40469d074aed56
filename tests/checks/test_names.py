"""Kinds are found, not rows: no check names a package, library, version or symbol; the data files do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

from tests.support.check_cases import ROOT, STACKS, shipped

CHECKS = ROOT / "imagebuilder" / "checks"
TABLES = ROOT / "imagebuilder" / "data"
WORDS = {"build", "kernels", "requests"}  # names of packages that are words of the field too
FORMATS = {"report.py": {"2.1"}}  # the version of SARIF
_LIBRARY = re.compile(r"\blib[a-z]\w*(?:\\?\.so|-\d)")
_VERSION = re.compile(r"(?<![\w.])\d+\.\d+")
_SYMBOL = re.compile(r"_Z\w*\d\w+|\b(?:nccl|cu|c10)[A-Z_]\w+")


def _packages(table: Any, key: str = "") -> Iterator[str]:
    """What the tables name under keys such as `package`, `packages`, `any-of`, `together`."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from _packages(value, name)
    elif isinstance(table, list):
        for value in table:
            yield from _packages(value, key)
    elif isinstance(table, str) and key in (
        "package", "packages", "any-of", "together", "runtime-packages", "named", "beside", "on",
    ):  # fmt: skip
        yield table.lower().replace("_", "-")


def packages() -> set[str]:
    """Every package that a shipped lock or a table names."""
    locked = {wheel.name for stack in STACKS for wheel in shipped(stack)[1].wheels}
    tables = (tomli.loads(path.read_text(encoding="utf-8")) for path in TABLES.glob("*.toml"))
    return {*locked, *(name for table in tables for name in _packages(table))} - WORDS


def _strings(source: str) -> Iterator[tuple[int, str]]:
    """Texts of the code, but for docstrings and what the catalogue says of a code (`Code(meaning=…)`)."""
    tree, told = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("Code", "_code")
        ):
            told.update(id(inner) for inner in ast.walk(node))
        elif isinstance(node, ast.Expr):
            told.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value


def named(source: str, known: set[str]) -> list[str]:
    """What a module names: packages, libraries, versions, symbols."""
    found = []
    for line, text in _strings(source):
        plain = text.lower().replace("_", "-")
        words = {*re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", plain), *re.findall(r"[a-z0-9]+", plain)}
        hits = [
            *sorted(words & known),
            *_LIBRARY.findall(text),
            *_VERSION.findall(text),
            *_SYMBOL.findall(text),
        ]
        found += [f"{line}: {hit}" for hit in hits]
    return found


@pytest.mark.parametrize("path", sorted(CHECKS.glob("*.py")), ids=lambda p: p.name)
def test_no_check_names_what_only_data_may_name(path: Path) -> None:
    allowed = FORMATS.get(path.name, set())
    found = [x for x in named(path.read_text(encoding="utf-8"), packages()) if x.split()[-1] not in allowed]
    assert not found, f"{path.name} names {found}: that belongs into imagebuilder/data"


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ('if name == "sgl-kernel": pass', "sgl-kernel"),
        ('x = f"sgl_kernel/{y}.so"', "sgl-kernel"),
        ('R = r"libcudart\\.so\\.(\\d+)"', "libcudart\\.so"),
        ('CORE = ("libc6",)', "libc6"),
        ('if version < Version("2.9"): pass', "2.9"),
        ('if "ncclCommResume" in names: pass', "ncclCommResume"),
        ('if "_ZN3c104cuda" in names: pass', "_ZN3c104cuda"),
        ('"""sgl-kernel 2.9"""', ""),
        ('C = Code(code="a.b", meaning="as torch 2.9 does")', ""),
    ],
)
def test_the_scan_sees_it(line: str, hit: str) -> None:
    assert [x.split(": ")[1] for x in named(line, packages())] == ([hit] if hit else [])
