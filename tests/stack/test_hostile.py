"""Whatever a file holds: a Stack or StackInvalid, never another exception."""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from typing import Any

import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.errors import StackInvalid
from imagebuilder.stack import Stack, parse_stack
from imagebuilder.stack.grammar import Array, Kind, Place, Table
from imagebuilder.stack.keys import STACK

PATCH = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


class Nothing:
    """A folder in which everything is there."""

    def glob(self, pattern: str) -> list[str]:
        return ["x.patch"]

    def read(self, path: str) -> bytes:
        return PATCH


def parse(data: bytes) -> Stack | None:
    try:
        return parse_stack(data, file="x.toml", folder=Nothing())
    except StackInvalid as problem:
        assert problem.problems
        assert all(p.key and p.message for p in problem.problems)
        assert str(problem).isprintable() or "\n" in str(problem)
        return None


TEXT = st.text(max_size=12) | st.sampled_from(
    ["x", "3.11", "sm_120", "bookworm", "six==1", "a @ https://h/x.whl", "a @ https://[/x.whl", "https://[",
     "/a/b", "sha256:", "image:tag", "32GiB", "lock", "all", "linux/amd64", "0755", "hf_" + "a" * 30, "a;b",
     "1" * 5000, "http://h:99999/", "\u00b2", "\u0663", "3.\u0661"]
)  # fmt: skip
SCALARS: st.SearchStrategy[Any] = (
    TEXT
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.datetimes(timezones=st.just(timezone.utc) | st.none())
    | st.dates()
    | st.times()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def tables(table: Table[Any]) -> st.SearchStrategy[dict[str, Any]]:
    keys = {key.name: near(key.kind) for key in table.keys}
    return st.fixed_dictionaries({}, optional={**keys, "unknown": SCALARS})


def near(kind: Kind[Any]) -> st.SearchStrategy[Any]:
    """Values of the right shape with wrong and right things in it: reaches what random values never do."""
    if isinstance(kind, Table):
        return tables(kind) | SCALARS
    if isinstance(kind, Array):
        return st.lists(near(kind.of), max_size=3)
    return SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(TEXT, SCALARS, max_size=2)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
@settings(deadline=None)
def test_any_toml(document: dict[str, Any]) -> None:
    parse(tomli_w.dumps(document).encode())


@given(tables(STACK))
@settings(deadline=None, max_examples=200)
def test_nearly_a_stack(document: dict[str, Any]) -> None:
    parse(tomli_w.dumps({"schema": 1, **document}).encode())


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_any_bytes(data: bytes) -> None:
    parse(data)


def test_every_kind_says_no_to_every_other_type() -> None:
    wrong: list[Any] = [
        None,
        object(),
        b"x",
        1 + 2j,
        date(2026, 1, 1),
        time(1),
        datetime(2026, 1, 1),
        [[]],
    ]
    for value in wrong:
        place = Place(folder=Nothing())
        fields = STACK.read_fields(dict.fromkeys((key.name for key in STACK.keys), value), place)
        assert isinstance(fields, dict)
        assert len(place.problems) >= len(STACK.keys) - 1
