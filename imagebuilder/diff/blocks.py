"""A comparison as blocks in the order of reading, for any form of output. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagebuilder.diff.model import (
    AbiMove,
    Diff,
    FileMove,
    FindingMove,
    LayerSharing,
    Move,
    PackageMove,
    SettingMove,
)

SIGNS = {
    "upgraded": "↑", "downgraded": "↓", "renamed": "⇄", "rebuilt": "~", "patched": "~", "moved": "→",
    "added": "+", "removed": "-", "appeared": "+", "vanished": "-", "changed": "~",
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
_NAMED = 3  # symbols of a library that are named in its row


@dataclass(frozen=True, kw_only=True)
class Block:
    """A heading with a table, or with lines. name: says what it is; empty: the summary.

    columns: headings of the table, empty texts where there are none. Rows may be shorter than the widest. The
    first cell of a row begins with a sign and a space where a move has one.
    """

    name: str
    heading: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Rows or lines."""
        return len(self.rows) or len(self.lines)


def blocks(diff: Diff, *, most: int) -> Iterator[Block]:
    """What matters to a release manager first. most: rows of a block that are shown; the rest is counted."""
    yield _summary(diff)
    if diff.old.acceptance or diff.new.acceptance:
        yield _acceptance(diff)
    if diff.findings:
        yield _findings(diff.findings, most)
    for kind, heading in (("wheel", "Python packages"), ("deb", "Debian packages")):
        if moves := [m for m in diff.packages or () if m.kind == kind]:
            yield _packages(f"packages-{kind}", heading, moves, most)
    if diff.gpu:
        yield _gpu(diff, most)
    if diff.abi:
        yield _abi(diff.abi, most)
        if used := [m for m in diff.abi if m.used]:
            yield _used(used, most)
    for section, heading in _SECTIONS.items():
        if settings := [m for m in diff.settings if m.section == section]:
            yield _settings(section, heading, settings, most)
    if diff.layers and (diff.layers.pulled or diff.layers.dropped):
        yield _layers(diff.layers, most)
    if diff.files:
        yield _files(diff, most)
    if diff.notes:
        yield Block(name="notes", heading="Not compared", lines=diff.notes)


def _summary(diff: Diff) -> Block:
    rows: list[tuple[str, ...]] = [
        (line.name, line.old or "–", line.new or "–", "" if line.same else "*") for line in diff.headlines
    ]
    if diff.layers:
        exact = "" if diff.layers.exact else "about "
        shared = (
            f"{len(diff.layers.shared)} of {len(diff.layers.shared) + len(diff.layers.pulled)} layers shared"
        )
        rows.append(("to pull", "", f"{exact}{human(diff.layers.pulled_bytes)}, {shared}", ""))
    return Block(name="", columns=("", diff.old.label, diff.new.label, ""), rows=tuple(rows))


def _acceptance(diff: Diff) -> Block:
    old, new = diff.old.acceptance, diff.new.acceptance
    rows: list[tuple[str, ...]] = [
        ("verdict", old.verdict if old else "none", new.verdict if new else "none")
    ]
    before, after = (dict(side.figures) if side else {} for side in (old, new))
    rows += [(name, before.get(name, "–"), after.get(name, "–")) for name in dict.fromkeys((*before, *after))]
    columns = ("", diff.old.label, diff.new.label)
    return Block(name="acceptance", heading="Acceptance", columns=columns, rows=tuple(rows))


def _findings(moves: Sequence[FindingMove], most: int) -> Block:
    counted = Counter(m.move for m in moves)
    heading = "Findings: " + ", ".join(
        f"{counted[word]} {word}" for word in ("appeared", "vanished", "changed") if counted[word]
    )
    rows = [
        (
            f"{SIGNS[m.move]} {m.severity}",
            m.code,
            m.place,
            m.note or (m.new or m.old or ""),
        )
        for m in moves[:most]
    ]
    return _table("findings", heading, ("", "code", "place", ""), rows, len(moves) - most)


def _packages(name: str, heading: str, moves: Sequence[PackageMove], most: int) -> Block:
    counted = Counter(m.move for m in moves)
    heading += ": " + ", ".join(f"{counted[move]} {words}" for move, words in WORDS.items() if counted[move])
    rows = [
        (
            f"{SIGNS[m.move]} {m.name}",
            m.old.version if m.old else "",
            m.new.version if m.new else "",
            ", ".join(m.notes),
        )
        for m in moves[:most]
    ]
    return _table(name, heading, ("", "from", "to", ""), rows, len(moves) - most)


