r"""A small reader of Dockerfiles, written from BuildKit's rules, to test what we write with another's eyes.

Lines are joined at a final backslash, comments are dropped wherever a line begins with #. ENV and LABEL are
split into words outside quotes; double quotes take \\ \" \$ for the characters; $ expands.
"""

from __future__ import annotations

import json
import re
from typing import Any

INSTRUCTIONS = {
    "ARG", "FROM", "ADD", "COPY", "RUN", "ENV", "LABEL", "EXPOSE", "USER", "WORKDIR", "ENTRYPOINT", "CMD"
}  # fmt: skip


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of each instruction."""
    found: list[tuple[str, str]] = []
    pending = ""
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if line.lstrip().startswith("#"):
            continue
        if not pending and not line.strip():
            continue
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1]
            continue
        whole = pending + line
        pending = ""
        name, _, rest = whole.strip().partition(" ")
        assert name in INSTRUCTIONS, f"not an instruction: {whole!r}"
        found.append((name, rest.strip()))
    assert not pending, "the file ends within an instruction"
    return found


def words(rest: str) -> list[str]:
    """The words of ENV and LABEL, quotes still on."""
    found, word, quoted, skip = [], "", False, False
    for char in rest:
        if skip:
            word, skip = word + char, False
        elif char == "\\":
            word, skip = word + char, True
        elif char == '"':
            word, quoted = word + char, not quoted
        elif char.isspace() and not quoted:
            if word:
                found.append(word)
            word = ""
        else:
            word += char
    assert not quoted, f"an open quote in {rest!r}"
    return [*found, word] if word else found


def unquoted(word: str, variables: dict[str, str]) -> str:
    """What the builder makes of a word."""
    out, place, quoted = "", 0, False
    while place < len(word):
        char = word[place]
        if char == '"':
            quoted = not quoted
        elif char == "\\" and quoted and word[place + 1 : place + 2] in ('"', "$", "\\"):
            place += 1
            out += word[place]
        elif char == "$":
            name = re.match(r"\$(?:\{(\w+)\}|(\w+))", word[place:])
            assert name, f"a lone $ in {word!r}"
            out += variables.get(name[1] or name[2], "")
            place += len(name[0]) - 1
        else:
            out += char
        place += 1
    return out


def image_of(text: str) -> dict[str, Any]:
    """env, labels, user, workdir, ports, entrypoint and cmd that a Dockerfile gives an image from scratch."""
    image: dict[str, Any] = {"env": {"PATH": "/bin"}, "labels": {}, "ports": []}
    for name, rest in instructions(text):
        if name in ("ENV", "LABEL"):
            target = image["env" if name == "ENV" else "labels"]
            before = dict(image["env"])
            for word in words(rest):
                key, equals, content = word.partition("=")
                assert equals, f"{name} without a value: {word!r}"
                target[unquoted(key, before)] = unquoted(content, before)
        elif name in ("USER", "WORKDIR"):
            image[name.lower()] = unquoted(rest, image["env"])
        elif name == "EXPOSE":
            image["ports"].append(rest)
        elif name in ("ENTRYPOINT", "CMD"):
            image[name.lower()] = json.loads(rest)
    return image
