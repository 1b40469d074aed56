"""Where in the text of a stack file a finding belongs: the line that a change would edit. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from imagebuilder.checks.model import Finding

_INDEXED = re.compile(r"(\w+)\[(\d+)\]")


def line_of(finding: Finding, text: str) -> int:
    """The line (from 1): of the key, else the first that names the package, else the first of all."""
    lines = text.splitlines()
    found = _of_key(finding.key, lines) if finding.key else 0
    for package in (finding.package, finding.other):
        found = found or (_of_package(package, lines) if package else 0)
    return found or 1


def _of_key(key: str, lines: Sequence[str]) -> int:
    """`env.NAME`, `target.driver`, `override[2].requirement`, `acceptance.eagle3.arguments`, `base`."""
    first, *rest = key.split(".")
    indexed = _INDEXED.fullmatch(first)
    at = 0
    if indexed:
        headers = [i for i, line in enumerate(lines, 1) if line.strip() == f"[[{indexed[1]}]]"]
        if len(headers) <= int(indexed[2]):
            return 0
        at = headers[int(indexed[2])]
    else:
        tables = [".".join([first, *rest[:depth]]) for depth in range(len(rest), -1, -1)]
        for table in tables:
            at = next((i for i, line in enumerate(lines, 1) if line.strip() == f"[{table}]"), 0)
            if at:
                rest = rest[table.count(".") :]
                break
    if not at or not rest:
        return at
    name = re.compile(rf"\s*\"?{re.escape(rest[0].partition('[')[0])}\"?\s*=")
    for i, line in enumerate(lines[at:], at + 1):
        if line.startswith("["):
            break
        if name.match(line):
            return i
    return at


def _of_package(package: str, lines: Sequence[str]) -> int:
    name = "[-_.]+".join(map(re.escape, package.split("-")))
    spelled = re.compile(rf"(?<![\w.-]){name}(?![\w-])", re.IGNORECASE)
    requiring = [i for i, line in enumerate(lines, 1) if "requirement" in line and spelled.search(line)]
    naming = [i for i, line in enumerate(lines, 1) if not line.startswith("#") and spelled.search(line)]
    return next(iter([*requiring, *naming]), 0)
