"""Frozen dataclasses to JSON and back, by their annotations. What is read is hostile until it is a value."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")
_DECIMALS = 6
"""Of seconds: a microsecond is finer than any clock here is right."""


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON of a dataclass; fields that are empty by default, and empty, are left out."""
    return json.dumps(to_json(value), indent=indent, ensure_ascii=False, allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """The value that `dumps` wrote. ValueError says where the text is not one; unknown fields are ignored."""
    try:
        return from_json(kind, json.loads(text))
    except RecursionError:
        raise ValueError("nested too deep") from None


def to_json(value: Any) -> Any:
    """Plain lists, objects, texts and numbers."""
    if dataclasses.is_dataclass(value):
        return {
            f.name: to_json(item)
            for f in dataclasses.fields(value)
            if not ((item := getattr(value, f.name)) == f.default and item in (None, "", ()))
        }
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return round(value, _DECIMALS) if isinstance(value, float) else value


def from_json(kind: type[T], data: Any) -> T:
    """A value of this dataclass. ValueError says where the data are not one."""
    made: T = _read(kind, data, kind.__name__)
    return made


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, data: Any, place: str) -> Any:  # noqa: PLR0911 - one return per kind
    origin = typing.get_origin(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        return _read_union(kind, data, place)
    if origin is Literal:
        if data in typing.get_args(kind):
            return data
    elif origin is tuple:
        if isinstance(data, list):
            return _read_tuple(typing.get_args(kind), data, place)
    elif origin is dict:
        if isinstance(data, dict):
            of = typing.get_args(kind)[1]
            return {key: _read(of, item, f"{place}.{key}") for key, item in data.items()}
    elif dataclasses.is_dataclass(kind):
        if isinstance(data, dict):
            return _read_dataclass(kind, data, place)
    elif kind is float and type(data) is int:
        return float(data)
    elif type(data) is kind:
        return data
    raise ValueError(f"{place} is not of the kind {kind}: {str(data)[:60]!r}")


def _read_union(kind: Any, data: Any, place: str) -> Any:
    reasons = []
    for option in typing.get_args(kind):
        if option is type(None):
            if data is None:
                return None
            continue
        try:
            return _read(option, data, place)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons) or f"{place} has to be null")


def _read_tuple(of: tuple[Any, ...], data: list[Any], place: str) -> tuple[Any, ...]:
    if len(of) == 2 and of[1] is Ellipsis:
        simple = of[0]
        if simple in (int, float, str) and all(type(x) is simple for x in data):
            return tuple(data)  # long lists of numbers are most of a result
        return tuple(_read(simple, x, f"{place}[{i}]") for i, x in enumerate(data))
    if len(of) != len(data):
        raise ValueError(f"{place} has {len(data)} items, not {len(of)}")
    return tuple(_read(k, x, f"{place}[{i}]") for i, (k, x) in enumerate(zip(of, data, strict=True)))


def _read_dataclass(kind: Any, data: dict[str, Any], place: str) -> Any:
    hints = _hints(kind)
    found = {
        f.name: _read(hints[f.name], data[f.name], f"{place}.{f.name}")
        for f in dataclasses.fields(kind)
        if f.name in data
    }
    try:
        return kind(**found)
    except TypeError as error:
        raise ValueError(f"{place}: {error}") from None
