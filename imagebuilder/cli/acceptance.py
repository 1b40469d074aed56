"""Acceptance results below the current folder: asked by `push --channel` and `deploy`, attached, compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.values import Digest

if TYPE_CHECKING:
    from imagebuilder.accept.looks import Estimate
    from imagebuilder.accept.model import Scenario
    from imagebuilder.accept.record import Record
    from imagebuilder.diff.model import Accepted

RESULTS = "results"


def why_not_accepted(folder: Path, config: Digest) -> str | None:
    """None where the image has a passing acceptance below `folder`; else why it counts as none."""
    from imagebuilder.accept.results import accepted
    from imagebuilder.errors import NotAccepted

    try:
        accepted(folder / RESULTS, config)
    except NotAccepted as error:
        return error.seen or error.what
    return None


def acceptance_record(folder: Path, config: Digest) -> bytes | None:
    """The record that accepts the image, as it lies on disk; None where none does."""
    from imagebuilder.accept.results import VERDICT, accepted
    from imagebuilder.errors import NotAccepted

    try:
        return (accepted(folder / RESULTS, config).folder / VERDICT).read_bytes()
    except NotAccepted:
        return None


def accepted_scenario(folder: Path, config: Digest) -> Scenario | None:
    """What was run when the image was accepted; None where that is not kept below `folder`."""
    from imagebuilder.accept.results import accepted, read_run
    from imagebuilder.errors import ArtefactUnusable, NotAccepted

    try:
        return read_run(accepted(folder / RESULTS, config).folder).scenario
    except (ArtefactUnusable, NotAccepted):
        return None


def newest_acceptance(folder: Path, config: Digest | None, stack: str) -> Accepted | None:
    """The newest acceptance of this image below `folder`; of a stack, whose image is not known, its best."""
    from imagebuilder.accept.results import find, of_image

    root = folder / RESULTS
    if not root.is_dir():
        return None
    if config is None:
        stored = find(root, stack)
        return _figures(stored.record) if stored and stored.record else None
    judged = [s.record for s in of_image(root, config.text) if s.record]
    return _figures(judged[-1]) if judged else None


def _figures(record: Record) -> Accepted:
    from imagebuilder.accept.model import OF_THE_IMAGE
    from imagebuilder.diff.model import Accepted

    figures = {"date": record.started[:10], "GPUs": ", ".join(record.gpus), "driver": record.driver}
    for level in record.levels:
        for name, arm in (("baseline", level.baseline), ("EAGLE-3", level.eagle3)):
            figures[f"{name} tok/s at {level.level}"] = _shown(arm.throughput, 1)
            figures[f"{name} TTFT p99 ms at {level.level}"] = _shown(arm.ttft_p99, 0)
        figures[f"speedup at {level.level}"] = _shown(level.speedup, 2)
    figures["accept length"] = _shown(record.accept_length.overall, 2)
    verdict = record.outcome if record.runtime in OF_THE_IMAGE else f"{record.outcome} (rehearsal)"
    return Accepted(verdict=verdict, figures={name: text for name, text in figures.items() if text})


def _shown(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return ""
    text = f"{estimate.value:.{digits}f}"
    if estimate.shown:
        text += f" ({estimate.shown.low:.{digits}f} to {estimate.shown.high:.{digits}f})"
    return text
