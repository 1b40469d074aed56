"""From [acceptance] to two commands; and what is wrong with them before they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.accept.lint import Hosted, hosted, lint, lint_configs
from imagebuilder.accept.scenario import make_scenario
from imagebuilder.checks import acceptance as codes
from imagebuilder.checks import registry
from imagebuilder.stack import Stack, find_stack, load_stack, shipped_stacks
from imagebuilder.stack.model import Acceptance, Arm, Load, Mount, Waiver

DEMO = load_stack(find_stack("demo", Path("/")))
PLAIN = Acceptance(model="/models/t", draft="/models/d", load=Load(concurrency=(1, 8)))


def commands(acceptance: Acceptance, stack: Stack = DEMO) -> tuple[str, str]:
    scenario = make_scenario(replace(stack, acceptance=acceptance), acceptance, ())
    return " ".join(scenario.baseline), " ".join(scenario.eagle3)


def test_the_least_that_can_be_said() -> None:
    base = "python3 -m sglang.launch_server --model-path /models/t --host 0.0.0.0 --port 30000 "
    equal = "--max-running-requests 48 --random-seed 1 --enable-cache-report --disable-overlap-schedule"
    speculation = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/d "
    assert commands(PLAIN) == (base + equal, base + speculation + equal)


def test_what_is_said_is_not_said_again() -> None:
    own = ("--max-running-requests=96", "--random-seed", "7", "--port", "30000", "--host", "::")
    baseline, eagle3 = commands(replace(PLAIN, arguments=own))
    for command in (baseline, eagle3):
        assert command.count("--max-running-requests") == command.count("--random-seed") == 1
        assert command.count("--host") == command.count("--port") == 1
        assert "--max-running-requests=96" in command


def test_a_cap_for_one_server_is_given_to_the_other() -> None:
    eagle3 = Arm(arguments=("--max-running-requests", "32"))
    assert "--max-running-requests 32" in commands(replace(PLAIN, eagle3=eagle3))[0]


def test_more_streams_need_a_higher_cap() -> None:
    load = replace(PLAIN.load, concurrency=(1, 128))
    assert all("--max-running-requests 128" in c for c in commands(replace(PLAIN, load=load)))


def test_revisions() -> None:
    baseline, eagle3 = commands(replace(PLAIN, revision="abc", draft_revision="def"))
    assert "--revision abc" in baseline and "--revision abc" in eagle3
    assert "--speculative-draft-model-revision def" in eagle3
    assert "def" not in baseline


@pytest.mark.parametrize("where", ["stack", "both", "eagle3"])
def test_overlap_stays_on_in_both_where_speculation_keeps_it(where: str) -> None:
    """SGLANG_ENABLE_SPEC_V2."""
    v2 = (("SGLANG_ENABLE_SPEC_V2", "1"),)
    stack = replace(DEMO, env=v2) if where == "stack" else DEMO
    acceptance = replace(PLAIN, env=v2) if where == "both" else PLAIN
    acceptance = replace(acceptance, eagle3=Arm(env=v2)) if where == "eagle3" else acceptance
    assert not any("overlap" in c for c in commands(acceptance, stack))


def test_another_server_gets_the_stacks_words_and_nothing_else() -> None:
    acceptance = replace(
        PLAIN, server=("vllm", "serve"), arguments=("/models/t",), eagle3=Arm(arguments=("--x",))
    )
    assert commands(acceptance) == ("vllm serve /models/t", "vllm serve /models/t --x")


def test_variables_of_an_arm_come_last_and_secrets_are_names() -> None:
    acceptance = replace(
        PLAIN, env=(("A", "1"), ("B", "1")), eagle3=Arm(env=(("B", "2"),)), secrets=("HF_TOKEN",)
    )
    scenario = make_scenario(DEMO, acceptance, ())
    assert scenario.env("baseline") == (("A", "1"), ("B", "1"))
    assert scenario.env("eagle3") == (("A", "1"), ("B", "2"))
    assert scenario.secrets == ("HF_TOKEN",)


# ---------------------------------------------------------------- lint


def found(acceptance: Acceptance, here: Hosted | None = None, stack: Stack = DEMO) -> set[str]:
    findings = lint(replace(stack, acceptance=acceptance), acceptance, here or Hosted(), {"HF_TOKEN": "x"})
    return {f.code.removeprefix("acceptance.") for f in findings if f.waived is None}


def arms(**words: tuple[str, ...]) -> Acceptance:
    return replace(PLAIN, **{name: Arm(arguments=w) for name, w in words.items()})  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[], Acceptance], set[str]]] = {
    "nothing": (lambda: PLAIN, set()),
    "the wrong algorithm": (lambda: arms(eagle3=("--speculative-algorithm", "EAGLE")), {"algorithm"}),
    "the right one": (lambda: arms(eagle3=("--speculative-algorithm=EAGLE3",)), set()),
    "a baseline that speculates": (lambda: arms(baseline=("--speculative-num-steps", "3")), {"algorithm"}),
    "both that speculate": (
        lambda: replace(PLAIN, arguments=("--speculative-num-steps", "3")), {"algorithm"},
    ),
    "a loose acceptance": (lambda: arms(eagle3=("--speculative-accept-threshold-acc", "0.9")), {"lossy"}),
    "a strict one": (lambda: arms(eagle3=("--speculative-accept-threshold-acc", "1.0")), set()),
    "a pretended one": (lambda: replace(PLAIN, env=(("SIMULATE_ACC_LEN", "4"),)), {"lossy"}),
    "two precisions": (
        lambda: arms(baseline=("--dtype", "half"), eagle3=("--dtype", "bfloat16")), {"unequal"},
    ),
    "one precision": (lambda: arms(eagle3=("--dtype", "bfloat16")), {"unequal"}),
    "two caps": (
        lambda: arms(baseline=("--max-running-requests", "9"), eagle3=("--max-running-requests", "8")),
        {"unequal"},
    ),
    "one cap": (lambda: arms(baseline=("--max-running-requests", "9")), set()),
    "too few GPUs": (lambda: replace(PLAIN, gpus=(0, 1), arguments=("--tp", "4")), {"gpus"}),
    "enough GPUs": (lambda: replace(PLAIN, gpus=(0, 1, 2, 3), arguments=("--tp", "4")), set()),
    "a secret that is not set": (lambda: replace(PLAIN, secrets=("HF_TOKEN", "OTHER")), {"secret-missing"}),
    "few requests": (
        lambda: replace(PLAIN, load=Load(concurrency=(1, 64), requests=64)),
        {"few-requests"},
    ),
    "few rounds": (lambda: replace(PLAIN, load=Load(pairing="rounds", rounds=2)), {"few-rounds"}),
    "few rounds that say enough": (
        lambda: replace(PLAIN, load=Load(pairing="rounds", rounds=2, start_variation=0.0)), set(),
    ),
    "two starts": (lambda: replace(PLAIN, load=Load(pairing="starts", rounds=2, starts=2)), set()),
    "another server": (lambda: replace(PLAIN, server=("vllm",), arguments=("--speculative-x",)), set()),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_found(case: str) -> None:
    make, wanted = WRONG[case]
    assert found(make()) == wanted


CONFIGS = [
    ("equal", {"hidden_size": 7168, "vocab_size": 9}, {"hidden_size": 7168, "vocab_size": 9}, set()),
    ("hidden", {"hidden_size": 7168}, {"hidden_size": 4096}, {"draft-mismatch"}),
    ("vocabulary", {"vocab_size": 9}, {"vocab_size": 8}, {"draft-mismatch"}),
    ("multimodal", {"hidden_size": 1, "text_config": {"hidden_size": 7}}, {"hidden_size": 7}, set()),
    ("multimodal, wrong", {"text_config": {"hidden_size": 7}}, {"hidden_size": 1}, {"draft-mismatch"}),
    ("narrow draft", {"hidden_size": 7}, {"hidden_size": 3, "target_hidden_size": 7}, set()),
    ("no EAGLE-3", {}, {"architectures": ["LlamaForCausalLM"]}, {"algorithm"}),
    ("EAGLE-3", {}, {"architectures": ["LlamaForCausalLMEagle3"]}, set()),
    ("reduced", {}, {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}, set()),
    ("strange", {"hidden_size": "x", "text_config": 5}, {"hidden_size": None, "architectures": 7}, set()),
    ("unseen", None, {"hidden_size": 1}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "target", "draft", "wanted"), CONFIGS, ids=[c[0] for c in CONFIGS])
def test_draft_against_target(name: str, target: object, draft: object, wanted: set[str]) -> None:
    """sglang#36528."""
    findings = lint_configs(DEMO, target, draft)  # type: ignore[arg-type]
    assert {f.code.removeprefix("acceptance.") for f in findings} == wanted


