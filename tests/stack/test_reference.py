"""What is generated from the declaration is up to date, and says the same as the loader."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli

from imagebuilder.stack import load_stack, model, shipped_stacks
from imagebuilder.stack.grammar import Array, Kind, Table
from imagebuilder.stack.keys import STACK
from imagebuilder.stack.reference import BEGIN, END, insert_reference, json_schema

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SCHEMA = ROOT / "imagebuilder" / "data" / "stack.schema.json"
PAGE = ROOT / "docs" / "20-stack.md"
REGENERATE = "run scripts/write-stack-reference"
GOOD = [*shipped_stacks(), *(HERE / "good").glob("*/stack.toml")]

# Wrong in a way that a schema of one file cannot see: values that must agree, files beside it, secrets.
ONLY_THE_LOADER_KNOWS = {
    "acceptance-decisive-level", "as-of-a-date", "as-of-fraction", "as-of-long-ago", "as-of-text",
    "as-of-without-offset", "base-image-malformed", "debian-base-built-by-apt", "index-not-declared",
    "names-twice", "override-contradicts-layer", "package-twice", "patch-is-none", "patch-pattern-escapes",
    "patch-pattern-matches-nothing", "secrets", "url-and-index",
}  # fmt: skip
NO_TOML = {"bom", "duplicate-key", "nested-too-deep", "not-toml", "not-toml-in-line-4", "not-utf8"}


def as_json(path: Path) -> Any:
    """The document as an editor's validator sees it: instants are strings."""

    def text(value: object) -> str:
        return value.isoformat() if isinstance(value, datetime) else str(value)

    return json.loads(json.dumps(tomli.loads(path.read_text()), default=text))


def validator() -> Any:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_is_up_to_date() -> None:
    assert SCHEMA.read_text() == json_schema(), REGENERATE


def test_the_reference_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page.count(BEGIN) == page.count(END) == 1
    assert page == insert_reference(page), REGENERATE


def test_the_example_of_the_page_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    file = tmp_path / "hello.toml"
    file.write_text(example[1])
    assert load_stack(file).name == "hello"


@pytest.mark.parametrize(
    "path", GOOD, ids=lambda path: path.stem if path.stem != "stack" else path.parent.name
)
def test_the_schema_takes_what_the_loader_takes(path: Path) -> None:
    load_stack(path)
    problems = [f"{'.'.join(map(str, e.path))}: {e.message}" for e in validator().iter_errors(as_json(path))]
    assert problems == []


@pytest.mark.parametrize("case", sorted(p.name for p in (HERE / "bad").iterdir() if p.name not in NO_TOML))
def test_the_schema_refuses_what_it_can_see(case: str) -> None:
    valid = validator().is_valid(as_json(HERE / "bad" / case / "stack.toml"))
    assert valid == (case in ONLY_THE_LOADER_KNOWS)


def tables(kind: Kind[Any]) -> list[Table[Any]]:
    if isinstance(kind, Array):
        return tables(kind.of)
    return [kind, *(t for key in kind.keys for t in tables(key.kind))] if isinstance(kind, Table) else []


def test_every_field_of_the_model_has_a_key_and_the_other_way_round() -> None:
    unwritten = {(model.Stack, name) for name in ("deploy_docker", "deploy_kubernetes", "path")}
    for table in tables(STACK):
        targets = {key.target for key in table.keys}
        assert len(targets) == len(table.keys)
        if table.record:
            names = {f.name for f in dataclasses.fields(table.record)}
            names -= {name for record, name in unwritten if record is table.record}
            assert targets - {"content", "source", "deploy"} == names - {"content", "source"}, table.record


def test_the_full_example_uses_every_key() -> None:
    def unused(table: Table[Any], raw: dict[str, Any], where: str) -> list[str]:
        found = []
        for key in table.keys:
            if key.name not in raw:
                found.append(f"{where}.{key.name}")
                continue
            values = raw[key.name] if isinstance(raw[key.name], list) else [raw[key.name]]
            for below in tables(key.kind)[:1]:
                merged: dict[str, Any] = {}
                for value in values:
                    merged |= value
                found += unused(below, merged, f"{where}.{key.name}")
        return found

    raw = tomli.loads((HERE / "good" / "full" / "stack.toml").read_text())
    assert unused(STACK, raw, "") == [".base.debian", ".base.oci"]
