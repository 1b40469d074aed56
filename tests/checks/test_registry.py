"""The codes of the checks: names, catalogue, and that each of them is seen by some test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagebuilder.checks import acceptance
from imagebuilder.checks.model import KINDS, Code, Finding
from imagebuilder.checks.registry import CHECKS, codes, matches
from imagebuilder.checks.report import catalogue, explain
from imagebuilder.stack.model import Waiver

ROOT = Path(__file__).parents[2]


def test_codes_are_unique_and_named_after_kinds() -> None:
    names = [code.code for code in codes()]
    assert len(names) == len(set(names))
    assert {name.partition(".")[0] for name in names} <= set(KINDS)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("wrong", ["gpu", "gpus.no-code", "gpu.No-Code", "gpu.no_code", "gpu.", "gpu.a b"])
def test_a_code_has_a_kind(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a code"):
        Code(code=wrong, severity="error", meaning="", consequence="", remedy="")


def test_the_catalogue_in_the_docs_is_that_of_the_code() -> None:
    written = (ROOT / "docs" / "71-check-catalogue.md").read_text()
    assert written == catalogue(codes()), "run scripts/write-check-catalogue"


@pytest.mark.parametrize("code", codes(), ids=lambda c: c.code)
def test_every_code_can_be_explained(code: Code) -> None:
    text = explain(code)
    assert code.code in text and code.meaning in text and code.remedy in text
    for table in code.tables:
        assert (ROOT / "imagebuilder" / "data" / f"{table}.toml").is_file()


def test_every_code_is_seen_by_a_test() -> None:
    """A code that no test ever sees is a code that may not work."""
    seen = "\n".join(
        path.read_text()
        for folder in ("checks", "accept", "facts")
        for path in (ROOT / "tests" / folder).rglob("*")
        if path.suffix in (".py", ".toml")
    )
    seen += "\n".join((ROOT / "stacks" / f"{name}.toml").read_text() for name in ("cu128", "cu130-debian"))
    own = [code.code for code in codes() if code not in acceptance.CODES]
    assert not [code for code in own if not re.search(rf'"{re.escape(code)}[ "]', seen)]


@pytest.mark.parametrize(
    ("waiver", "hit"),
    [
        (Waiver(code="path.collision", reason="r"), True),
        (Waiver(code="path.collision", package="A_b", reason="r"), True),
        (Waiver(code="path.collision", package="other", reason="r"), True),
        (Waiver(code="path.collision", package="third", reason="r"), False),
        (Waiver(code="path.collision", path="lib/*.so", reason="r"), True),
        (Waiver(code="path.collision", path="lib/*.py", reason="r"), False),
        (Waiver(code="path.collision-of-text", reason="r"), False),
    ],
)
def test_what_a_waiver_matches(waiver: Waiver, hit: bool) -> None:
    finding = Finding(
        code="path.collision", severity="error", what="", package="a-b", other="other", path="lib/x.so"
    )
    assert matches(waiver, finding) is hit