def test_what_is_on_this_machine(tmp_path: Path) -> None:
    for name, hidden in (("t", 7168), ("d", 4096)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    mounts = (Mount(source=str(tmp_path), target="/models"), Mount(source="volume", target="/cache"))
    here = hosted(replace(PLAIN, mounts=mounts))
    assert here.missing == ()
    assert (here.target, here.draft) == ({"hidden_size": 7168}, {"hidden_size": 4096})
    assert found(replace(PLAIN, mounts=mounts), here) == {"draft-mismatch"}

    (tmp_path / "d" / "config.json").write_text("[" * 100_000)
    assert hosted(replace(PLAIN, mounts=mounts)).draft is None
    gone = hosted(
        replace(PLAIN, draft="/models/gone", mounts=(*mounts, Mount(source="/no/where", target="/x")))
    )
    assert [m.split()[0] for m in gone.missing] == ["/no/where", "/models/gone"]
    assert found(PLAIN, gone) == {"model-missing"}
    hub = hosted(replace(PLAIN, model="org/model", mounts=mounts))
    assert (hub.missing, hub.target) == ((), None)


def test_findings_can_be_waived_and_every_code_is_known() -> None:
    acceptance = arms(eagle3=("--speculative-accept-threshold-acc", "0.9"))
    stack = replace(DEMO, waivers=(Waiver(code="acceptance.lossy", reason="on purpose"),))
    assert found(acceptance, stack=stack) == set()
    assert {c.code for c in codes.CODES} <= {c.code for c in registry.codes()}


@pytest.mark.parametrize("path", shipped_stacks(), ids=lambda p: p.stem)
def test_shipped_stacks_have_nothing_to_complain_of(path: Path) -> None:
    stack = load_stack(path)
    if stack.acceptance is not None:
        assert lint(stack, stack.acceptance, Hosted(), {}) == []
