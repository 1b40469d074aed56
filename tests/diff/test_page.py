"""The HTML page: whole, self-contained, and nothing in it can write markup."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from imagebuilder.diff.model import Diff, Headline, SettingMove, Side
from imagebuilder.diff.page import as_html
from tests.support.command import Outcome
from tests.support.small import Small

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = "</title></style><script>alert(1)</script>\"'&{{ 7 * 7 }}"


class Page(HTMLParser):
    """Tags in balance, and everything that would ask for something outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.outside: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.outside += [
            f"{tag} {k}" for k, _ in attrs if k in ("src", "href", "srcset") or k.startswith("on")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> in {self.open}"

    def handle_data(self, data: str) -> None:
        self.text += data


def page(settings: dict[str, str], label: str = "a") -> str:
    moves = tuple(SettingMove(section="env", name=n, old=None, new=v) for n, v in settings.items())
    return as_html(
        Diff(
            old=Side(label=label, kind="stack"),
            new=Side(label="b", kind="stack", identity="0123456789ab"),
            headlines=(Headline(name="CUDA", old="12.8", new="13.0"),),
            packages=None, settings=moves, gpu=(), layers=None, files=None, notes=("a: no lock",),
        ),
        most=1000,
    )  # fmt: skip


@pytest.mark.parametrize("place", ["label", "name", "value"])
def test_names_cannot_write_markup(place: str) -> None:
    text = page(
        {HOSTILE if place == "name" else "X": HOSTILE if place == "value" else "1"},
        HOSTILE if place == "label" else "a",
    )
    read = Page(text)
    assert "script" not in read.tags and not read.outside
    assert "alert(1)" in read.text and "{{ 7 * 7 }}" in read.text and "49" not in read.text


def test_it_needs_nothing_else() -> None:
    text = page({"A": "1"})
    read = Page(text)
    assert not read.outside and not {"script", "link", "img", "iframe"} & read.tags
    assert "default-src 'none'" in text and "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert all(
        word in read.text for word in ("CUDA", "13.0", "Environment", "+", "Not compared", "a: no lock")
    )


def test_a_long_block_is_folded() -> None:
    few, many = page({"A": "1"}), page({f"V{n}": "x" for n in range(200)})
    assert few.count("<details open>") == 2 and many.count("<details open>") == 1


def test_the_command_writes_it(imagebuilder: Callable[..., Outcome], small: Small) -> None:
    done = imagebuilder("lock", "s")
    assert done.code == 0, done.err
    done = imagebuilder("diff", "s", "demo", "--format", "html", "--output", "out/d.html")
    assert done.code == 0 and done.out == "", done.err
    text = (small.folder / "out" / "d.html").read_text()
    assert Page(text).text.count("Python packages") == 1
    same = imagebuilder("diff", "s", "s", "--format", "html").out
    assert "No difference." in Page(same).text
