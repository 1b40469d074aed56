"""`imagebuilder results`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, say, verb
from imagebuilder.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuilder.accept.record import Record
    from imagebuilder.accept.results import Stored

FOLDER = "results"
PAGES = ("markdown", "html")
FORMS = ("table", "json", *PAGES)


@verb()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--results", "folder", metavar="DIR", type=click.Path(path_type=Path),
              help="Where results lie; default: ./results.")  # fmt: skip
@click.option("--schema", is_flag=True, help="Print the JSON Schema of verdict.json.")
@click.option("--format", "form", type=click.Choice(FORMS), default="table", show_default=True,
              help="Of results beside each other.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Write it there.")  # fmt: skip
def command(
    context: Context, *, names: tuple[str, ...], folder: Path | None, schema: bool, form: str,
    as_json: bool, output: Path | None,
) -> None:  # fmt: skip
    """List acceptances, or lay some beside each other.

    NAME is a stack, the first digits of an image's config digest, or a result as the list prints it. Of
    several results of a stack or image the latest that passed is taken, else the latest.
    """
    from imagebuilder.accept.results import all_results, find_or_fail

    if schema:
        _say_schema()
        return
    form = "json" if as_json else form
    if form in PAGES and not names:
        raise UsageProblem(f"--format {form} is of results beside each other", wanted="their names")
    root = folder or context.cwd / FOLDER
    found = [find_or_fail(root, name) for name in names] if names else all_results(root)
    if form in PAGES:
        text = _page(found, form)
    elif form == "json":
        text = _json(found)
    elif names:
        text = _comparison(found)
    else:
        text = _list(found)
        if not found:
            context.reporter.note(f"no results below {root}: imagebuilder accept STACK makes one")
    if output:
        from imagebuilder.files import new_file

        with new_file(context.cwd / output) as out:
            out.write(text.encode())
    else:
        click.echo(text, nl=False)


def _page(found: Sequence[Stored], form: str) -> str:
    from imagebuilder.accept import beside
    from imagebuilder.accept.results import BROKEN_OFF

    if left := [stored.name for stored in found if not stored.record]:
        raise UsageProblem(f"{', '.join(left)}: {BROKEN_OFF}, so there is nothing to lay beside others")
    return (beside.html if form == "html" else beside.markdown)(_records(found))


def _records(found: Sequence[Stored]) -> list[Record]:
    return [stored.record for stored in found if stored.record]


def _json(found: Sequence[Stored]) -> str:
    import json

    from imagebuilder.accept import codec
    from imagebuilder.cli.context import SCHEMA

    listed = [{"result": s.name, "folder": str(s.folder), "verdict": codec.to_json(s.record)} for s in found]
    return json.dumps({"schema": SCHEMA, "kind": "results", "results": listed}, indent=2) + "\n"


def _say_schema() -> None:
    import json

    from imagebuilder.accept.record import Record
    from imagebuilder.accept.schema import schema_of

    say(json.dumps(schema_of(Record), indent=2))


def _list(found: Sequence[Stored]) -> str:
    from imagebuilder.accept.requirement import shown
    from imagebuilder.accept.results import BROKEN_OFF, stack_of

    head = ("result", "stack", "verdict", "streams", "baseline", "EAGLE-3", "speedup")
    rows: list[tuple[str, ...]] = [head] if found else []
    for stored in found:
        record = stored.record
        if record is None:
            rows.append((stored.name, stack_of(stored), BROKEN_OFF, "", "", "", ""))
            continue
        title: tuple[str, ...] = (stored.name, record.stack, record.outcome)
        for figures in (f for f in record.levels if f.decisive):
            speeds = (figures.baseline.throughput, figures.eagle3.throughput)
            speedup = shown(figures.speedup, 2, "×")
            rows.append(
                (*title, str(figures.level), *(f"{s.value:.1f}" if s else "–" for s in speeds), speedup)
            )
            title = ("", "", "")
    return _table(rows)


def _comparison(found: Sequence[Stored]) -> str:
    from imagebuilder.accept.compare import compare

    left = _list([stored for stored in found if not stored.record])
    if not _records(found):
        return left
    comparison = compare(_records(found))
    text = _table([("", *comparison.head), *((row.label, *row.values) for row in comparison.rows)])
    text += "".join(f"note: {note}\n" for note in comparison.notes)
    return text + "".join(f"{s.record.stack}: {s.report}\n" for s in found if s.record) + left


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)
