"""Results on disk: below ./results, one folder for each image, in it one for each acceptance.

    results/<64 digits of the config digest>/20261130T121314Z/
        verdict.json   the record (schema), what `push` and `deploy` ask for
        report.md      for people          report.html   the same with pictures, one file
        run.json.gz    everything that was measured

A folder without a verdict is of a run that was killed: its measurements are there as far as they came.
Nothing is half-written: every file is written beside its place, synced and renamed.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.accept import codec
from imagebuilder.accept.model import RunResult, Scenario
from imagebuilder.accept.record import SCHEMA, Record, make_record
from imagebuilder.accept.report import html, markdown
from imagebuilder.accept.verdict import judge
from imagebuilder.errors import ArtefactUnusable, NotAccepted, UsageProblem
from imagebuilder.files import check_writable, new_file
from imagebuilder.values import Digest

REHEARSALS = "rehearsals"
BROKEN_OFF = "broken off"
"""What a result without a verdict is called everywhere."""
VERDICT, RUN, MARKDOWN, HTML = "verdict.json", "run.json.gz", "report.md", "report.html"
_OTHER_RESULTS = "run it where you may write, or name another folder with --results"
_HEX = re.compile(r"[0-9a-f]{64}")
_MOST_RUN = 1 << 30
_MOST_RECORD = 1 << 26
"""Bytes of JSON that are read at most; a run of a day has some tens of MB."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A result on disk. record None: the run was killed before it was judged."""

    folder: Path
    record: Record | None

    @property
    def name(self) -> str:
        """As `find` takes it: the image's first twelve digits and the time."""
        return f"{self.folder.parent.name[:12]}/{self.folder.name}"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.folder / HTML


def folder_of(root: Path, run: RunResult) -> Path:
    """Where this run belongs; the same while it goes on."""
    image = _folder_name(run.config_digest)
    stamp = re.sub(r"[^0-9T]", "", run.started.partition(".")[0].partition("+")[0])
    name = stamp + "Z" if run.config_digest else f"{run.stack}-{stamp}Z"
    return root / image / name


def _folder_name(config_digest: str | None) -> str:
    return Digest(config_digest).hex if config_digest else REHEARSALS


def keep(root: Path, run: RunResult) -> Path:
    """Write what was measured so far; returns the folder. Called after every unit."""
    folder = folder_of(root, run)
    for left in folder.glob(".*.*"):  # half a file of a run that was killed; a folder has one writer
        left.unlink(missing_ok=True)
    packed = gzip.compress(codec.dumps(run).encode(), compresslevel=6, mtime=0)
    _write(folder / RUN, packed)
    return folder


def save(root: Path, run: RunResult) -> Stored:
    """Judge a run and write everything: measurements, verdict, reports."""
    folder = keep(root, run)
    reference = run.scenario.require.no_regression_against
    earlier = find_run(root, reference, other_than=folder) if reference else None
    verdict = judge(run, earlier)
    before = tuple(
        stored.record.outcome
        for stored in of_image(root, run.config_digest)
        if stored.folder != folder and stored.record and stored.record.started < run.started
    )
    record = make_record(run, verdict, before)
    _write(folder / MARKDOWN, markdown(run, record).encode())
    _write(folder / HTML, html(run, record).encode())
    _write(folder / VERDICT, (codec.dumps(record, indent=2) + "\n").encode())
    return Stored(folder=folder, record=record)


def check_results_place(root: Path, config_digest: str | None) -> None:
    """MachineLacks where no result of this image can be kept: asked before a server is started."""
    check_writable(root / _folder_name(config_digest) / "result", _OTHER_RESULTS)


def _write(path: Path, data: bytes) -> None:
    with new_file(path, _OTHER_RESULTS) as out:
        out.write(data)


# ---------------------------------------------------------------- reading


def all_results(root: Path) -> list[Stored]:
    """Every result, oldest first. ArtefactUnusable for one that cannot be read."""
    images = [p for p in _folders(root) if _HEX.fullmatch(p.name) or p.name == REHEARSALS]
    found = [_stored(folder) for image in images for folder in _folders(image)]
    return sorted(found, key=lambda s: (s.record.started if s.record else s.folder.name, s.name))


def of_image(root: Path, config_digest: str | None) -> list[Stored]:
    """The results of one image, oldest first."""
    if config_digest is None:
        return []
    return [_stored(folder) for folder in sorted(_folders(root / Digest(config_digest).hex))]


