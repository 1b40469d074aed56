"""What can be known to go wrong before a server is started: findings about [acceptance]."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from imagebuilder.accept.model import ARMS, EAGLE3
from imagebuilder.accept.scenario import ALGORITHM, CAP, arm_of, is_sglang
from imagebuilder.accept.statistics import FEWEST_BESIDE_KNOWN
from imagebuilder.checks import acceptance as codes
from imagebuilder.checks.arguments import value_of
from imagebuilder.checks.model import Code, Finding
from imagebuilder.checks.registry import matches
from imagebuilder.stack.model import Acceptance, Stack

Config = Mapping[str, Any]
_THRESHOLDS = ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")
_EQUAL = (CAP, "--tp", "--tp-size", "--dtype", "--quantization", "--kv-cache-dtype", "--context-length")
_PARALLEL = ("--tp", "--tp-size", "--tensor-parallel-size")


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """What this machine has of a scenario. missing: mounted folders and model paths that are not there.

    target, draft: their `config.json`; None where it is not to be seen from here (a hub id, a volume).
    """

    missing: tuple[str, ...] = ()
    target: Config | None = None
    draft: Config | None = None


def hosted(acceptance: Acceptance) -> Hosted:
    """Look at the folders that are mounted into the container."""
    missing = [
        m.source for m in acceptance.mounts if m.source.startswith("/") and not Path(m.source).exists()
    ]
    found = []
    for model in (acceptance.model, acceptance.draft):
        folder = _on_host(acceptance, model)
        config = None
        if folder is not None and not folder.is_dir():
            missing.append(f"{model} (here {folder})")
        elif folder is not None:
            config = read_config(folder)
        found.append(config)
    return Hosted(missing=tuple(dict.fromkeys(missing)), target=found[0], draft=found[1])


def read_config(folder: Path) -> Config | None:
    """A model's `config.json`; None where there is none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _on_host(acceptance: Acceptance, model: str) -> Path | None:
    """Where a path in the container lies on this machine."""
    path = PurePosixPath(model)
    for mount in acceptance.mounts:
        if mount.source.startswith("/") and path.is_absolute() and path.is_relative_to(mount.target):
            return Path(mount.source) / path.relative_to(mount.target)
    return None


def lint(stack: Stack, acceptance: Acceptance, here: Hosted, environment: Mapping[str, str]) -> list[Finding]:
    """Everything that is wrong with a scenario, waivers of the stack applied."""
    found = [
        *_missing(acceptance, here, environment),
        *_drafts(here.target, here.draft),
        *(_speculation(stack, acceptance) if is_sglang(acceptance.server) else ()),
        *_load(acceptance),
    ]
    return [_waived(finding, stack) for finding in found]


def lint_configs(stack: Stack, target: Config | None, draft: Config | None) -> list[Finding]:
    """Whether a draft fits its target, by the `config.json` of both."""
    return [_waived(finding, stack) for finding in _drafts(target, draft)]


def _waived(finding: Finding, stack: Stack) -> Finding:
    match = next((w for w in stack.waivers if matches(w, finding)), None)
    return replace(finding, waived=match.reason) if match else finding


def _finding(code: Code, what: str, *evidence: str, key: str = "acceptance") -> Finding:
    return Finding(
        code=code.code, severity=code.severity, what=what, evidence=evidence, fix=code.remedy, key=key
    )


def _missing(acceptance: Acceptance, here: Hosted, environment: Mapping[str, str]) -> Iterator[Finding]:
    for path in here.missing:
        yield _finding(codes.MODEL_MISSING, f"{path} is not on this machine")
    for name in acceptance.secrets:
        if not environment.get(name):
            yield _finding(codes.SECRET_MISSING, f"{name} is not set", key="acceptance.secrets")


