"""What is written out of the declaration of the stack file: its JSON Schema and the reference of its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from imagebuilder.stack.grammar import Array, Kind, Table, written
from imagebuilder.stack.keys import STACK

BEGIN, END = "<!-- keys: generated -->", "<!-- end of keys -->"


def json_schema() -> str:
    """The JSON Schema of the stack file (draft 2020-12), as shipped in `data/stack.schema.json`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A stack file of imagebuilder",
        **STACK.schema(),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def key_reference() -> str:
    """The tables of keys, as Markdown: what stands between the marks in `docs/20-stack.md`."""
    return "\n".join(_sections("", STACK, repeated=False)).strip() + "\n"


def insert_reference(page: str) -> str:
    """The page with the present reference between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{key_reference()}\n{END}{after}"


def _sections(name: str, table: Table[Any], *, repeated: bool) -> Iterator[str]:
    yield (
        f"### `{'[[' if repeated else '['}{name}{']]' if repeated else ']'}`\n" if name else "### Top level\n"
    )
    yield "| key | takes | default | meaning |\n|---|---|---|---|"
    defaults = table.defaults()
    inner: list[tuple[str, Table[Any], bool]] = []
    for key in table.keys:
        below, many = _table_of(key.kind)
        takes = key.kind.words()
        if below:
            full = f"{name}.{key.name}" if name else key.name
            inner.append((full, below, many))
            takes = f"[table{'s' if many else ''}](#{full.replace('.', '')})"
        default = (
            "required" if key.target not in defaults else _shown(written(key.kind, defaults[key.target]))
        )
        yield f"| `{key.name}` | {_cell(takes)} | {default} | {_cell(key.doc)} |"
    yield ""
    for full, below, many in inner:
        yield from _sections(full, below, repeated=many)


def _table_of(kind: Kind[Any]) -> tuple[Table[Any] | None, bool]:
    if isinstance(kind, Array) and isinstance(kind.of, Table):
        return kind.of, True
    return (kind, False) if isinstance(kind, Table) else (None, False)


def _shown(default: object) -> str:
    return "" if default is None else f"`{json.dumps(default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
