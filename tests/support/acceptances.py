"""A result of an acceptance below a folder, as `imagebuilder accept` keeps it: judged, without measurements.

accept(folder, config_digest, outcome="pass")      # folder/results/<hex>/<stamp>/verdict.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from imagebuilder.accept import codec
from imagebuilder.accept.figures import AcceptLength, ArmFigures, LevelFigures
from imagebuilder.accept.looks import Estimate
from imagebuilder.accept.record import Record
from imagebuilder.values import Digest


def _arm(tok_s: float) -> ArmFigures:
    return ArmFigures(
        throughput=Estimate(value=tok_s, units=3, shown=None, decides=None),
        ttft_p99=None, ttft=None, per_token=None, end_to_end=None, stream_tok_s=None,
        tokens=100.0, requests=64, failed=0, cached=None,
    )  # fmt: skip


def accept(
    folder: Path,
    config: Digest,
    *,
    outcome: Literal["pass", "fail", "inconclusive"] = "pass",
    stack: str = "s",
    baseline: float = 89.5,
    eagle3: float = 96.1,
    runtime: str = "docker",
    stamp: str = "20261130T121314Z",
) -> Path:
    """Write the record; its path."""
    record = Record(
        imagebuilder="0.1.0", stack=stack, config_digest=config.text, manifest_digest=None, runtime=runtime,
        started="2026-11-30T12:13:14.000+00:00", ended="2026-11-30T13:00:00.000+00:00", model="m", draft="d",
        gpus=("NVIDIA RTX PRO 6000",), driver="590.48.01", pairing="starts", units=3, planned_units=3,
        outcome=outcome, headline=f"EAGLE-3 over baseline: {eagle3 / baseline:.2f}×", failure="",
        requirements=(),
        levels=(LevelFigures(
            level=1, decisive=True, baseline=_arm(baseline), eagle3=_arm(eagle3),
            speedup=Estimate(value=eagle3 / baseline, units=3, shown=None, decides=None),
        ),),
        accept_length=AcceptLength(overall=None, by_kind=()), answers=None, divergence=None, notes=(),
    )  # fmt: skip
    path = folder / "results" / config.hex / stamp / "verdict.json"
    path.parent.mkdir(parents=True)
    path.write_text(codec.dumps(record, indent=2))
    return path
