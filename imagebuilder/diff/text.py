"""A comparison as text for a terminal, or as Markdown for a pull request. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from imagebuilder.diff.model import Diff, FileMove, LayerSharing, Move, PackageMove, SettingMove

SIGNS = {
    "upgraded": "↑", "downgraded": "↓", "renamed": "⇄", "rebuilt": "~", "patched": "~", "moved": "→",
    "added": "+", "removed": "-",
}  # fmt: skip
WORDS: dict[Move, str] = {
    "upgraded": "upgraded", "downgraded": "downgraded", "renamed": "renamed",
    "rebuilt": "other file, same version", "patched": "other patches", "moved": "from another index",
    "added": "added", "removed": "removed",
}  # fmt: skip
_SECTIONS = {
    "override": "Overrides", "patch": "Patches", "waiver": "Waivers", "index": "Indexes",
    "system": "System packages", "env": "Environment", "image": "Start", "label": "Labels",
    "file": "Files of the stack",
}  # fmt: skip
_LONGEST = 100

Table = tuple[Sequence[str], list[tuple[str, ...]]]


def blocks(diff: Diff, *, most: int) -> Iterator[tuple[str, Table | list[str]]]:
    """(heading, a table or lines) in the order of reading: what matters to a release manager first.

    most: rows of a block that are shown; the rest is counted.
    """
    yield "", _summary(diff)
    if diff.old.acceptance or diff.new.acceptance:
        yield "Acceptance", _acceptance(diff)
    wheels = [m for m in diff.packages or () if m.kind == "wheel"]
    debs = [m for m in diff.packages or () if m.kind == "deb"]
    if wheels:
        yield _count_line("Python packages", wheels), _packages(wheels, most)
    if debs:
        yield _count_line("Debian packages", debs), _packages(debs, most)
    if diff.gpu:
        yield "GPU code", _gpu(diff, most)
    for section, heading in _SECTIONS.items():
        moves = [m for m in diff.settings if m.section == section]
        if moves:
            yield heading, _settings(moves, most)
    if diff.layers and (diff.layers.pulled or diff.layers.dropped):
        yield "Layers", _layers(diff.layers, most)
    if diff.files:
        yield f"Files: {_moves_line(Counter(m.move for m in diff.files))}", _files(diff, most)
    if diff.notes:
        yield "Not compared", list(diff.notes)


def as_text(diff: Diff, *, most: int) -> str:
    """For a terminal: headings, and tables of aligned columns."""
    if diff.empty:
        return _nothing(diff)
    lines: list[str] = []
    for heading, body in blocks(diff, most=most):
        lines += ["", heading] if heading else []
        if isinstance(body, list):
            lines += [f"  {line}" for line in body]
        else:
            columns, rows = body
            lines += _aligned([tuple(columns), *rows] if any(columns) else rows)
    return "\n".join(lines) + "\n"


def as_markdown(diff: Diff, *, most: int) -> str:
    """For a pull request: the same blocks; long ones folded."""
    if diff.empty:
        return _nothing(diff)
    lines = [f"### {_cell(diff.old.label)} → {_cell(diff.new.label)}"]
    for heading, body in blocks(diff, most=most):
        rows = len(body) if isinstance(body, list) else len(body[1])
        fold = rows > 15
        if heading:
            lines += [
                "",
                f"<details><summary>{_cell(heading)}</summary>" if fold else f"**{_cell(heading)}**",
            ]
        lines.append("")
        if isinstance(body, list):
            lines += [f"- {_cell(line)}" for line in body]
        else:
            columns, table = body
            width = max([len(columns), *(len(row) for row in table)])
            for number, row in enumerate([tuple(columns), *table]):
                cells = (*row, *[""] * (width - len(row)))
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
                lines += ["|" + " --- |" * width] if number == 0 else []
        if heading and fold:
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _nothing(diff: Diff) -> str:
    lines = [f"no difference between {diff.old.label} and {diff.new.label}"]
    return "\n".join([*lines, *(f"  not compared: {note}" for note in diff.notes)]) + "\n"


# ---------------------------------------------------------------- blocks


def _summary(diff: Diff) -> Table:
    rows: list[tuple[str, ...]] = [
        (line.name, line.old or "–", line.new or "–", "" if line.same else "*") for line in diff.headlines
    ]
    if diff.layers:
        exact = "" if diff.layers.exact else "about "
        shared = (
            f"{len(diff.layers.shared)} of {len(diff.layers.shared) + len(diff.layers.pulled)} layers shared"
        )
        rows.append(("to pull", "", f"{exact}{human(diff.layers.pulled_bytes)}, {shared}", ""))
    return ("", diff.old.label, diff.new.label, ""), rows


def _acceptance(diff: Diff) -> Table:
    old, new = diff.old.acceptance, diff.new.acceptance
    rows: list[tuple[str, ...]] = [
        ("verdict", old.verdict if old else "none", new.verdict if new else "none")
    ]
    before, after = (dict(side.figures) if side else {} for side in (old, new))
    rows += [(name, before.get(name, "–"), after.get(name, "–")) for name in dict.fromkeys((*before, *after))]
    return ("", diff.old.label, diff.new.label), rows


def _count_line(heading: str, moves: Sequence[PackageMove]) -> str:
    counted = Counter(m.move for m in moves)
    return f"{heading}: " + ", ".join(
        f"{counted[move]} {words}" for move, words in WORDS.items() if counted[move]
    )


def _packages(moves: Sequence[PackageMove], most: int) -> Table:
    rows = [
        (
            f"{SIGNS[m.move]} {m.name}",
            m.old.version if m.old else "",
            m.new.version if m.new else "",
            ", ".join(m.notes),
        )
        for m in moves[:most]
    ]
    return ("", "from", "to", ""), _with_rest(rows, len(moves) - most)


def _gpu(diff: Diff, most: int) -> Table:
    """By package where its libraries agree, else by library."""
    rows: dict[tuple[str, ...], None] = {}
    for g in diff.gpu:
        same = {(x.gained, x.lost) for x in diff.gpu if x.package == g.package}
        what = "" if len(same) == 1 else g.library
        rows[(g.package, what, " ".join(g.gained), " ".join(g.lost))] = None
    return ("package", "library", "gained", "lost"), _with_rest(list(rows)[:most], len(rows) - most)


def _settings(moves: Sequence[SettingMove], most: int) -> Table:
    rows = []
    for m in moves[:most]:
        sign = "+" if m.old is None else "-" if m.new is None else "~"
        values = [_short(v) for v in (m.old, m.new) if v is not None]
        rows.append((f"{sign} {m.name}", " → ".join(values)))
    return ("", ""), _with_rest(rows, len(moves) - most)


def _layers(layers: LayerSharing, most: int) -> Table:
    rows = [("=", human(layers.shared_bytes), f"{len(layers.shared)} layers are there already")]
    pulled = sorted(layers.pulled, key=lambda x: -x.size)
    rows += [("+", human(layer.size), layer.title) for layer in pulled[:most]]
    return ("", "size", "layer"), _with_rest(rows, len(pulled) - most)


def _files(diff: Diff, most: int) -> list[str]:
    """By owner; single paths only where no package move explains them."""
    assert diff.files is not None, "only asked for where files differ"
    explained = {m.name for m in diff.packages or ()} | {m.old.name for m in diff.packages or () if m.old}
    by_owner: dict[str, list[FileMove]] = {}
    for move in diff.files:
        by_owner.setdefault(move.owner, []).append(move)
    lines = [
        f"{owner or 'no package'}: {_moves_line(Counter(m.move for m in moves))}"
        for owner, moves in sorted(by_owner.items(), key=lambda item: (not item[0], item[0]))
    ]
    loose = [m for m in diff.files if m.owner.removeprefix("debian:") not in explained]
    lines += [f"{SIGNS.get(m.move, '~')} /{m.path}" + _file_note(m) for m in loose[:most]]
    if len(loose) > most:
        lines.append(f"… and {len(loose) - most} more that no package explains")
    return lines


def _file_note(move: FileMove) -> str:
    size = f" {human(move.old.size)} → {human(move.new.size)}" if move.old and move.new else ""
    aspects = f" ({', '.join(move.aspects)}{size})" if move.aspects else ""
    return aspects + (f" of {move.owner}" if move.owner else "")


def _moves_line(counted: Counter[str]) -> str:
    return ", ".join(f"{counted[move]} {move}" for move in ("added", "removed", "changed") if counted[move])


# ---------------------------------------------------------------- form


def human(amount: float) -> str:
    """`1.72 GB`, in powers of ten, as registries count."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def _short(text: str) -> str:
    line = text.replace("\n", "⏎")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _with_rest(rows: Sequence[tuple[str, ...]], rest: int) -> list[tuple[str, ...]]:
    return [*rows, *([(f"… and {rest} more",)] if rest > 0 else [])]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    full = [row for row in rows if len(row) > 1]
    widths = [
        max((len(row[i]) for row in full if i < len(row)), default=0) for i in range(max(map(len, rows)))
    ]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join(cells if len(row) > 1 else row).rstrip())
    return lines


def _cell(text: str) -> str:
    """Text that Markdown and HTML take as text."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
