"""What docs/73-cases.md says is tested, is, and no case is left out of it."""

from __future__ import annotations

import re

from tests.support.check_cases import CASES, ROOT


def test_every_known_failure_names_tests_that_there_are() -> None:
    text = (ROOT / "docs" / "73-cases.md").read_text(encoding="utf-8")
    rows = [line.split("|")[3] for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row.strip() != "tests"]
    cases = {path.stem for path in CASES}
    named: set[str] = set()
    assert len(rows) > 50
    for row in rows:
        words = re.findall(r"`([^`]+)`", row)
        assert words, row
        for word in words:
            file, _, name = word.partition("::")
            if name:
                assert f"def {name}(" in (ROOT / f"{file}.py").read_text(encoding="utf-8"), word
            else:
                assert word in cases, word
                named.add(word)
    assert named == cases
