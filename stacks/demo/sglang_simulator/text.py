"""What the simulated model says: tokens are words; the reply is a function of the prompt."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

_TOKEN = re.compile(r"\s*\S+")
_WORDS = tuple(
    """the of to and in is that it for as with on be at by this which or from are an not can was one all when
    will more about time there other than into its only some could new them would first after also two how
    then little state good world where very through still being between many before must because under since
    part place same right while system number always function value each list result server token layer
    memory kernel graph batch draft step cache queue request answer model weight image wheel index symbol
    """.split()  # noqa: SIM905 - one word a line helps nobody
)
_LONGEST = 640
"""Tokens of the longest reply, before a request's own limit."""


def tokens_of(text: str) -> list[str]:
    """The tokens of a text, which joined are the text again but for trailing space."""
    return _TOKEN.findall(text)


def key_of(prompt: str) -> str:
    """What a known answer is filed under: 16 hexadecimal digits of the prompt's sha256."""
    return hashlib.sha256(prompt.strip().encode()).hexdigest()[:16]


def kind_of(prompt: str) -> str:
    """A guess of what kind of prompt this is, by its looks."""
    if sum(ord(c) > 0x2E7F or 0xC0 <= ord(c) < 0x2000 for c in prompt) > len(prompt) / 100:
        return "multilingual"
    if len(prompt) > 550:
        return "summaries"
    if re.search(
        r"```|`\w+\(|\b(function|Python|SQL|Rust|script|regular expression|class|Dockerfile)\b", prompt
    ):
        return "code"
    if re.search(
        r"\d.*\d|\b(solve|prove|compute|probability|square root|equation|irrational)\b", prompt, re.I
    ):
        return "maths"
    return "chat"


@dataclass(frozen=True)
class Reply:
    """A whole reply: its tokens, and whether it ends by itself. kind: of the prompt."""

    tokens: tuple[str, ...]
    kind: str


class Speaker:
    """Makes replies. Two greedy replies to one prompt are equal, but for a share that leaves the text."""

    def __init__(self, *, seed: int, divergence: float, wrong: float) -> None:
        self._divergence, self._wrong = divergence, wrong
        self._random = random.Random(f"divergence {seed}")
        path = Path(__file__).with_name("answers.json")
        self._answers: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}

    def reply(self, prompt: str) -> Reply:
        """What is said to this prompt, to its natural end."""
        answer = self._answers.get(key_of(prompt))
        if answer is not None:
            return Reply(tokens=tuple(tokens_of(self._solved(prompt, answer))), kind="known")
        words = random.Random(key_of(prompt))
        length = words.randrange(_LONGEST // 2, _LONGEST)
        tokens = [f" {words.choice(_WORDS)}" for _ in range(length)]
        if self._random.random() < self._divergence:
            at = self._random.randrange(len(tokens))
            tokens[at:] = [f" {self._random.choice(_WORDS)}" for _ in tokens[at:]]
        return Reply(tokens=tuple(tokens), kind=kind_of(prompt))

    def _solved(self, prompt: str, answer: str) -> str:
        words = random.Random(key_of(prompt))
        way = " ".join(words.choice(_WORDS) for _ in range(words.randrange(6, 20)))
        if random.Random(f"wrong {key_of(prompt)}").random() < self._wrong:
            answer = words.choice(_WORDS)
        return f"Step by step: {way}.\nAnswer: {answer}"
