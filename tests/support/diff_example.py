"""The example in docs/86-diff.md: two shipped stacks, compared where the cache knows no wheel of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.command import ROOT, Machine

PAGE = ROOT / "docs" / "86-diff.md"
BEGIN, END = "<!-- begin: example -->\n", "<!-- end: example -->\n"
WORDS = ("diff", "cu128-debian", "cu130-debian", "--most", "100")


def example() -> str:
    """What the command prints, as a block of code."""
    with tempfile.TemporaryDirectory() as folder:
        done = Machine(root=Path(folder)).run(*WORDS)
    assert done.code == 0, done.err
    return "".join(f"    {line}\n" if line else "\n" for line in done.out.splitlines())


def insert_example(page: str) -> str:
    """The page with the example as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{example()}\n{END}{after}"