def _folders(parent: Path) -> Iterable[Path]:
    return [p for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []


def _stored(folder: Path) -> Stored:
    path = folder / VERDICT
    if not path.is_file():
        return Stored(folder=folder, record=None)
    if path.stat().st_size > _MOST_RECORD:
        raise _unusable(path, "it is larger than any verdict")
    try:
        record = codec.loads(Record, path.read_bytes())
    except ValueError as error:
        raise _unusable(path, str(error)) from None
    if record.schema != SCHEMA:
        raise _unusable(path, f"schema {record.schema}; this imagebuilder reads {SCHEMA}")
    if _folder_name(record.config_digest) != folder.parent.name:
        raise _unusable(path, f"it speaks of {record.config_digest or 'no image'}, which is not its folder's")
    return Stored(folder=folder, record=record)


def _unusable(path: Path, why: str) -> ArtefactUnusable:
    return ArtefactUnusable(
        f"{path} is not a result", seen=why[:500], hint=f"remove {path.parent}, or accept the image again"
    )


def read_run(folder: Path) -> RunResult:
    """Everything that was measured. ArtefactUnusable where it is not there or not whole."""
    path = folder / RUN
    try:
        with gzip.open(path) as packed:
            text = packed.read(_MOST_RUN + 1)
        if len(text) > _MOST_RUN:
            raise ValueError("it is larger than any run")
        return codec.loads(RunResult, text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise _unusable(path, str(error)) from None


def find(root: Path, name: str, *, other_than: Path | None = None) -> Stored | None:
    """The result of this name: a stack's, an image's (first digits of its digest), or one by its own name.

    Of several the latest that passed, else the latest. other_than: a folder that does not count.
    """
    wanted = name.removeprefix("sha256:")
    judged = [s for s in all_results(root) if s.record and s.folder != other_than]
    named = [s for s in judged if _is_named(s, wanted)]
    passed = [s for s in named if s.record and s.record.outcome == "pass"]
    return next(reversed(passed or named), None)


def _is_named(stored: Stored, wanted: str) -> bool:
    image = stored.folder.parent.name
    by_digits = re.fullmatch(r"[0-9a-f]{6,64}", wanted) is not None and image.startswith(wanted)
    by_stack = stored.record is not None and stored.record.stack == wanted
    return by_stack or by_digits or stored.name == wanted


def stack_of(stored: Stored) -> str:
    """Of a result, also of one that was broken off; empty where nothing was measured."""
    if stored.record:
        return stored.record.stack
    try:
        return read_run(stored.folder).stack
    except ArtefactUnusable:
        return ""


def find_or_fail(root: Path, name: str) -> Stored:
    """As `find`; where none was judged, the latest that was broken off. UsageProblem where none is there."""
    stored = find(root, name)
    if stored is None:
        left = [s for s in reversed(all_results(root)) if not s.record]
        wanted = name.removeprefix("sha256:")
        stored = next((s for s in left if _is_named(s, wanted) or stack_of(s) == wanted), None)
    if stored is None:
        there = sorted({stack for s in all_results(root) if (stack := stack_of(s))})
        raise UsageProblem(
            f"there is no result of {name!r} below {root}",
            seen=", ".join(there) or "no results",
            hint="imagebuilder results",
        )
    return stored


def find_run(root: Path, name: str, *, other_than: Path | None = None) -> RunResult | None:
    """The measurements of a named result."""
    stored = find(root, name, other_than=other_than)
    return read_run(stored.folder) if stored else None


def still_passes(root: Path, config_digest: str | None, scenario: Scenario) -> Stored | None:
    """The latest result, where it is a pass of the same image and scenario; without image: of a rehearsal."""
    if config_digest is None:
        folders = [p for p in _folders(root / REHEARSALS) if p.name.startswith(f"{scenario.stack}-")]
        found = [_stored(folder) for folder in sorted(folders)]
    else:
        found = of_image(root, config_digest)
    last = next((s for s in reversed(found) if s.record and s.record.stack == scenario.stack), None)
    if last is None or last.record is None or last.record.outcome != "pass":
        return None
    return last if read_run(last.folder).scenario == scenario else None


def _rehearsed(root: Path) -> str:
    """That there are only rehearsals, for whoever took one for an acceptance."""
    stacks = sorted({folder.name.rpartition("-")[0] for folder in _folders(root / REHEARSALS)})
    if not stacks:
        return ""
    return (
        f" but rehearsals of {', '.join(stacks)}, which never accept an image: they run without it (process)"
    )


def accepted(root: Path, config_digest: Digest) -> Stored:
    """The acceptance of an image, for whoever gives it to others. NotAccepted where there is none.

    The latest judged run decides: an image that passed once and failed later is not accepted.
    """
    judged = [s for s in of_image(root, config_digest.text) if s.record]
    if not judged:
        raise NotAccepted(
            f"the image {config_digest} was never accepted",
            seen=f"no result below {root}{_rehearsed(root)}",
            hint="imagebuilder accept STACK; or --unaccepted",
        )
    last = judged[-1]
    record = last.record
    if record is None or not record.accepts:
        raise NotAccepted(
            f"the image {config_digest} is not accepted",
            seen=f"{record.outcome} on {record.started}: {record.headline}" if record else "",
            wanted="pass",
            hint=f"read {last.report}; or --unaccepted",
        )
    return last
