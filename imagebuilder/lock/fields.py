"""Typed reading of a parsed TOML table that may hold anything. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

T = TypeVar("T")


class Bad(ValueError):
    """A table does not hold what it should; the message names the key."""


class Fields:
    """One table, with its dotted place for messages."""

    def __init__(self, table: object, place: str) -> None:
        if not isinstance(table, Mapping):
            raise Bad(f"{place}: a table is wanted")
        self._table: Mapping[str, Any] = table
        self._place = place

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._table

    def text(self, key: str) -> str:
        """A string that is not empty."""
        found = self._table.get(key)
        if not isinstance(found, str) or not found:
            raise Bad(f"{self._place}.{key}: a text is wanted")
        return found

    def optional_text(self, key: str) -> str | None:
        """A string, or None where the key is not there."""
        return self.text(key) if self.has(key) else None

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of strings; empty where the key is not there."""
        found = self._table.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise Bad(f"{self._place}.{key}: an array of texts is wanted")
        return tuple(found)

    def number(self, key: str) -> int:
        """A whole number, not negative."""
        found = self._table.get(key)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise Bad(f"{self._place}.{key}: a whole number is wanted")
        return found

    def value(self, key: str, parse: Callable[[str], T]) -> T:
        """A string, parsed; ValueError becomes Bad."""
        try:
            return parse(self.text(key))
        except Bad:
            raise
        except ValueError as error:
            raise Bad(f"{self._place}.{key}: {error}") from None

    def instant(self, key: str) -> datetime | None:
        """A date and time, UTC where it does not say; None where the key is not there."""
        found = self._table.get(key)
        if found is None:
            return None
        if not isinstance(found, datetime):
            raise Bad(f"{self._place}.{key}: a date and time is wanted")
        return found if found.tzinfo else found.replace(tzinfo=timezone.utc)

    def table(self, key: str) -> Mapping[str, Any]:
        """A table."""
        found = self._table.get(key)
        if not isinstance(found, Mapping):
            raise Bad(f"{self._place}.{key}: a table is wanted")
        return found

    def tables(self, key: str) -> list[Fields]:
        """An array of tables; empty where the key is not there."""
        found = self._table.get(key, [])
        if not isinstance(found, list):
            raise Bad(f"{self._place}.{key}: an array of tables is wanted")
        return [Fields(item, f"{self._place}.{key}[{n}]") for n, item in enumerate(found)]
