"""Any text goes through the quoting and comes out of a reader of Dockerfiles, or a shell, as it was."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.dockerfile import quoting
from tests.dockerfile.parser import unquoted, words

LINE = st.text(st.characters(blacklist_categories=["Cs"])).filter(lambda t: not quoting._BREAKS.search(t))
ANY = st.text(st.characters(blacklist_categories=["Cs"]))


@given(LINE, LINE)
def test_values_come_back(first: str, second: str) -> None:
    line = f"A={quoting.value(first)} B={quoting.value(second)}"
    assert [unquoted(w, {}) for w in words(line)] == [f"A={first}", f"B={second}"]


@given(ANY)
def test_exec_form_is_one_line_of_json(text: str) -> None:
    written = quoting.exec_form((text, "--flag"))
    assert "\n" not in written and written.isascii()
    assert json.loads(written) == [text, "--flag"]


@given(ANY)
def test_a_comment_is_one_line_and_does_not_continue(text: str) -> None:
    written = quoting.comment(text)
    assert len(f"x{written}x".splitlines()) == 1
    assert not written.endswith("\\")


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "$(id)",
        "`id`",
        "$HOME",
        "it's",
        '"',
        "\\",
        "*",
        "~",
        "a\\",
        "--flag",
        "é☃",
        "{{ x }}",
        "#x",
        "",
        "&& ls",
        ";",
    ],
)
def test_the_shell_takes_a_word_as_it_is(text: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"printf %s {quoting.shell_word(text)}"], capture_output=True, check=True, text=True
    )
    assert done.stdout == text


@pytest.mark.parametrize("text", ["a\nRUN id", "a\rb", "\x00", "a\u2028b", "a\x85b"])
def test_what_breaks_a_line_is_refused(text: str) -> None:
    for quote in (quoting.value, quoting.shell_word):
        with pytest.raises(quoting.NotExpressible):
            quote(text)


def test_a_here_document_cannot_be_smuggled_into_a_command() -> None:
    with pytest.raises(quoting.NotExpressible):
        quoting.shell_word("x<<EOF")
