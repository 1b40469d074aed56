"""JSON as images carry it: written in one canonical form, read without trusting it.

Canonical here means: keys sorted by code point, no white space, UTF-8 unescaped, no trailing newline. Equal
values therefore give equal bytes, and equal digests.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from imagebuilder.values import Digest

MAX_DEPTH = 64


def encode(value: object) -> bytes:
    """The canonical bytes. ValueError for what JSON cannot say (NaN, lone surrogates)."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def decode(data: bytes, *, limit: int) -> Fields:
    """The object in `data`, of at most `limit` bytes.

    ValueError: too large, not UTF-8, not JSON, not an object, nested too deeply, or a key that is given twice
    (readers disagree about which of the two counts).
    """
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes of JSON, at most {limit} are read")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    except ValueError as exc:  # also UnicodeDecodeError, JSONDecodeError and over-long integers
        raise ValueError(f"not valid JSON: {exc}") from None
    _limit_depth(value)
    return Fields.of(value, "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} is given twice")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _limit_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise ValueError("JSON nested too deeply")


class Fields:
    """One JSON object, read field by field; every mismatch is a ValueError that names the field.

    `null` counts as absent, as in the Go programs that write such files.
    """

    def __init__(self, values: dict[str, Any], path: str) -> None:
        self._values = values
        self._path = path

    @classmethod
    def of(cls, value: object, path: str) -> Fields:
        """The fields of `value`, which must be an object."""
        if not isinstance(value, dict):
            raise ValueError(f"{path or 'the document'} is not a JSON object")
        return cls(value, path)

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error for the field `key`, which is not what is wanted."""
        seen = repr(self._values.get(key))
        return ValueError(f"{self._path}{key} is {seen[:80]}, wanted {wanted}")

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        if re.search("[\ud800-\udfff\x00]", value):
            raise self.wrong(key, "text without NUL and surrogates")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A number from 0 to 2**63 - 1."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 <= value < 2**63:
            raise self.wrong(key, "a number from 0 to 2**63 - 1")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false when absent."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return bool(value)

    def digest(self, key: str) -> Digest:
        """A sha256 digest."""
        try:
            return Digest(self.text(key))
        except ValueError:
            raise self.wrong(key, "sha256: and 64 hexadecimal digits") from None

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; none when absent."""
        items = self._list(key)
        return tuple(
            Fields({f"{key}[{i}]": item}, self._path).text(f"{key}[{i}]") for i, item in enumerate(items)
        )

    def digests(self, key: str, *, limit: int) -> tuple[Digest, ...]:
        """A list of digests, at most `limit` of them; none when absent."""
        items = self.texts(key)
        if len(items) > limit:
            raise ValueError(f"{self._path}{key} has {len(items)} entries, at most {limit} are read")
        return tuple(Fields({key: item}, self._path).digest(key) for item in items)

    def mapping(self, key: str) -> tuple[tuple[str, str], ...]:
        """An object of strings, sorted by key; none when absent."""
        fields = self.object(key)
        return tuple((name, fields.text(name)) for name in sorted(fields.keys()))

    def object(self, key: str) -> Fields:
        """An object; an empty one when absent."""
        return Fields.of({} if not self.has(key) else self._values[key], f"{self._path}{key}.")

    def objects(self, key: str, *, limit: int) -> tuple[Fields, ...]:
        """A list of objects, at most `limit` of them; none when absent."""
        items = self._list(key)
        if len(items) > limit:
            raise ValueError(f"{self._path}{key} has {len(items)} entries, at most {limit} are read")
        return tuple(Fields.of(item, f"{self._path}{key}[{i}].") for i, item in enumerate(items))

    def keys(self) -> tuple[str, ...]:
        """The names of the fields that are not null."""
        return tuple(key for key, value in self._values.items() if value is not None)

    def _list(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value