def _drafts(target: Config | None, draft: Config | None) -> Iterator[Finding]:
    if target is None or draft is None:
        return
    one, other = _text_part(target), _text_part(draft)
    hidden = other.get("target_hidden_size", other.get("hidden_size"))
    pairs = (
        ("hidden size", one.get("hidden_size"), hidden),
        ("vocabulary", one.get("vocab_size"), other.get("vocab_size")),
    )
    for what, wanted, seen in pairs:
        if isinstance(wanted, int) and isinstance(seen, int) and wanted != seen:
            yield _finding(
                codes.DRAFT_MISMATCH,
                f"the draft model is made for another {what} than the target has",
                f"target's config.json: {wanted}",
                f"draft's config.json: {seen}",
                key="acceptance.draft",
            )
    names = other.get("architectures")
    if isinstance(names, list) and names and not _is_eagle3(names, other):
        yield _finding(
            codes.ALGORITHM,
            "the draft model says that it is no EAGLE-3 draft",
            f"architectures: {', '.join(map(str, names))}",
            key="acceptance.draft",
        )


def _is_eagle3(names: list[Any], config: Config) -> bool:
    """By its class, or by the reduced vocabulary that only EAGLE-3 drafts have."""
    return "draft_vocab_size" in config or any("eagle3" in str(name).lower() for name in names)


def _text_part(config: Config) -> Config:
    """A multimodal model's language part."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def _speculation(stack: Stack, acceptance: Acceptance) -> Iterator[Finding]:
    both = acceptance.arguments
    for words, key in (
        (both, "acceptance.arguments"),
        (acceptance.baseline.arguments, "acceptance.baseline"),
    ):
        if speculative := [w for w in words if w.startswith("--speculative-")]:
            yield _finding(codes.ALGORITHM, "the baseline would speculate too", *speculative, key=key)
    algorithm = value_of(acceptance.eagle3.arguments, ALGORITHM)
    if algorithm is not None and algorithm != "EAGLE3":
        yield _finding(
            codes.ALGORITHM, f"the algorithm is {algorithm}, not EAGLE3", key="acceptance.eagle3.arguments"
        )
    for option in _THRESHOLDS:
        given = value_of(acceptance.eagle3.arguments, option)
        if given is not None and given not in ("1", "1.0"):
            yield _finding(codes.LOSSY, f"{option} is {given}", key="acceptance.eagle3.arguments")
    variables = [*stack.env, *acceptance.env, *(v for arm in ARMS for v in arm_of(acceptance, arm).env)]
    for name, value in variables:
        if name.startswith("SIMULATE_ACC_"):
            yield _finding(codes.LOSSY, f"{name}={value} pretends what is accepted", key="acceptance.env")
    yield from _unequal(acceptance)
    yield from _gpus(acceptance)


def _unequal(acceptance: Acceptance) -> Iterator[Finding]:
    for option in _EQUAL:
        given = [
            value_of((*acceptance.arguments, *arm_of(acceptance, arm).arguments), option) for arm in ARMS
        ]
        silent = option == CAP and None in given  # the other arm is given the same
        if given[0] != given[1] and not silent:
            yield _finding(
                codes.UNEQUAL, f"{option} differs", *(f"{a}: {v}" for a, v in zip(ARMS, given, strict=True))
            )


def _gpus(acceptance: Acceptance) -> Iterator[Finding]:
    words = (*acceptance.arguments, *arm_of(acceptance, EAGLE3).arguments)
    wanted = next((v for option in _PARALLEL if (v := value_of(words, option))), "1")
    if isinstance(acceptance.gpus, tuple) and wanted.isdigit() and int(wanted) > len(acceptance.gpus):
        yield _finding(
            codes.GPUS, f"tensor parallelism over {wanted} GPUs, of which {len(acceptance.gpus)} are given"
        )


def _load(acceptance: Acceptance) -> Iterator[Finding]:
    load = acceptance.load
    for level in load.concurrency:
        if load.requests < 2 * level:
            yield _finding(
                codes.FEW_REQUESTS,
                f"{load.requests} requests are few for {level} streams",
                key="acceptance.load.requests",
            )
    if load.pairing == "rounds" and load.rounds < FEWEST_BESIDE_KNOWN and load.start_variation != 0:
        yield _finding(
            codes.FEW_ROUNDS, f"{load.rounds} rounds give no interval", key="acceptance.load.rounds"
        )
