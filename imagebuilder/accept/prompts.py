"""What is asked: the shipped prompt sets and known-answer tasks, and whether an answer is right."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from itertools import chain, zip_longest
from pathlib import Path

import tomli

from imagebuilder.accept.model import KNOWN
from imagebuilder.errors import UsageProblem
from imagebuilder.values import Digest

KINDS = ("code", "chat", "maths", "summaries", "multilingual")
MIXED = "mixed"
ANSWER_TOKENS = 1024
"""Most tokens of an answer to a known-answer task: room for the way to it."""

_FOLDER = Path(__file__).resolve().parent.parent / "data" / "prompts"
_INSTRUCTION = '\n\nThink as briefly as you can, then end with one line of the form "Answer: ...".'


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One thing to ask. ids: the same with the chat template, as the image's own tokenizer has it.

    answer, also: of a known-answer task, the right one and other spellings of it.
    """

    id: str
    kind: str
    text: str
    answer: str = ""
    also: tuple[str, ...] = ()
    ids: tuple[int, ...] | None = None

    @property
    def body(self) -> str | list[int]:
        """What is sent: token ids where there are any, else the text as it is."""
        return self.text if self.ids is None else list(self.ids)


def load_set(name: str) -> tuple[Prompt, ...]:
    """A shipped set: one kind, or `mixed`, in which the kinds take turns. UsageProblem."""
    if name == MIXED:
        turns = zip_longest(*(_kind(kind) for kind in KINDS))
        return tuple(p for p in chain.from_iterable(turns) if p is not None)
    if name not in KINDS:
        raise UsageProblem(
            f"there is no prompt set {name!r}",
            wanted=", ".join((MIXED, *KINDS)),
            hint="[acceptance.load] prompts",
        )
    return _kind(name)


def known_answers() -> tuple[Prompt, ...]:
    """The shipped tasks with one right answer each."""
    tasks = tomli.loads((_FOLDER / f"{KNOWN}.toml").read_text(encoding="utf-8"))["task"]
    return tuple(
        Prompt(
            id=f"{KNOWN}-{number:03}",
            kind=KNOWN,
            text=task["text"] + _INSTRUCTION,
            answer=task["answer"],
            also=tuple(task.get("also", ())),
        )
        for number, task in enumerate(tasks, 1)
    )


def _kind(kind: str) -> tuple[Prompt, ...]:
    texts = tomli.loads((_FOLDER / f"{kind}.toml").read_text(encoding="utf-8"))["prompts"]
    return tuple(Prompt(id=f"{kind}-{n:02}", kind=kind, text=text) for n, text in enumerate(texts, 1))


def select(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """So many of them, in order. From the second time through the set each has a line of its own before it.

    A prompt that was asked word for word before would be found in the prefix cache.
    """
    chosen = []
    for number in range(count):
        time, prompt = number // len(prompts), prompts[number % len(prompts)]
        chosen.append(_varied(prompt, f"Request {time + 1}.", f"-{time + 1}") if time else prompt)
    return tuple(chosen)


def warmup(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """Prompts for a warm-up: like those of the load, but with another beginning each."""
    return tuple(
        _varied(prompts[n % len(prompts)], f"Warm-up {n + 1}.", f"-warm-{n + 1}") for n in range(count)
    )


def _varied(prompt: Prompt, line: str, suffix: str) -> Prompt:
    return replace(prompt, id=prompt.id + suffix, text=f"{line}\n{prompt.text}")


def digest_of(prompts: Iterable[Prompt]) -> Digest:
    """What was asked, exactly: changes with any text, answer, order or token id."""
    asked = [[p.id, p.kind, p.text, p.answer, list(p.also), p.ids] for p in prompts]
    return Digest.of(json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode())


# ---------------------------------------------------------------- answers

_ANSWER = re.compile(r"answer\s*(?:\**|is)?\s*:+\s*\**\s*(.+)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:[,\s]\d{3})+|\d+)(?:\.\d+)?(?!\d)")


def is_correct(prompt: Prompt, reply: str) -> bool:
    """Whether a known-answer task is solved, by what follows the last "Answer:", else by the last line."""
    said = _ANSWER.findall(reply)
    lines = [line for line in reply.splitlines() if line.strip()]
    given = said[-1] if said else (lines[-1] if lines else "")
    return any(_same(_plain(given), _plain(right)) for right in (prompt.answer, *prompt.also))


def _plain(text: str) -> str:
    """Without case, markup, quotes, articles and a final stop."""
    text = unicodedata.normalize("NFKC", text).casefold().strip()
    text = re.sub(r"\\(?:boxed|text|mathrm)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"[*_`$\"'“”‘’«»\[\]{}]|\\[()\[\]]", "", text).strip(" .!")
    text = re.sub(r"^(?:the|a|an)\s+", "", text)
    return re.sub(r"\s+", " ", text)


def _same(given: str, right: str) -> bool:
    if given == right or re.split(r"\s*,\s*", given) == re.split(r"\s*,\s*", right):
        return True
    wanted = _number(right)
    found = _NUMBER.match(given)
    if wanted is None or found is None:
        return False
    rest = given[found.end() :].strip()
    unit = not rest or bool(re.fullmatch(r"[^\d]{1,24}", rest))  # "170 km", "12 screws"
    return unit and _number(found[0]) == wanted


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(re.sub(r"[,\s]", "", text))
    except InvalidOperation:
        return None
