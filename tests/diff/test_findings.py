"""Findings that come and go, and how they are matched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagebuilder.checks.model import Finding
from imagebuilder.diff.findings import compare_findings
from imagebuilder.diff.model import Package, PackageMove

RENAMED = PackageMove(
    kind="wheel",
    move="renamed",
    name="sglang-kernel",
    old=Package(kind="wheel", name="sgl-kernel", version="1"),
    new=Package(kind="wheel", name="sglang-kernel", version="2"),
)
OPS = Finding(
    code="gpu.no-code",
    severity="error",
    what="no code",
    package="sgl-kernel",
    path="sgl_kernel/sm90/ops.abi3.so",
)
NOW = replace(OPS, package="sglang-kernel")
ROWS: dict[str, tuple[list[Finding], list[Finding], list[tuple[str, str]]]] = {
    "the same": ([OPS], [NOW], []),
    "other words": ([OPS], [replace(NOW, what="no code at all")], []),
    "it appeared": ([], [NOW], [("appeared", "")]),
    "it vanished": ([OPS], [], [("vanished", "")]),
    "waived now": ([OPS], [replace(NOW, waived="old cards")], [("changed", "waived: old cards")]),
    "not waived": ([replace(OPS, waived="x")], [NOW], [("changed", "not waived any more")]),
    "milder": ([OPS], [replace(NOW, severity="note")], [("changed", "error → note")]),
    "in another folder": ([OPS], [replace(NOW, path="lib/ops.so.2")], []),
    "another code": ([OPS], [replace(NOW, code="gpu.ptx-only")], [("appeared", ""), ("vanished", "")]),
    "one of two": ([OPS, replace(OPS, path="sgl_kernel/sm100/ops.abi3.so")], [NOW], [("vanished", "")]),
    "with another package": (
        [replace(OPS, other="torch")], [replace(NOW, other="numpy")], [("appeared", ""), ("vanished", "")]
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_moves(row: str) -> None:
    old, new, expected = ROWS[row]
    assert [(m.move, m.note) for m in compare_findings(old, new, [RENAMED])] == expected
    assert not compare_findings(new, new, []) and not compare_findings(old, old, [])


def test_whole_paths_are_matched_first() -> None:
    here, there = replace(OPS, path="a/ops.so"), replace(OPS, path="b/ops.so")
    (move,) = compare_findings([here, there], [there], [])
    assert (move.move, move.place) == ("vanished", "sgl-kernel: a/ops.so")


def test_what_counts_comes_first() -> None:
    note, waived = replace(OPS, severity="note", code="gpu.ptx-only"), replace(OPS, waived="x", path="w.so")
    found = compare_findings([replace(OPS, path="gone.so")], [waived, note, OPS], [])
    assert [(m.move, m.severity, m.waived) for m in found] == [
        ("appeared", "error", None),
        ("appeared", "note", None),
        ("appeared", "error", "x"),
        ("vanished", "error", None),
    ]
