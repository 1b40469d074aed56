"""What two running servers' `/server_info` say differently, and whether they can still be compared. Pure.

Keys are redacted before anything else sees them. Source of the lists: SGLang 0.5.9 server_args.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from imagebuilder.accept.model import Difference

REDACTED = "(redacted)"
_SECRET = re.compile(
    r"(?:^|_)(?:api_key|secret|password|passphrase|auth_token|hf_token|access_token|credentials?)(?:$|_)"
)

_EXPECTED = re.compile(r"speculative_|draft_|.*avg_spec_accept_length")
"""What speculation is."""

_NOTED = {
    "mem_fraction_static": "speculation keeps memory for the draft model",
    "max_total_num_tokens": "the draft model takes memory from the KV cache",
    "cuda_graph_bs": "speculation captures graphs for other batch sizes",
    "cuda_graph_max_bs": "speculation captures graphs for other batch sizes",
    "max_prefill_tokens": "",
    "attention_backend": "speculation supports fewer backends",
    "decode_attention_backend": "speculation supports fewer backends",
    "prefill_attention_backend": "speculation supports fewer backends",
}
"""What may differ, since speculation needs it, and is shown in the report."""

_UNFAIR = {
    "version": "two versions of the server",
    "model_path": "two models",
    "revision": "two revisions of the model",
    "tokenizer_path": "two tokenizers",
    "dtype": "two precisions",
    "quantization": "two precisions",
    "kv_cache_dtype": "two precisions of the KV cache",
    "context_length": "two context lengths",
    "tp_size": "two parallel layouts",
    "pp_size": "two parallel layouts",
    "dp_size": "two parallel layouts",
    "ep_size": "two parallel layouts",
    "max_running_requests": "one server takes more requests at once",
    "effective_max_running_requests_per_dp": "one server takes more requests at once",
    "disable_overlap_schedule": "one server overlaps scheduling and computing",
    "disable_radix_cache": "one server has a prefix cache",
    "disable_cuda_graph": "one server uses CUDA graphs",
    "disable_custom_all_reduce": "two ways to reduce",
    "chunked_prefill_size": "prompts are cut differently",
    "enable_mixed_chunk": "one server mixes prefill and decode",
    "page_size": "two page sizes",
    "sampling_backend": "two samplers",
    "schedule_policy": "two schedulers",
    "stream_interval": "one server sends less often",
    "stream_output": "two forms of stream",
    "num_continuous_decode_steps": "one server looks up less often",
    "enable_torch_compile": "one server is compiled",
    "enable_deterministic_inference": "one server is deterministic, and slower for it",
    "moe_runner_backend": "two kernels for experts",
    "random_seed": "two seeds",
}
"""What makes the comparison one of something else than speculation."""

_MEANINGLESS = re.compile(
    r"(?:host|port|nccl_port|dist_init_addr|log_level.*|.*_(?:throughput|usage)|status|random_seed_.*|"
    r"served_model_name|memory_usage|load|num_.*_reqs|uptime.*|pid|.*time.*|token_usage|api_key|admin_api_key)"
)


def redacted(info: Any) -> Any:
    """The same without the values of what is a secret by its name."""
    if isinstance(info, Mapping):
        return {
            str(k): REDACTED if _SECRET.search(str(k).lower()) and v else redacted(v) for k, v in info.items()
        }
    return [redacted(item) for item in info] if isinstance(info, list | tuple) else info


def differences(baseline: Mapping[str, Any], eagle3: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every setting that differs, unfair ones first."""
    one, other = _flat(baseline), _flat(eagle3)
    found = [
        _judged(name, one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name) and not _MEANINGLESS.fullmatch(name)
    ]
    order = ("unfair", "noted", "expected")
    return tuple(sorted(found, key=lambda d: order.index(d.weight)))


def _judged(name: str, one: Any, other: Any) -> Difference:
    why = _UNFAIR.get(name) or _NOTED.get(name, "")
    unfair = name in _UNFAIR
    expected = not unfair and bool(_EXPECTED.match(name))
    return Difference(
        setting=name,
        baseline=json.dumps(one),
        eagle3=json.dumps(other),
        weight="unfair" if unfair else "expected" if expected else "noted",
        why=why,
    )


def _flat(info: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, and what the first internal state says; nested ones as they are."""
    flat = {k: v for k, v in info.items() if k != "internal_states"}
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], Mapping):
        flat |= states[0]
    return flat
