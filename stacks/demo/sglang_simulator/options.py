"""The command line: SGLang's own flags as far as they matter here, and `--sim-…` for what is simulated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

SPECULATIVE_CAP = 48
"""What SGLang 0.5.9 sets `max_running_requests` to with EAGLE when nobody says otherwise."""
PLAIN_CAP = 2048


@dataclass(frozen=True)
class Options:
    """Every flag. Speeds in tokens/s, times in seconds, shares from 0 to 1.

    sim_speed: output tokens/s of one stream. sim_saturation: output tokens/s rise towards this many times
    that speed as streams are added. sim_accept: mean tokens of a verify step (0: 1 + half of the steps);
    sim_accept_by_kind: factors such as `code=1.2,chat=0.8`. sim_noise: standard deviation of log step time;
    sim_start_noise: of a whole start. sim_drift: relative slow-down per hour. sim_divergence: share of
    answers that leave the greedy text. sim_wrong: share of known answers that come out wrong.
    """

    model_path: str
    host: str = "127.0.0.1"
    port: int = 30000
    served_model_name: str = ""
    tokenizer_path: str = ""
    revision: str | None = None
    tp_size: int = 1
    trust_remote_code: bool = False
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    context_length: int | None = None
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    random_seed: int | None = None
    stream_interval: int = 1
    attention_backend: str | None = None
    api_key: str | None = None
    enable_metrics: bool = False
    enable_cache_report: bool = False
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False
    disable_overlap_schedule: bool = False
    disable_custom_all_reduce: bool = False
    enable_deterministic_inference: bool = False
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_draft_model_revision: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    sim_speed: float = 100.0
    sim_saturation: float = 24.0
    sim_prefill_speed: float = 50_000.0
    sim_accept: float = 0.0
    sim_accept_by_kind: str = ""
    sim_noise: float = 0.01
    sim_start_noise: float = 0.0
    sim_drift: float = 0.0
    sim_divergence: float = 0.0
    sim_wrong: float = 0.0
    sim_seed: int = 0
    sim_startup: float = 0.0
    sim_fault: str = ""

    @property
    def speculates(self) -> bool:
        """Whether a draft model is used."""
        return self.speculative_algorithm is not None

    @property
    def steps(self) -> int:
        """Draft steps before each verification."""
        return (self.speculative_num_steps or 3) if self.speculates else 0

    @property
    def accept_length(self) -> float:
        """Mean tokens of a step: exactly 1 without speculation, and with `EAGLE` on an EAGLE-3 draft."""
        if self.speculative_algorithm != "EAGLE3":
            return 1.0
        return min(self.sim_accept or 1 + self.steps / 2, 1.0 + self.steps)

    @property
    def running_cap(self) -> int:
        """Requests in one batch."""
        return self.max_running_requests or (SPECULATIVE_CAP if self.speculates else PLAIN_CAP)

    @property
    def accept_factors(self) -> dict[str, float]:
        """Kind of prompt → factor on the accept length."""
        pairs = (item.split("=") for item in self.sim_accept_by_kind.split(",") if item)
        return {kind: float(factor) for kind, factor in pairs}

    @property
    def fault(self) -> tuple[str, float]:
        """`crash-after=20` → ("crash-after", 20)."""
        name, _, value = self.sim_fault.partition("=")
        return name, float(value or 0)


FAULTS = ("start-crash", "start-hang", "crash-after", "hang-after", "truncate-every", "error-every")
_SHORT = {"tp_size": ("--tp", "--tensor-parallel-size"), "served_model_name": (), "revision": ()}


def parse(words: Sequence[str]) -> Options:
    """The options of a command line; exits with status 2 and a message like argparse does."""
    parser = argparse.ArgumentParser(prog="sglang_simulator", description=__doc__, allow_abbrev=False)
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    for field in fields(Options):
        flags = ("--" + field.name.replace("_", "-"), *_SHORT.get(field.name, ()))
        kind = str(field.type).split(" ", maxsplit=1)[0]
        if kind == "bool":
            parser.add_argument(*flags, dest=field.name, action="store_true")
        elif field.name == "model_path":
            parser.add_argument(*flags, dest=field.name, required=True)
        else:
            parser.add_argument(*flags, dest=field.name, type=kinds[kind], default=field.default)
    options = Options(**vars(parser.parse_args(words)))
    if wrong := _wrong(options):
        parser.error(wrong)
    return options


def _wrong(options: Options) -> str:
    numbers = (
        options.speculative_num_steps,
        options.speculative_eagle_topk,
        options.speculative_num_draft_tokens,
    )
    given = [n for n in numbers if n is not None]
    if given and len(given) < len(numbers):
        return "speculative num_steps, eagle_topk and num_draft_tokens must be set together or not at all"
    if options.speculates and not options.speculative_draft_model_path:
        return f"{options.speculative_algorithm} needs --speculative-draft-model-path"
    if options.sim_fault and options.fault[0] not in FAULTS:
        return f"no fault {options.fault[0]!r}: one of {', '.join(FAULTS)}"
    return ""
