"""What this machine's apt is configured with: `sources.list`, `sources.list.d/*.list` and `*.sources`.

Source: sources.list(5). Only what can be asked over HTTP counts; a line that cannot be understood is passed
over, as apt's own messages are the place to complain about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^deb\s+(?:\[[^]]*]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>(?:\s+\S+)*)\s*$")


@dataclass(frozen=True, kw_only=True)
class AptSource:
    """An enabled source of binary packages: base address without a slash at the end, and its suites."""

    uri: str
    suites: tuple[str, ...]


def read_apt_sources(folder: Path) -> tuple[AptSource, ...]:
    """The sources below an apt configuration folder (`/etc/apt`), in apt's order; unreadable: none."""
    found: list[AptSource] = []
    parts = folder / "sources.list.d"
    files = [folder / "sources.list"]
    if parts.is_dir():
        files += sorted(path for path in parts.iterdir() if path.suffix in {".list", ".sources"})
    for path in files:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found += _deb822(text) if path.suffix == ".sources" else _one_line(text)
    return tuple(dict.fromkeys(found))


def _one_line(text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        match = _LINE.match(line.partition("#")[0].strip())
        if match:
            yield from _source(match["uri"], (match["suite"],))


def _deb822(text: str) -> Iterator[AptSource]:
    from debian.deb822 import Deb822

    for paragraph in Deb822.iter_paragraphs(text, use_apt_pkg=False):
        enabled = str(paragraph.get("Enabled", "yes")).strip().lower()
        if enabled in {"no", "false", "0", "off", "without", "disable"}:
            continue
        if "deb" in str(paragraph.get("Types", "")).split():
            for uri in str(paragraph.get("URIs", "")).split():
                yield from _source(uri, tuple(str(paragraph.get("Suites", "")).split()))


def _source(uri: str, suites: tuple[str, ...]) -> Iterator[AptSource]:
    # A suite that ends in a slash is an exact path without components: never the Debian archive.
    if uri.startswith(("http://", "https://")) and suites and not any(s.endswith("/") for s in suites):
        yield AptSource(uri=uri.rstrip("/"), suites=suites)
