"""JSON Schema of what `codec` writes, from the same annotations that it reads by. Pure."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, Union

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(kind: type) -> dict[str, Any]:
    """The schema of a dataclass and everything below it. Unknown fields are allowed: later ones are added."""
    definitions: dict[str, Any] = {}
    top = _schema(kind, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - one per kind
    origin = typing.get_origin(kind)
    if kind is Any:
        return {}
    if kind is type(None):
        return {"type": "null"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option, definitions) for option in typing.get_args(kind)]}
    if origin is Literal:
        return {"enum": list(typing.get_args(kind))}
    if origin is tuple:
        of = typing.get_args(kind)
        if len(of) == 2 and of[1] is Ellipsis:
            return {"type": "array", "items": _schema(of[0], definitions)}
        items = [_schema(item, definitions) for item in of]
        return {"type": "array", "prefixItems": items, "minItems": len(of), "maxItems": len(of)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(typing.get_args(kind)[1], definitions)}
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), definitions)
    return {"type": _SIMPLE[kind]}


def _dataclass(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        definitions[name] = {
            "type": "object",
            "description": (kind.__doc__ or "").split("\n\n")[0],
            "properties": {f.name: _schema(hints[f.name], definitions) for f in fields},
            "required": [f.name for f in fields if f.default is dataclasses.MISSING],
        }
    return {"$ref": f"#/$defs/{name}"}
