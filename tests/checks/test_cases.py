"""Known failures and known-good sets, on recorded facts of real artefacts: each file in cases/ is a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.checks.registry import find
from tests.support.check_cases import CASES, problems, read_case, subject_of


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path, tmp_path: Path) -> None:
    case = read_case(path)
    wrong = list(problems(case, find(subject_of(case, tmp_path))))
    assert not wrong, case["about"] + "\n" + "\n".join(wrong)


def test_there_are_cases() -> None:
    assert len(CASES) > 40
