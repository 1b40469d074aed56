"""Putting any text into a Dockerfile, quoted for the place where it lands.

A Dockerfile is read line by line before anything else is understood, so no quoting can carry a line break:
what would need one is refused (`NotExpressible`), but for comments, where it is made visible.
Source: BuildKit, frontend/dockerfile: parser/parser.go, parser/line_parsers.go, shell/lex.go.
"""

from __future__ import annotations

import json
import re
import shlex

# Where the parser ends a line (\n; a trailing \r is dropped), and what terminals and editors take for one.
_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")


class NotExpressible(ValueError):
    """A Dockerfile cannot hold this text."""


def one_line(text: str) -> str:
    """The text, if it is of one line; NotExpressible otherwise."""
    found = _BREAKS.search(text)
    if found:
        raise NotExpressible(f"a Dockerfile cannot hold the character {found[0]!r}, as in {text[:60]!r}")
    return text


def value(text: str) -> str:
    r"""A value of ENV, LABEL, ARG, WORKDIR or USER: in double quotes, nothing in it expanded.

    Between double quotes the builder takes \\, \" and \$ for the characters, and all others as they are.
    """
    return '"' + re.sub(r'([\\"$])', r"\\\1", one_line(text)) + '"'


def exec_form(words: tuple[str, ...]) -> str:
    """The JSON form of ENTRYPOINT and CMD, which no shell reads and in which nothing is expanded."""
    return json.dumps(list(words), ensure_ascii=True)


def shell_word(text: str) -> str:
    """One word of a RUN command, which /bin/sh reads.

    NotExpressible also for `<<`: the builder looks for here-documents before the shell sees any quotes.
    """
    if "<<" in text:
        raise NotExpressible(f"a RUN command cannot hold '<<', as in {text[:60]!r}")
    one_line(text)
    return text if _PLAIN_WORD.fullmatch(text) else shlex.quote(text)


def comment(text: str) -> str:
    """Text in a comment: breaks and other controls as escapes, no backslash at the end."""
    return _BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), text).rstrip("\\ ")
