"""A judged run for people: Markdown, and one HTML page that needs nothing else. Pure but for its templates.

The page holds its own style and drawings, asks no network and runs no script; its policy forbids both. All
text goes through Jinja2's escaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from imagebuilder.accept.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from imagebuilder.accept.figures import LevelFigures
from imagebuilder.accept.model import ARMS, RunResult
from imagebuilder.accept.pictures import NAMES, busy, groups, level_label
from imagebuilder.accept.record import Record
from imagebuilder.accept.requirement import Requirement, percent, points, shown
from imagebuilder.stack import shipped_folder

FOLDER = "accept"
SIZE = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": WIDTH - RIGHT,
    "top": TOP,
    "bottom": HEIGHT - BOTTOM,
}
"""Of a chart, as its template draws it."""
_SECRET_OPTIONS = ("--api-key", "--admin-api-key")
_MOST_TEXT = 1200
"""Characters of a reply that are shown."""


def html(run: RunResult, record: Record) -> str:
    """The page."""
    return _render("report.html.j2", run, record)


def markdown(run: RunResult, record: Record) -> str:
    """The same without pictures, for a terminal, a pull request or a chat."""
    return _render("report.md.j2", run, record)


def _render(name: str, run: RunResult, record: Record) -> str:
    return str(environment().get_template(name).render(_variables(run, record)))


@cache
def environment() -> Any:
    """Of all templates of acceptances."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped_folder().parent / "templates" / FOLDER),
        undefined=jinja2.StrictUndefined,
        autoescape=lambda name: bool(name) and ".html" in str(name),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals["symbols"] = {"pass": "✓", "fail": "✕", "inconclusive": "?"}
    made.filters.update(
        shown=shown, percent=percent, points=points, share=_share, cell=_cell, clipped=_clipped, words=_words
    )
    return made


def _cell(text: object) -> str:
    """Inside a table of Markdown."""
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " …"


def _words(command: Sequence[str]) -> str:
    """A command as a shell would take it, without the values of keys."""
    import shlex

    hidden = list(command)
    for number, word in enumerate(command):
        option, equals, _ = word.partition("=")
        if option in _SECRET_OPTIONS:
            if equals:
                hidden[number] = f"{option}=(redacted)"
            elif number + 1 < len(command):
                hidden[number + 1] = "(redacted)"
    return shlex.join(hidden)


def _variables(run: RunResult, record: Record) -> dict[str, Any]:
    """What the templates can use."""
    return {
        "run": run,
        "record": record,
        "names": NAMES,
        "arms": ARMS,
        "main": _main(record),
        "requirements": sorted(record.requirements, key=_weight),
        "rows": [_row(figures) for figures in record.levels],
        "groups": groups(run, record),
        "environment": _facts(run),
        "starts": _starts(run),
        "size": SIZE,
        "highest_accept": max((length for _, length in record.accept_length.by_kind), default=1.0),
    }


def _main(record: Record) -> LevelFigures | None:
    """The level that the headline speaks of: the first that counts."""
    return next((f for f in record.levels if f.decisive and f.speedup), None)


def _weight(row: Requirement) -> tuple[bool, int]:
    """What went wrong first, what does not count last."""
    return not row.counts, ("fail", "inconclusive", "pass").index(row.outcome)


def _row(figures: LevelFigures) -> dict[str, Any]:
    return {
        "label": level_label(figures),
        "figures": figures,
        "arms": [(NAMES[arm], arm, figures.arm(arm)) for arm in ARMS],
    }


def _facts(run: RunResult) -> list[tuple[str, str]]:
    """The environment, as pairs of words."""
    host, scenario = run.host, run.scenario
    gpus: Mapping[str, int] = {gpu.name: sum(g.name == gpu.name for g in host.gpus) for gpu in host.gpus}
    facts = [
        ("image", run.config_digest or "none: a rehearsal in processes of this machine"),
        ("manifest", run.manifest_digest or ""),
        ("stack", run.stack),
        ("model", scenario.model),
        ("draft model", scenario.draft),
        ("GPUs", ", ".join(f"{n} × {name}" for name, n in gpus.items())),
        ("driver", f"{host.driver} (CUDA {host.cuda})" if host.driver and host.cuda else host.driver),
        ("under load", busy(host.samples)),
        ("host", host.machine),
        ("GPU readings", host.note),
        ("began", run.started),
        ("ended", run.ended),
        ("prompts", f"{len(run.prompts)}, {scenario.prompts}"),
        ("imagebuilder", run.imagebuilder),
        *(run.smoke.facts if run.smoke else ()),
    ]
    return [(name, value) for name, value in facts if value]


def _starts(run: RunResult) -> list[tuple[str, int, float, float | None]]:
    return [(NAMES[s.arm], s.start + 1, s.startup_s, s.accept_length) for s in run.servers]
