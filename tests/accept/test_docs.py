"""What docs/82-verdict.md says is tested, is."""

from __future__ import annotations

import re

from tests.support.command import ROOT


def test_every_situation_names_tests_that_there_are() -> None:
    text = (ROOT / "docs" / "82-verdict.md").read_text(encoding="utf-8").partition("## Situations")[2]
    rows = [line.split("|")[3] for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 13
    for row in rows:
        module = ""
        for word in re.findall(r"\w+_\w+", row):
            if word.startswith("test_"):
                module = (ROOT / "tests" / "accept" / f"{word}.py").read_text(encoding="utf-8")
            else:
                assert f"def test_{word}(" in module, word
        assert module, row
