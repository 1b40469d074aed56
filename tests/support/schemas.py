"""`--json` of check, recon and matrix against the schemas that are shipped."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.command import ROOT


def validated(kind: str, out: str) -> Any:
    """The document, once it fits imagebuilder/data/KIND.schema.json."""
    document = json.loads(out)
    schema = json.loads((ROOT / "imagebuilder" / "data" / f"{kind}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(document)
    return document
