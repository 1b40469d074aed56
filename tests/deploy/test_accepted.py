"""What is deployed is what was accepted, or each difference is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagebuilder.accept.scenario import make_scenario
from imagebuilder.deploy.accepted import other_than_accepted
from imagebuilder.stack import load_stack, shipped_folder, shipped_stacks
from imagebuilder.stack.model import Pairs, Stack

CAP = "--max-running-requests"
WITHOUT = "it does not speculate, and EAGLE-3 was accepted"
NAMES = [path.stem for path in shipped_stacks()]


def found(stack: Stack, words: tuple[str, ...], env: Pairs = ()) -> tuple[str, ...]:
    assert stack.acceptance is not None
    return other_than_accepted(make_scenario(stack, stack.acceptance, ()), words, env)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_stacks_deploy_what_they_accept(name: str) -> None:
    """Those of CUDA 12.8, where EAGLE-3 does not pay, deploy the baseline without its cap: that is said."""
    stack = load_stack(shipped_folder() / f"{name}.toml")
    wanted = (WITHOUT, f"without {CAP}, accepted {CAP} 48") if name.startswith("cu128") else ()
    assert stack.deploy_docker is not None and stack.deploy_kubernetes is not None
    for table in (stack.deploy_docker, stack.deploy_kubernetes):
        assert found(stack, table.command, table.env) == wanted


def test_each_difference_is_named() -> None:
    stack = load_stack(shipped_folder() / "cu130-debian.toml")
    assert stack.acceptance is not None and stack.deploy_docker is not None
    stack = replace(stack, acceptance=replace(stack.acceptance, env=(("NCCL_PROTO", "LL"), ("X", "1"))))
    words = list(stack.deploy_docker.command)
    words[words.index("--speculative-num-steps") + 1] = "5"
    words[words.index("--tp")] = "--tensor-parallel-size"
    words.remove("--trust-remote-code")
    words += ["--served-model-name", "kimi", "--mem-fraction-static=0.8", "--random-seed", "7"]
    assert found(stack, tuple(words), (("NCCL_PROTO", "Simple"),)) == (
        "--mem-fraction-static 0.8, accepted without --mem-fraction-static",
        "--speculative-num-steps 5, accepted --speculative-num-steps 3",
        "without --trust-remote-code, accepted --trust-remote-code",
        "NCCL_PROTO=Simple, accepted NCCL_PROTO=LL",
        "without X, accepted X=1",
    )


def test_another_program_is_a_difference() -> None:
    stack = load_stack(shipped_folder() / "demo.toml")
    assert stack.deploy_docker is not None
    words = ("python3", "-m", "vllm", *stack.deploy_docker.command[3:])
    assert found(stack, words) == ("python3 -m vllm, accepted python3 -m sglang_simulator",)
