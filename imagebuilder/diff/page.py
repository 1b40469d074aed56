"""A comparison as one HTML page that needs nothing else. Pure but for its templates.

The page holds its own style, asks no network and runs no script; its policy forbids both. All text goes
through Jinja2's escaping.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from imagebuilder import __version__
from imagebuilder.diff.blocks import SIGNS, blocks, human
from imagebuilder.diff.model import Diff
from imagebuilder.stack import shipped_folder

_LONG = 80  # rows from which on a block is folded
_SHADES = {"↑": "up", "↓": "down", "+": "plus", "-": "minus", "~": "other", "→": "other", "⇄": "other"}


def as_html(diff: Diff, *, most: int) -> str:
    """The page. most: rows of one table."""
    summary, *rest = blocks(diff, most=most)
    template = _environment().get_template("diff/page.html.j2")
    return str(
        template.render(
            diff=diff,
            summary=summary,
            blocks=rest,
            figures=_figures(diff),
            version=__version__,
            long=_LONG,
        )
    )


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped_folder().parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sign=_sign)
    return environment


def _sign(cell: str) -> tuple[str, str, str]:
    """(sign, its shade, the rest) of a row's first cell; no sign: two empty texts."""
    sign, space, rest = cell.partition(" ")
    if sign in SIGNS.values() and (space or not rest):
        return sign, _SHADES[sign], rest
    return "", "", cell


def _figures(diff: Diff) -> list[tuple[str, str]]:
    """What one wants to know first, as (figure, words)."""
    figures: list[tuple[str, str]] = []
    if diff.layers:
        exact = "" if diff.layers.exact else "≈ "
        shared, pulled = len(diff.layers.shared), len(diff.layers.pulled)
        figures.append(
            (
                f"{exact}{human(diff.layers.pulled_bytes)}",
                f"to pull, {shared} of {shared + pulled} layers shared",
            )
        )
    if diff.packages is not None:
        figures.append((str(len(diff.packages)), "packages differ"))
    if diff.findings is not None:
        bad = [m for m in diff.findings if m.waived is None and m.severity != "note"]
        appeared, vanished = (sum(m.move == move for m in bad) for move in ("appeared", "vanished"))
        figures.append((f"+{appeared} −{vanished}", "errors and warnings of check, without waived ones"))
    if diff.abi is not None:
        figures.append((str(sum(len(m.used) for m in diff.abi)), "lost symbols that other packages used"))
    return figures
