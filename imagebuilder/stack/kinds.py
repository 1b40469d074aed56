"""The plain kinds of value: text, numbers, words, instants, sizes. Each is a `grammar.Kind`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, Generic, TypeVar

from imagebuilder.stack.grammar import Place, Schema, Wrong, closest, not_a, shown, type_words

T = TypeVar("T")

CONTROL = re.compile(r"[\x00-\x1f\x7f\u0080-\u009f\u2028\u2029]")


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text of one line, with `lines` of several; optionally of a pattern, which `form` explains."""

    pattern: str | None = None
    form: str = "text"
    empty: bool = False
    lines: bool = False
    forbid: Callable[[str], str | None] | None = None

    def read(self, raw: object, place: Place) -> str | Wrong:
        """The text itself."""
        if not isinstance(raw, str):
            number = isinstance(raw, int | float) and not isinstance(raw, bool)
            return not_a(self.form, raw, place, "write it in quotes" if number else "")
        if not raw and not self.empty:
            return place.wrong(f"empty text where {self.form} is wanted")
        if CONTROL.search(raw.replace("\n", "").replace("\t", "") if self.lines else raw):
            return place.wrong(f"{shown(raw)} has a control character in it")
        if self.pattern and not re.fullmatch(self.pattern, raw):
            return place.wrong(f"{shown(raw)} is not {self.form}")
        reason = self.forbid(raw) if self.forbid else None
        return place.wrong(reason) if reason else raw

    def schema(self) -> Schema:
        """A string with its pattern."""
        schema: Schema = {"type": "string"}
        if self.pattern:
            schema["pattern"] = f"^(?:{self.pattern})$"
        elif not self.empty:
            schema["minLength"] = 1
        return schema

    def words(self) -> str:
        """Its form."""
        return self.form


