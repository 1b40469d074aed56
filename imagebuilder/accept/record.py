"""The result of an acceptance in the form that is kept and published: small, without requests and texts.

Its JSON form carries `schema` and `kind`; a field is never renamed under one version, only added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imagebuilder.accept.answers import Answers
from imagebuilder.accept.divergence import Divergence
from imagebuilder.accept.figures import AcceptLength, LevelFigures
from imagebuilder.accept.model import OF_THE_IMAGE, RunResult
from imagebuilder.accept.requirement import Outcome, Requirement
from imagebuilder.accept.verdict import Verdict
from imagebuilder.errors import NotAccepted

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """What came out, for whom, on what. config_digest None: no image was run, so none is accepted.

    attempt: which acceptance of this image it was, from 1, and how the earlier ones came out: whoever tries
    again until it passes shows it. run_digest: of the measurements it was judged from.
    """

    schema: int = SCHEMA
    kind: Literal["acceptance"] = "acceptance"
    imagebuilder: str
    stack: str
    config_digest: str | None
    manifest_digest: str | None
    runtime: str
    started: str
    ended: str
    model: str
    draft: str
    gpus: tuple[str, ...]
    driver: str
    pairing: str
    units: int
    planned_units: int
    attempt: int = 1
    before: tuple[Outcome, ...] = ()
    outcome: Outcome
    headline: str
    failure: str
    requirements: tuple[Requirement, ...]
    levels: tuple[LevelFigures, ...]
    accept_length: AcceptLength
    answers: Answers | None
    divergence: Divergence | None
    notes: tuple[str, ...]

    @property
    def accepts(self) -> bool:
        """Whether this is a pass of an image, not of a rehearsal."""
        return self.outcome == "pass" and self.config_digest is not None and self.runtime in OF_THE_IMAGE


def make_record(run: RunResult, verdict: Verdict, before: tuple[Outcome, ...] = ()) -> Record:
    """The record of a judged run. before: outcomes of earlier acceptances of the same image."""
    return Record(
        imagebuilder=run.imagebuilder,
        stack=run.stack,
        config_digest=run.config_digest,
        manifest_digest=run.manifest_digest,
        runtime=run.runtime,
        started=run.started,
        ended=run.ended,
        model=run.scenario.model,
        draft=run.scenario.draft,
        gpus=tuple(gpu.name for gpu in run.host.gpus),
        driver=run.host.driver,
        pairing=run.scenario.load.pairing,
        units=run.units,
        planned_units=run.planned_units,
        attempt=len(before) + 1,
        before=before,
        outcome=verdict.outcome,
        headline=verdict.headline,
        failure=run.failure,
        requirements=verdict.requirements,
        levels=verdict.levels,
        accept_length=verdict.accept_length,
        answers=verdict.answers,
        divergence=verdict.divergence,
        notes=verdict.notes,
    )


def require_pass(record: Record, report: str) -> None:
    """NotAccepted unless it is a pass. report: where the report lies."""
    if record.outcome == "pass":
        return
    rows = [r for r in record.requirements if r.counts and r.outcome == record.outcome]
    raise NotAccepted(
        f"{record.stack} is not accepted: {record.outcome}",
        seen="; ".join(f"{r.title}: {r.seen}" + (f" ({r.why})" if r.why else "") for r in rows),
        wanted="; ".join(f"{r.title}: {r.wanted}" for r in rows),
        hint=f"read {report}",
    )