def _gpu(diff: Diff, most: int) -> Block:
    """By package where its libraries agree, else by library."""
    rows: dict[tuple[str, ...], None] = {}
    for g in diff.gpu:
        same = {(x.gained, x.lost) for x in diff.gpu if x.package == g.package}
        what = "" if len(same) == 1 else g.library
        rows[(g.package, what, " ".join(g.gained), " ".join(g.lost))] = None
    columns = ("package", "library", "gained", "lost")
    return _table("gpu", "GPU code", columns, list(rows)[:most], len(rows) - most)


def _abi(moves: Sequence[AbiMove], most: int) -> Block:
    """A row for each library that both sides have; those that are new or gone by package."""
    rows = [
        (
            f"{SIGNS['changed']} {m.package}",
            m.library.rpartition("/")[2],
            f"+{len(m.gained)}" if m.gained else "",
            f"-{len(m.lost)}" if m.lost else "",
            str(len(m.used)) if m.used else "",
            ", ".join(_abi_notes(m)),
        )
        for m in moves
        if m.state == "changed"
    ]
    for state in ("removed", "added"):
        by_package: dict[str, list[AbiMove]] = {}
        for m in moves:
            if m.state == state:
                by_package.setdefault(m.package, []).append(m)
        for package, of in by_package.items():
            names = [m.library.rpartition("/")[2] for m in of]
            gained, lost, used = (
                sum(map(len, column))
                for column in zip(*((m.gained, m.lost, m.used) for m in of), strict=True)
            )
            rows.append(
                (
                    f"{SIGNS[state]} {package}",
                    names[0] if len(names) == 1 else f"{len(names)} libraries",
                    f"+{gained}" if gained else "",
                    f"-{lost}" if lost else "",
                    str(used) if used else "",
                    _first(names) if len(names) > 1 else "",
                )
            )
    unique = list(dict.fromkeys(rows))
    columns = ("", "library", "gained", "lost", "in use", "")
    return _table("abi", "Dynamic symbols", columns, unique[:most], len(unique) - most)


def _abi_notes(move: AbiMove) -> Iterator[str]:
    if move.moved:
        yield f"{len(move.moved)} symbols under another version"
    versions = [f"-{v}" for v in move.defines_lost] + [f"+{v}" for v in move.defines_gained]
    if versions:
        yield f"defines {_first(versions)}"
    for kind, old, new in move.needs:
        yield f"needs {kind} {old or '–'} → {new or '–'}"


def _used(moves: Sequence[AbiMove], most: int) -> Block:
    """Lost symbols that another package of the old side refers to."""
    found = [
        (f"- {m.library.rpartition('/')[2]}", _first(by), symbol)
        for m in moves
        for symbol, by in sorted(m.used.items())
    ]
    heading = "Lost symbols that other packages used"
    columns = ("was in", "used by", "symbol")
    return _table("abi-used", heading, columns, found[:most], len(found) - most)


def _settings(name: str, heading: str, moves: Sequence[SettingMove], most: int) -> Block:
    rows = []
    for m in moves[:most]:
        sign = "+" if m.old is None else "-" if m.new is None else "~"
        values = [_short(v) for v in (m.old, m.new) if v is not None]
        rows.append((f"{sign} {m.name}", " → ".join(values)))
    return _table(name, heading, ("", ""), rows, len(moves) - most)


def _layers(layers: LayerSharing, most: int) -> Block:
    rows = [("=", human(layers.shared_bytes), f"{len(layers.shared)} layers are there already")]
    pulled = sorted(layers.pulled, key=lambda x: -x.size)
    rows += [("+", human(layer.size), layer.title) for layer in pulled[:most]]
    return _table("layers", "Layers", ("", "size", "layer"), rows, len(pulled) - most)


def _files(diff: Diff, most: int) -> Block:
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
    heading = f"Files: {_moves_line(Counter(m.move for m in diff.files))}"
    return Block(name="files", heading=heading, lines=tuple(lines))


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


def _first(words: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more


def _table(
    name: str, heading: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], rest: int
) -> Block:
    more = [(f"… and {rest} more",)] if rest > 0 else []
    return Block(name=name, heading=heading, columns=columns, rows=(*rows, *more))
