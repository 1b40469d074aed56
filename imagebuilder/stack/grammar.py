"""Reading checked values out of parsed TOML: a few kinds of value, declared once, used three times.

A `Kind` reads a raw value (collecting every problem, never stopping at the first), gives its JSON Schema, and
says in words what it takes; `keys` declares the stack file with them, `loader` reads, `reference` writes.
Knows nothing of stacks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date, datetime, time
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from imagebuilder.errors import Problem

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Schema = dict[str, Any]


class Wrong:
    """What a read gives when there was a problem; `partial` is what could be read all the same."""

    def __init__(self, partial: Any = None) -> None:
        self.partial = partial


class Folder(Protocol):
    """The files beside the file that is read. Errors are ValueErrors in words for the user."""

    def glob(self, pattern: str) -> list[str]:
        """Relative POSIX paths of the regular files that match, sorted; none of them outside the folder."""

    def read(self, path: str) -> bytes:
        """The bytes of a file inside the folder."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in the file a value stands, and what reading it may ask for.

    `names`: what other tables declare (`{"index": {"pytorch-cu130"}}`), to check a reference where it stands.
    """

    key: str = ""
    problems: list[Problem] = field(default_factory=list)
    folder: Folder | None = None
    names: Mapping[str, Collection[str]] = field(default_factory=dict)

    def child(self, name: str) -> Place:
        """The place of a key of this table."""
        written = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else repr(name)
        return self.at(f"{self.key}.{written}" if self.key else written)

    def item(self, number: int) -> Place:
        """The place of an item of this array, from 0."""
        return self.at(f"{self.key}[{number}]")

    def at(self, key: str) -> Place:
        """Another place of the same file."""
        return Place(key=key, problems=self.problems, folder=self.folder, names=self.names)

    def wrong(self, message: str, hint: str = "", *, partial: Any = None) -> Wrong:
        """Report a problem here."""
        self.problems.append(Problem(key=self.key or "the file", message=message, hint=hint))
        return Wrong(partial)


class Kind(Protocol[T_co]):
    """One kind of value."""

    def read(self, raw: object, place: Place) -> T_co | Wrong:
        """The checked value, or Wrong with at least one problem reported."""

    def schema(self) -> Schema:
        """Its JSON Schema: accepts at least what `read` accepts."""

    def words(self) -> str:
        """What it takes, for the reference: `text`, `array of text`."""


@runtime_checkable
class Writes(Protocol):
    """A kind whose values are not spelled in TOML as they are held."""

    def write(self, value: Any) -> str:
        """The spelling in a stack file."""


_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "an array",
    dict: "a table",
}


def type_words(raw: object) -> str:
    """The TOML type of a parsed value, in words."""
    if isinstance(raw, datetime | date | time):
        return "a date or time"
    return _TYPES.get(type(raw), type(raw).__name__)


def shown(raw: object, limit: int = 60) -> str:
    """A value as an error shows it: quoted, escaped, and short."""
    text = repr(raw)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def not_a(wanted: str, raw: object, place: Place, hint: str = "") -> Wrong:
    """Report a value of another type."""
    return place.wrong(f"{type_words(raw)} where {wanted} is wanted", hint)


@dataclass(frozen=True, kw_only=True)
class Array(Generic[T]):
    """An array of one kind of item; `key` gives what may not occur twice."""

    of: Kind[T]
    at_least: int = 0
    key: Callable[[T], str] | None = None
    noun: str = "value"

    def read(self, raw: object, place: Place) -> tuple[T, ...] | Wrong:
        """The items. Wrong.partial has None where an item could not be read."""
        if not isinstance(raw, list):
            return not_a("an array", raw, place)
        before = len(place.problems)
        if len(raw) < self.at_least:
            place.wrong(f"needs at least {self.at_least} item")
        items = tuple(self.of.read(item, place.item(n)) for n, item in enumerate(raw))
        good = tuple(item for item in items if not isinstance(item, Wrong))
        if self.key:
            first: dict[str, int] = {}
            for n, item in enumerate(items):
                if not isinstance(item, Wrong) and first.setdefault(self.key(item), n) != n:
                    name = self.key(item)
                    place.item(n).wrong(f"the {self.noun} {name!r} is there already, as item {first[name]}")
        if len(place.problems) > before:
            return Wrong(tuple(None if isinstance(item, Wrong) else item for item in items))
        return good

    def schema(self) -> Schema:
        """An array."""
        return {"type": "array", "items": self.of.schema()} | (
            {"minItems": self.at_least} if self.at_least else {}
        )

    def words(self) -> str:
        """What it holds."""
        return f"array, each {self.of.words()}"


@dataclass(frozen=True, kw_only=True)
class Either:
    """An array, or one of other kinds: told apart by being an array."""

    array: Kind[Any]
    other: Kind[Any]

    def read(self, raw: object, place: Place) -> Any:
        """As the kind that it is."""
        return (self.array if isinstance(raw, list) else self.other).read(raw, place)

    def schema(self) -> Schema:
        """Any of both."""
        return {"anyOf": [self.other.schema(), self.array.schema()]}

    def words(self) -> str:
        """Both."""
        return f"{self.other.words()}, or {self.array.words()}"


@dataclass(frozen=True)
class Key:
    """A key of a table: its spelling, kind and meaning. `field` where it is not the spelling with _."""

    name: str
    kind: Kind[Any]
    doc: str
    field: str = ""

    @property
    def target(self) -> str:
        """The field of the record that it fills."""
        return self.field or self.name.replace("-", "_")


@dataclass(frozen=True)
class Table(Generic[T]):
    """A table with known keys, made into a record. What has no default in the record is required.

    `make(place, **fields)` where a record is not just its fields; exactly one key of `one_of` must be there.
    `demanded`: keys that must be there although the record has a default.
    """

    record: type[T] | None
    keys: tuple[Key, ...]
    doc: str = ""
    make: Callable[..., Any] | None = None
    optional: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    demanded: tuple[str, ...] = ()

    def defaults(self) -> dict[str, object]:
        """Defaults of the record by field name."""
        found: dict[str, object] = dict.fromkeys((*self.optional, *self.one_of))
        for f in fields(self.record) if self.record else ():  # type: ignore[arg-type]
            if f.default is not MISSING:
                found[f.name] = f.default
        return found

    def required(self) -> Iterator[str]:
        """Keys that must be there."""
        defaults = self.defaults()
        return (k.name for k in self.keys if k.target not in defaults or k.name in self.demanded)

    def read_fields(self, raw: object, place: Place) -> dict[str, Any] | Wrong:
        """The fields that could be read; problems are with the place. A wrong one is there as Wrong."""
        if not isinstance(raw, dict):
            return not_a("a table", raw, place)
        known = {key.name: key for key in self.keys}
        for name in raw:
            if name not in known:
                place.child(name).wrong("unknown key", nearest(name, known))
        if self.one_of and sum(name in raw for name in self.one_of) != 1:
            place.wrong(f"exactly one of {', '.join(self.one_of)} is wanted")
        for name in self.required():
            if name not in raw:
                place.child(name).wrong("is missing", known[name].kind.words())
        return {k.target: k.kind.read(raw[k.name], place.child(k.name)) for k in self.keys if k.name in raw}

    def read(self, raw: object, place: Place) -> T | Wrong:
        """The record, when nothing was wrong in it."""
        before = len(place.problems)
        values = self.read_fields(raw, place)
        if isinstance(values, Wrong) or len(place.problems) > before:
            return Wrong(values)
        made: T | Wrong = self.make(place, **values) if self.make else self.record(**values)  # type: ignore[misc]
        return made

    def schema(self) -> Schema:
        """An object that takes no other keys."""
        defaults = self.defaults()
        properties: dict[str, Schema] = {}
        for key in self.keys:
            default = written(key.kind, defaults.get(key.target))
            properties[key.name] = {"description": key.doc, **key.kind.schema()}
            if default is not None:
                properties[key.name]["default"] = default
        schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
        if required := list(self.required()):
            schema["required"] = required
        if self.one_of:
            schema["oneOf"] = [{"required": [name]} for name in self.one_of]
        return schema

    def words(self) -> str:
        """A table."""
        return "table"


def written(kind: Kind[Any], value: object) -> Any:
    """A default as it would be written in a stack file; None where there is nothing to write."""
    if isinstance(value, tuple):
        return list(value) if value and all(isinstance(v, int | str) for v in value) else None
    if value is None or value == "":
        return None
    if isinstance(kind, Writes):
        return kind.write(value)
    return value if isinstance(value, bool | int | float | str) else None


def nearest(name: str, known: Collection[str]) -> str:
    """The hint for an unknown name: the nearest known one, or all of them where none is near."""
    if close := closest(name, known):
        return f"did you mean {close!r}?"
    return "known here: " + ", ".join(sorted(known)) if known else ""


def closest(name: str, known: Collection[str]) -> str:
    """The known name that is most like this one; empty where none is."""
    folded = [k for k in known if k.replace("-", "").lower() == re.sub(r"[_-]", "", name).lower()]
    return next(iter(folded or difflib.get_close_matches(name, known, n=1, cutoff=0.55)), "")
