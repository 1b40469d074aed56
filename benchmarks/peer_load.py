"""The load client beside aiperf: one server of known speed, the same prompts and figures, less processor.

aiperf runs in an environment of its own, made for the occasion with uv (840 MB); AIPERF names a program that
is there already. At 64 streams the server sends 20 tok/s to each: with 200 the peer is bound by its processor
and reads too low. Processor time is of each client's whole process, its start included.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.client import known_server
from benchmarks.client import measure as measured_load
from benchmarks.measure import Row
from imagebuilder.accept.prompts import load_set, select

PEER = "aiperf==0.13.0"
WITHIN = 2.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """speed: tokens/s that the server sends to each stream; spread: see `known_server`."""

    streams: int
    speed: float
    spread: float = 0.4
    requests: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a client says. Times in ms, of the median request."""

    tok_s: float
    ttft: float
    per_token: float


WORKLOADS = (
    Workload(streams=1, speed=200, requests=8, tokens=200),
    Workload(streams=8, speed=200, requests=32, tokens=200),
    Workload(streams=64, speed=20, requests=320, tokens=100),
)


def run(folder: Path) -> Iterator[Row]:
    peer = os.environ.get("AIPERF") or _installed(folder)
    for load in WORKLOADS:
        with known_server(load.speed, load.spread) as url:
            ours, our_cost = _ours(url, load)
            theirs, their_cost = _theirs(peer, url, load, folder)
        for name, mine, other in (
            ("output tok/s", ours.tok_s, theirs.tok_s),
            ("TTFT, ms", ours.ttft, theirs.ttft),
            ("time per token, ms", ours.per_token, theirs.per_token),
        ):
            off = 100 * (other / mine - 1)
            yield Row(
                name=f"{name} at {load.streams} streams: {mine:.2f}, aiperf {other:.2f}; off by",
                value=off, unit="%", wanted=f"within {WITHIN:g} %", holds=abs(off) <= WITHIN,
            )  # fmt: skip
        yield measure.at_least(
            f"processor at {load.streams} streams: aiperf's {their_cost:.1f} s / {our_cost:.1f} s",
            their_cost / our_cost,
            1,
        )


def _installed(folder: Path) -> str:
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "venv", "--quiet", str(folder / "peer")], check=True)
    place = ["--python", str(folder / "peer" / "bin" / "python"), "--cache-dir", str(folder / "uv")]
    subprocess.run([uv, "pip", "install", "--quiet", *place, PEER], check=True)
    return str(folder / "peer" / "bin" / "aiperf")


def _ours(url: str, load: Workload) -> tuple[Seen, float]:
    words = [sys.executable, "-m", "benchmarks.peer_load", url, str(load.streams), str(load.requests)]
    told, cost = measure.output([*words, str(load.tokens)])
    return Seen(**json.loads(told)), cost.cpu


def _theirs(peer: str, url: str, load: Workload, folder: Path) -> tuple[Seen, float]:
    prompts, results = folder / "prompts.jsonl", folder / f"peer-{load.streams}"
    texts = (json.dumps({"text": p.text}) + "\n" for p in select(load_set("mixed"), load.requests))
    prompts.write_text("".join(texts))
    words = [
        peer, "profile", "--model-names", "m", "--url", url, "--endpoint-type", "completions", "--streaming",
        "--use-server-token-count", "--tokenizer", str(_tokenizer(folder)),
        "--concurrency", str(load.streams), "--request-count", str(load.requests),
        "--extra-inputs", f"max_tokens:{load.tokens}",
        "--input-file", str(prompts), "--custom-dataset-type", "single_turn",
        "--output-artifact-dir", str(results), "--ui", "none",
    ]  # fmt: skip
    cost = measure.command(words)
    told: dict[str, Any] = json.loads((results / "profile_export_aiperf.json").read_text())
    seen = Seen(
        tok_s=told["output_token_throughput"]["avg"],
        ttft=told["time_to_first_token"]["p50"],
        per_token=told["inter_token_latency"]["p50"],
    )
    return seen, cost.cpu


def _tokenizer(folder: Path) -> Path:
    """The least that aiperf takes for one; the server counts tokens, and there is no hub to ask."""
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "word": 1}, "unk_token": "<unk>"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (place / "tokenizer.json").write_text(json.dumps({**empty, **whole}))
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return place


def main() -> None:
    """Our client as a process of its own: URL, streams, requests, tokens; what it saw, as JSON."""
    url, *numbers = sys.argv[1:]
    streams, requests, tokens = map(int, numbers)
    done = asyncio.run(measured_load(url, streams, requests, tokens))
    seen = Seen(
        tok_s=sum(r.output_tokens for r in done.requests) / done.wall_s,
        ttft=1e3 * statistics.median(r.ttft_s or 0 for r in done.requests),
        per_token=1e3 * statistics.median(r.tpot_s or 0 for r in done.requests),
    )
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