@dataclass(frozen=True, kw_only=True)
class Parsed(Generic[T]):
    """A value made from text by a parser that raises ValueError in words for the user."""

    parse: Callable[[str], T]
    form: str
    pattern: str | None = None
    values: tuple[str, ...] = ()

    def read(self, raw: object, place: Place) -> T | Wrong:
        """What the parser makes of it."""
        text = Text(form=self.form).read(raw, place)
        if isinstance(text, Wrong):
            return text
        try:
            return self.parse(text)
        except ValueError as problem:
            return place.wrong(" ".join(str(problem).split()))

    def write(self, value: T) -> str:
        """As it prints itself."""
        return str(value)

    def schema(self) -> Schema:
        """A string; with its pattern or its values where they are known."""
        if self.values:
            return {"enum": list(self.values)}
        return {
            "type": "string",
            **({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {"minLength": 1}),
        }

    def words(self) -> str:
        """Its form."""
        return self.form


@dataclass(frozen=True, kw_only=True)
class Number:
    """An integer, or with `real` any number, within bounds."""

    at_least: float = 0
    at_most: float | None = None
    real: bool = False
    form: str = ""

    def read(self, raw: object, place: Place) -> Any:
        """int, or float where `real`."""
        if isinstance(raw, bool) or not isinstance(raw, (int, float) if self.real else int):
            return not_a(self.words(), raw, place)
        if not (self.at_least <= raw and (self.at_most is None or raw <= self.at_most)) or raw == float(
            "inf"
        ):
            return place.wrong(f"{shown(raw)} is not {self.words()}")
        return float(raw) if self.real else raw

    def schema(self) -> Schema:
        """A number with its bounds."""
        schema: Schema = {"type": "number" if self.real else "integer", "minimum": self.at_least}
        return schema if self.at_most is None else schema | {"maximum": self.at_most}

    def words(self) -> str:
        """Its bounds in words."""
        noun = self.form or ("a number" if self.real else "an integer")
        return f"{noun} from {self.at_least:g}" + ("" if self.at_most is None else f" to {self.at_most:g}")


@dataclass(frozen=True, kw_only=True)
class Boolean:
    """true or false."""

    def read(self, raw: object, place: Place) -> bool | Wrong:
        """The boolean itself."""
        return raw if isinstance(raw, bool) else not_a("true or false", raw, place)

    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}

    def words(self) -> str:
        """Both of them."""
        return "true or false"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of a few words."""

    options: tuple[str, ...]

    def read(self, raw: object, place: Place) -> Any:
        """The word itself."""
        if not isinstance(raw, str):
            return not_a(self.words(), raw, place)
        if raw not in self.options:
            close = closest(raw, self.options)
            return place.wrong(
                f"{shown(raw)} is not {self.words()}", f"did you mean {close!r}?" if close else ""
            )
        return raw

    def schema(self) -> Schema:
        """An enumeration."""
        return {"enum": list(self.options)}

    def words(self) -> str:
        """The words."""
        return " or ".join(
            [", ".join(f'"{o}"' for o in self.options[:-1])] * bool(self.options[1:])
            + [f'"{self.options[-1]}"']
        )


@dataclass(frozen=True, kw_only=True)
class Instant:
    """A full instant with its offset: a bare date would mean different moments to different tools."""

    def read(self, raw: object, place: Place) -> datetime | Wrong:
        """Aware, in UTC, whole seconds."""
        if not isinstance(raw, datetime):
            hint = "write it without quotes" if isinstance(raw, str) else ""
            if isinstance(raw, date):
                hint = f"write {raw.isoformat()}T00:00:00Z"
            return place.wrong(f"{type_words(raw)} where {self.words()} is wanted", hint)
        if raw.tzinfo is None:
            return place.wrong("an instant without its offset", f"write {raw.isoformat(timespec='seconds')}Z")
        if not 2000 <= raw.year < 2100:
            return place.wrong(f"{raw.isoformat()} is not in this century")
        if raw.microsecond:
            return place.wrong("an instant with fractions of a second", "leave them out")
        return raw.astimezone(timezone.utc)

    def schema(self) -> Schema:
        """A date-time, which JSON has as a string."""
        return {"type": "string", "format": "date-time"}

    def words(self) -> str:
        """An example."""
        return "an instant such as 2026-02-25T00:00:00Z"


_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class Size:
    """A number of bytes with its binary unit."""

    def read(self, raw: object, place: Place) -> int | Wrong:
        """Bytes."""
        match = (
            re.fullmatch(r"([1-9]\d{0,5})(KiB|MiB|GiB|TiB)", raw, re.ASCII) if isinstance(raw, str) else None
        )
        return (
            int(match[1]) * _UNITS[match[2]] if match else place.wrong(f"{shown(raw)} is not {self.words()}")
        )

    def write(self, value: int) -> str:
        """In the largest unit that is whole."""
        return next(f"{value // n}{unit}" for unit, n in reversed(_UNITS.items()) if value % n == 0)

    def schema(self) -> Schema:
        """A string with its pattern."""
        return {"type": "string", "pattern": "^[1-9][0-9]{0,5}(KiB|MiB|GiB|TiB)$"}

    def words(self) -> str:
        """An example."""
        return 'a size such as "32GiB"'


@dataclass(frozen=True, kw_only=True)
class Names:
    """A table of text by name, such as [env]; sorted by name, for the order means nothing."""

    name: Text
    value: Text
    forbid: Callable[[str, str], str | None] | None = None

    def read(self, raw: object, place: Place) -> tuple[tuple[str, str], ...] | Wrong:
        """(name, value) pairs."""
        if not isinstance(raw, dict):
            return not_a("a table", raw, place)
        before = len(place.problems)
        pairs = []
        for name, value in raw.items():
            here = place.child(name)
            reason = self.forbid(name, value) if self.forbid and isinstance(value, str) else None
            if reason:
                here.wrong(reason)
                continue
            read_name, read_value = self.name.read(name, here), self.value.read(value, here)
            if not isinstance(read_name, Wrong) and not isinstance(read_value, Wrong):
                pairs.append((read_name, read_value))
        return Wrong(tuple(pairs)) if len(place.problems) > before else tuple(sorted(pairs))

    def schema(self) -> Schema:
        """An object with the names' pattern."""
        names = {"propertyNames": {"pattern": f"^(?:{self.name.pattern})$"}} if self.name.pattern else {}
        return {"type": "object", **names, "additionalProperties": self.value.schema()}

    def words(self) -> str:
        """A table."""
        return f"table of {self.value.words()} by name"
