"""Prompt sets: complete, different, unchanged; and which answers are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept.prompts import (
    KINDS,
    MIXED,
    Prompt,
    digest_of,
    is_correct,
    known_answers,
    load_set,
    select,
    warmup,
)  # fmt: skip
from imagebuilder.accept.simulator.text import tokens_of
from imagebuilder.errors import UsageProblem


def test_the_sets_are_what_results_were_measured_with() -> None:
    """A shipped text that changes makes results incomparable: add prompts in a new file instead."""
    assert digest_of(load_set(MIXED)).hex[:16] == "64f33f780cc0261c"
    assert digest_of(known_answers()).hex[:16] == "10d3cce0f96e3838"


def test_mixed_takes_turns() -> None:
    mixed = load_set(MIXED)
    assert [p.kind for p in mixed[:5]] == list(KINDS)
    assert len({p.id for p in mixed}) == len({p.text for p in mixed}) == len(mixed)
    assert {p.id for kind in KINDS for p in load_set(kind)} == {p.id for p in mixed}
    assert min(len(load_set(kind)) for kind in KINDS) >= 12


def test_known_answers_are_many_and_different() -> None:
    tasks = known_answers()
    assert len(tasks) >= 150
    assert len({t.text for t in tasks}) == len(tasks)
    assert all(t.answer and t.text.endswith('"Answer: ...".') for t in tasks)


def test_an_unknown_set() -> None:
    with pytest.raises(UsageProblem, match="poems"):
        load_set("poems")


@given(st.integers(1, 300))
def test_no_two_requests_of_a_round_are_alike(count: int) -> None:
    chosen = select(load_set(MIXED), count)
    assert len(chosen) == count
    assert len({p.text for p in chosen}) == len({p.id for p in chosen}) == count
    beginnings = [tuple(tokens_of(p.text)[:16]) for p in warmup(load_set(MIXED), 20)]
    measured = {tuple(tokens_of(p.text)[:16]) for p in chosen}
    assert not measured & set(beginnings), "a warm-up leaves nothing in the prefix cache for the round"


def test_anything_that_is_asked_changes_the_digest() -> None:
    one = Prompt(id="a", kind="known", text="x", answer="1")
    changes = [{"id": "b"}, {"kind": "chat"}, {"text": "y"}, {"answer": "2"}, {"also": ("3",)}, {"ids": (1,)}]
    digests = {digest_of([one]), digest_of([one, one])}
    digests |= {digest_of([replace(one, **change)]) for change in changes}  # type: ignore[arg-type]
    assert len(digests) == 2 + len(changes)


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("1440", "60 times 24.\nAnswer: 1440", True),
        ("1440", "Answer: 1,440", True),
        ("1440", "Answer: 1 440", True),
        ("1440", "Answer: 1440.", True),
        ("1440", "Answer: 1440.0", True),
        ("1440", "Answer: 1440 minutes", True),
        ("1440", "**Answer:** 1440", True),
        ("1440", "**Answer: 1440**", True),
        ("1440", "Answer: $\\boxed{1440}$", True),
        ("1440", "The answer is: 1440", True),
        ("1440", "1440", True),
        ("1440", "Answer: 12\nNo, wait.\nAnswer: 1440", True),
        ("1440", "Answer: 1440\nOr rather\nAnswer: 12", False),
        ("1440", "Answer: 14400", False),
        ("1440", "Answer: 144", False),
        ("1440", "Answer: -1440", False),
        ("1440", "Answer: 1440 or 1441", False),
        ("1440", "It may be 1440, who knows. Answer:", False),
        ("1440", "", False),
        ("0.65", "Answer: 0.650 l", True),
        ("07:35", "Answer: 07:35", True),
        ("07:35", "Answer: 17:35", False),
        ("Lisbon", "answer: LISBON!", True),
        ("Lisbon", "Answer: Lisbon, Porto", False),
        ("yen", "Answer: The yen.", True),
        ("Oslo", "Answer: \"Oslo\"", True),
        ("apple, pear", "Answer: apple,pear", True),
        ("apple, pear", "Answer: pear, apple", False),
        ("elbat", "Answer: `elbat`", True),
    ],
)  # fmt: skip
def test_right_and_wrong(answer: str, reply: str, right: bool) -> None:
    assert is_correct(Prompt(id="x", kind="known", text="?", answer=answer), reply) is right


def test_other_spellings() -> None:
    task = Prompt(id="x", kind="known", text="?", answer="heart", also=("the human heart",))
    assert is_correct(task, "Answer: the heart")
    assert is_correct(task, "Answer: The human heart.")
    assert not is_correct(task, "Answer: liver")


@given(st.text())
def test_any_reply_can_be_judged(reply: str) -> None:
    for task in known_answers()[::20]:
        assert is_correct(task, reply) in (True, False)
        assert is_correct(task, f"{reply}\nAnswer: {task.answer}")
