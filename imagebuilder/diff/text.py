"""A comparison as text for a terminal, or as Markdown for a pull request. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from imagebuilder.diff.blocks import blocks
from imagebuilder.diff.model import Diff

_LONG = 15  # rows from which on Markdown folds a block


def as_text(diff: Diff, *, most: int) -> str:
    """For a terminal: headings, and tables of aligned columns."""
    if diff.empty:
        return _nothing(diff)
    lines: list[str] = []
    for block in blocks(diff, most=most):
        lines += ["", block.heading] if block.heading else []
        if block.lines:
            lines += [f"  {line}" for line in block.lines]
        else:
            lines += _aligned([block.columns, *block.rows] if any(block.columns) else block.rows)
    return "\n".join(lines) + "\n"


def as_markdown(diff: Diff, *, most: int) -> str:
    """For a pull request: the same blocks; long ones folded."""
    if diff.empty:
        return _nothing(diff)
    lines = [f"### {_cell(diff.old.label)} → {_cell(diff.new.label)}"]
    for block in blocks(diff, most=most):
        heading = _cell(block.heading)
        fold = block.length > _LONG
        if heading:
            lines += ["", f"<details><summary>{heading}</summary>" if fold else f"**{heading}**"]
        lines.append("")
        if block.lines:
            lines += [f"- {_cell(line)}" for line in block.lines]
        else:
            width = max([len(block.columns), *(len(row) for row in block.rows)])
            for number, row in enumerate([block.columns, *block.rows]):
                cells = (*row, *[""] * (width - len(row)))
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
                lines += ["|" + " --- |" * width] if number == 0 else []
        if heading and fold:
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _nothing(diff: Diff) -> str:
    lines = [f"no difference between {diff.old.label} and {diff.new.label}"]
    return "\n".join([*lines, *(f"  not compared: {note}" for note in diff.notes)]) + "\n"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    full = [row for row in rows if len(row) > 1]
    widths = [
        max((len(row[i]) for row in full if i < len(row)), default=0) for i in range(max(map(len, rows)))
    ]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join(cells if len(row) > 1 else row).rstrip())
    return lines


def _cell(text: str) -> str:
    """Text that Markdown and HTML take as text."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
