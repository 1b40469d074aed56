"""`imagebuilder results`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuilder.accept.record import Record
    from imagebuilder.accept.results import Stored

FOLDER = "results"


@verb()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--results", "folder", metavar="DIR", type=click.Path(path_type=Path),
              help="Where results lie; default: ./results.")  # fmt: skip
@click.option("--schema", is_flag=True, help="Print the JSON Schema of verdict.json.")
@json_option
def command(
    context: Context, *, names: tuple[str, ...], folder: Path | None, schema: bool, as_json: bool
) -> None:
    """List acceptances, or lay some beside each other.

    NAME is a stack, the first digits of an image's config digest, or a result as the list prints it. Of
    several results of a stack or image the latest that passed is taken, else the latest.
    """
    from imagebuilder.accept import codec
    from imagebuilder.accept.results import all_results, find_or_fail

    if schema:
        _say_schema()
        return
    root = folder or context.cwd / FOLDER
    found = [find_or_fail(root, name) for name in names] if names else all_results(root)
    judged = [(stored, stored.record) for stored in found if stored.record]
    if as_json:
        listed = [
            {"result": s.name, "folder": str(s.folder), "verdict": codec.to_json(s.record)} for s in found
        ]
        say_json("results", {"results": listed})
    elif names:
        _say_comparison([record for _, record in judged])
        for stored, record in judged:
            say(f"{record.stack}: {stored.report}")
    elif found:
        _say_list(found)
    else:
        context.reporter.note(f"no results below {root}: imagebuilder accept STACK makes one")


def _say_schema() -> None:
    import json

    from imagebuilder.accept.record import Record
    from imagebuilder.accept.schema import schema_of

    say(json.dumps(schema_of(Record), indent=2))


def _say_list(found: Sequence[Stored]) -> None:
    from imagebuilder.accept.requirement import shown

    head = ("result", "stack", "verdict", "streams", "baseline", "EAGLE-3", "speedup")
    rows: list[tuple[str, ...]] = [head]
    for stored in found:
        record = stored.record
        if record is None:
            rows.append((stored.name, "", "broken off", "", "", "", ""))
            continue
        title: tuple[str, ...] = (stored.name, record.stack, record.outcome)
        for figures in (f for f in record.levels if f.decisive):
            speeds = (figures.baseline.throughput, figures.eagle3.throughput)
            speedup = shown(figures.speedup, 2, "×")
            rows.append(
                (*title, str(figures.level), *(f"{s.value:.1f}" if s else "–" for s in speeds), speedup)
            )
            title = ("", "", "")
    _say_table(rows)


def _say_comparison(records: Sequence[Record]) -> None:
    from imagebuilder.accept.compare import compare

    if not records:
        return
    comparison = compare(records)
    _say_table([("", *comparison.head), *((row.label, *row.values) for row in comparison.rows)])
    for note in comparison.notes:
        say(f"note: {note}")


def _say_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
