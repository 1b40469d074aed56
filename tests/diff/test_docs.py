"""The page says what the program says."""

from __future__ import annotations

from imagebuilder.diff.blocks import WORDS
from tests.support.diff_example import PAGE, insert_example


def test_the_example_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == insert_example(page), "run scripts/write-diff-example"


def test_every_move_is_explained() -> None:
    page = PAGE.read_text()
    assert all(
        words.replace("other file, same version", "the same version, another file") in page
        for words in WORDS.values()
    )
