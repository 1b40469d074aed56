"""From the stack's [acceptance] to exactly what is run. Pure.

What speculation changes silently (SGLang's server arguments) is given to both servers by name, so that
neither chooses for itself: the request cap, the overlap scheduler, the random seed. That is only done where
the server is SGLang; another server gets the stack's words and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagebuilder.accept.model import ARMS, BASELINE, EAGLE3, ArmName, Scenario
from imagebuilder.accept.prompts import ANSWER_TOKENS, Prompt, digest_of
from imagebuilder.checks.arguments import value_of
from imagebuilder.stack.model import Acceptance, Arm, Pairs, Stack
from imagebuilder.values import Digest

SPECULATIVE_CAP = 48
"""Requests that SGLang runs at once with EAGLE when nobody says otherwise (0.5.9, server_args.py)."""
ALGORITHM = "--speculative-algorithm"
DRAFT = "--speculative-draft-model-path"
DRAFT_REVISION = "--speculative-draft-model-revision"
CAP = "--max-running-requests"
OVERLAP = "--disable-overlap-schedule"
SPEC_V2 = "SGLANG_ENABLE_SPEC_V2"


@dataclass(frozen=True, kw_only=True)
class Equal:
    """An option that both servers get by name. value empty: a flag."""

    option: str
    value: str
    why: str

    @property
    def words(self) -> tuple[str, ...]:
        """As on a command line."""
        return (self.option, self.value) if self.value else (self.option,)


def is_sglang(server: Sequence[str]) -> bool:
    """Whether this command starts SGLang, or its simulator."""
    return any("sglang" in word for word in server)


def make_scenario(stack: Stack, acceptance: Acceptance, prompts: Sequence[Prompt]) -> Scenario:
    """Both commands and everything else that decides the result. prompts: all that will be asked."""
    equal = _equal(stack, acceptance) if is_sglang(acceptance.server) else ()
    return Scenario(
        stack=stack.name,
        model=acceptance.model,
        draft=acceptance.draft,
        baseline=_command(acceptance, BASELINE, equal),
        eagle3=_command(acceptance, EAGLE3, equal),
        baseline_env=_merged(acceptance.env, acceptance.baseline.env),
        eagle3_env=_merged(acceptance.env, acceptance.eagle3.env),
        secrets=acceptance.secrets,
        gpus=acceptance.gpus,
        shm=acceptance.shm,
        port=acceptance.port,
        load=acceptance.load,
        answer_tokens=ANSWER_TOKENS,
        require=acceptance.require,
        equalised=tuple((" ".join(e.words), e.why) for e in equal),
        prompts=digest_of(prompts).text,
        files=_digest_of_files(stack),
    )


def _digest_of_files(stack: Stack) -> str:
    told = "".join(f"{f.path} {f.mode:o} {Digest.of(f.content)}\n" for f in stack.files)
    return Digest.of(told.encode()).text


def arm_of(acceptance: Acceptance, arm: ArmName) -> Arm:
    """What the stack says of this arm."""
    return acceptance.baseline if arm == BASELINE else acceptance.eagle3


def _own_words(acceptance: Acceptance, arm: ArmName) -> tuple[str, ...]:
    return (*acceptance.arguments, *arm_of(acceptance, arm).arguments)


def _command(acceptance: Acceptance, arm: ArmName, equal: Sequence[Equal]) -> tuple[str, ...]:
    own = _own_words(acceptance, arm)
    if not is_sglang(acceptance.server):
        return (*acceptance.server, *own)
    words = ["--model-path", acceptance.model]
    if acceptance.revision and value_of(own, "--revision") is None:
        words += ["--revision", acceptance.revision]
    for option, value in (("--host", "0.0.0.0"), ("--port", str(acceptance.port))):
        if value_of(own, option) is None:
            words += [option, value]
    if arm == EAGLE3:
        speculation = (
            (ALGORITHM, "EAGLE3"),
            (DRAFT, acceptance.draft),
            (DRAFT_REVISION, acceptance.draft_revision),
        )
        for option, given in speculation:
            if given and value_of(own, option) is None:
                words += [option, given]
    missing = [word for e in equal if value_of(own, e.option) is None for word in e.words]
    return (*acceptance.server, *words, *own, *missing)


def _equal(stack: Stack, acceptance: Acceptance) -> tuple[Equal, ...]:
    given = {arm: value_of(_own_words(acceptance, arm), CAP) for arm in ARMS}
    cap = next((value for value in given.values() if value), "")
    needed = max(SPECULATIVE_CAP, *acceptance.load.concurrency)
    wanted = [
        Equal(option=CAP, value=cap or str(needed), why="speculation caps running requests at 48 by itself"),
        Equal(option="--random-seed", value="1", why="the server chooses one by itself"),
        Equal(option="--enable-cache-report", value="", why="shows that the prefix cache was empty"),
    ]
    if not _overlaps(stack, acceptance):
        wanted.append(
            Equal(option=OVERLAP, value="", why=f"speculation turns it off unless {SPEC_V2} is set")
        )
    return tuple(e for e in wanted if not all(_has(acceptance, arm, e) for arm in ARMS))


def _has(acceptance: Acceptance, arm: ArmName, equal: Equal) -> bool:
    return value_of(_own_words(acceptance, arm), equal.option) is not None


def _overlaps(stack: Stack, acceptance: Acceptance) -> bool:
    """Whether the speculating server overlaps scheduling and computing: asked for by a variable."""
    env: Mapping[str, str] = dict(_merged(stack.env, acceptance.env, acceptance.eagle3.env))
    return env.get(SPEC_V2, "").lower() in ("1", "true", "yes", "on")


def _merged(*parts: Pairs) -> Pairs:
    merged: dict[str, str] = {}
    for part in parts:
        merged.update(part)
    return tuple(merged.items())
