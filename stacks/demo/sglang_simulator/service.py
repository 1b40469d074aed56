"""What the simulated server says, in the words of SGLang 0.5.9: events, counters, settings, metrics."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from .engine import Engine, Job
from .options import Options
from .text import Speaker, tokens_of

VERSION = "0.5.9"
_DONE = b"data: [DONE]\n\n"


class Service:
    """The engine, the speaker, and the faults between them and the clients."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.speaker = Speaker(
            seed=options.sim_seed, divergence=options.sim_divergence, wrong=options.sim_wrong
        )
        self.began = asyncio.get_running_loop().time()
        self.engine = Engine(options)
        self.asked = 0

    @property
    def ready(self) -> bool:
        """Whether the server's own warm-up is over."""
        return asyncio.get_running_loop().time() - self.began >= self.options.sim_startup

    def submit(self, prompt: str | list[int], limit: int) -> tuple[Job, int]:
        """A request, and its number from 1. Faults that come after so many requests come here."""
        self.asked += 1
        fault, value = self.options.fault
        if fault == "crash-after" and self.asked > value:
            sys.stderr.write("torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n")
            sys.stderr.flush()
            os._exit(1)
        if fault == "hang-after" and self.asked > value:
            self.engine.frozen = True
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        return self.engine.submit(tokens_of(text), self.speaker.reply(text), max(1, limit)), self.asked

    def hits(self, fault: str, number: int) -> bool:
        """Whether this request is struck by a fault that comes every so many requests."""
        name, every = self.options.fault
        return name == fault and number % max(1, int(every)) == 0


async def pieces(job: Job) -> AsyncIterator[tuple[int, int]]:
    """(first, last) of the tokens that are new, each time there are any; they coalesce where one is slow."""
    done = 0
    try:
        while not job.finish or done < job.said:
            await job.changed.wait()
            job.changed.clear()
            if job.said > done:
                last = job.said
                yield done, last
                done = last
    finally:
        if not job.finish:
            job.stop()


def text_of(job: Job, first: int, last: int) -> str:
    """These tokens of the reply, as text."""
    text = "".join(job.reply.tokens[first:last])
    return text.lstrip() if first == 0 else text


def meta_info(job: Job, name: str, began: float) -> dict[str, Any]:
    """`meta_info` of /generate; speculation's counters come with the last one."""
    meta: dict[str, Any] = {
        "id": name,
        "finish_reason": {"type": job.finish} if job.finish else None,
        "prompt_tokens": len(job.prompt),
        "completion_tokens": job.said,
        "cached_tokens": job.cached,
        "weight_version": "default",
        "total_retractions": 0,
    }
    if job.finish:
        meta["e2e_latency"] = asyncio.get_running_loop().time() - began
    if job.finish and job.verify_count:
        drafts, accepted = len(job.histogram) - 1, sum(i * n for i, n in enumerate(job.histogram))
        meta |= {
            "spec_accept_rate": accepted / (job.verify_count * drafts),
            "spec_accept_length": job.said / job.verify_count,
            "spec_accept_token_num": accepted,
            "spec_draft_token_num": job.verify_count * drafts,
            "spec_verify_ct": job.verify_count,
            "spec_accept_histogram": job.histogram,
        }
    return meta


def usage_of(job: Job, *, detailed: bool) -> dict[str, Any]:
    """OpenAI's usage; the cached part only with --enable-cache-report, and at the end."""
    usage: dict[str, Any] = {
        "prompt_tokens": len(job.prompt),
        "total_tokens": len(job.prompt) + job.said,
        "completion_tokens": job.said,
    }
    if detailed:
        usage["prompt_tokens_details"] = {"cached_tokens": job.cached}
    return usage


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


async def completion_stream(
    service: Service, job: Job, number: int, asked: dict[str, Any]
) -> AsyncIterator[bytes]:
    """/v1/completions: each event has the new text only."""
    wanted = asked.get("stream_options") or {}
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.get("model") or service.options.model_path,
    }
    async for first, last in pieces(job):
        if service.hits("truncate-every", number) and last > job.end // 2:
            raise ConnectionResetError("a simulated fault: the stream is cut")
        if service.hits("error-every", number) and last > job.end // 2:
            yield event({"error": {"object": "error", "message": "simulated", "type": "InternalServerError"}})
            job.stop()
            break
        over = job.finish and last == job.said
        choice = {
            "index": 0,
            "text": text_of(job, first, last),
            "logprobs": None,
            "finish_reason": job.finish if over else None,
            "matched_stop": None,
        }
        data: dict[str, Any] = {**head, "choices": [choice]}
        if wanted.get("continuous_usage_stats"):
            data["usage"] = usage_of(job, detailed=False)
        yield event(data)
    if wanted.get("include_usage"):
        detailed = service.options.enable_cache_report
        yield event({**head, "choices": [], "usage": usage_of(job, detailed=detailed)})
    yield _DONE


async def generate_stream(job: Job, name: str, began: float) -> AsyncIterator[bytes]:
    """/generate: each event has the whole text so far."""
    async for _, last in pieces(job):
        yield event({"text": text_of(job, 0, last), "meta_info": meta_info(job, name, began)})
    yield _DONE


async def finished(job: Job) -> Job:
    """The job when it is done."""
    async for _ in pieces(job):
        pass
    return job


def server_info(service: Service) -> dict[str, Any]:
    """Every server argument (secrets too, as SGLang has it), and what the engine is doing."""
    options, engine = service.options, service.engine
    arguments = {k: v for k, v in asdict(options).items() if not k.startswith("sim_")}
    overlap_off = options.disable_overlap_schedule or (
        options.speculates and not os.environ.get("SGLANG_ENABLE_SPEC_V2")
    )
    static = options.mem_fraction_static or (0.85 if options.speculates else 0.88)
    return {
        **arguments,
        "served_model_name": options.served_model_name or options.model_path,
        "tokenizer_path": options.tokenizer_path or options.model_path,
        "max_running_requests": options.running_cap if options.speculates else options.max_running_requests,
        "disable_overlap_schedule": overlap_off,
        "mem_fraction_static": static,
        "version": VERSION,
        "status": "ready" if service.ready else "starting",
        "max_total_num_tokens": int(1_000_000 * static),
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": options.running_cap,
                "last_gen_throughput": 0.0,
                **({"avg_spec_accept_length": engine.accept_length} if options.speculates else {}),
            }
        ],
    }


def metrics(service: Service) -> str:
    """Prometheus text."""
    engine, label = service.engine, f'{{model_name="{service.options.model_path}"}}'
    values: dict[str, tuple[str, float]] = {
        "num_running_reqs": ("gauge", len(engine.running)),
        "num_queue_reqs": ("gauge", len(engine.waiting)),
        "num_retracted_reqs": ("gauge", 0),
        "generation_tokens_total": ("counter", engine.tokens),
        "num_requests_total": ("counter", service.asked),
    }
    if service.options.speculates:
        values["spec_accept_length"] = ("gauge", engine.accept_length)
    lines = (
        f"# TYPE sglang:{name} {kind}\nsglang:{name}{label} {value}\n"
        for name, (kind, value) in values.items()
    )
    return "".join(lines)
