"""The model's chat template on the prompts, and both models' `config.json`, from inside the container."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagebuilder.accept.lint import Config, lint_configs
from imagebuilder.accept.prompts import Prompt
from imagebuilder.accept.server import Launch, Runtime, Script
from imagebuilder.checks.arguments import value_of
from imagebuilder.checks.registry import failing
from imagebuilder.errors import ChecksFailed, NotAccepted
from imagebuilder.stack.model import Acceptance, Stack

TIMEOUT = 600


@dataclass(frozen=True, kw_only=True)
class Templates:
    """What the container told. ids: token ids by a prompt's id; empty where there is no template: `why`."""

    ids: Mapping[str, tuple[int, ...]]
    why: str
    target: Config | None
    draft: Config | None

    def apply(self, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
        """The prompts with their token ids."""
        return tuple(replace(p, ids=self.ids.get(p.id)) for p in prompts)


def ask(acceptance: Acceptance, prompts: Sequence[Prompt], launch: Launch, runtime: Runtime) -> Templates:
    """Let the image's own tokenizer put the chat template on. NotAccepted where the script fails."""
    asked = {
        "model": acceptance.model,
        "revision": acceptance.revision,
        "draft": acceptance.draft,
        "draft_revision": acceptance.draft_revision,
        "trust": value_of(acceptance.arguments, "--trust-remote-code") is not None,
        "prompts": [p.text for p in prompts],
    }
    source = Path(__file__).with_name("tokenizing.py").read_text(encoding="utf-8")
    script = Script(name="tokenizing", source=source, data=json.dumps(asked).encode())
    output = runtime.run(script, replace(launch, gpus="none"), TIMEOUT)
    try:
        told = json.loads(output)
        ids = told["ids"] or []
        return Templates(
            ids={p.id: tuple(map(int, i)) for p, i in zip(prompts, ids, strict=False)},
            why=str(told["why"]),
            target=told["target"],
            draft=told["draft"],
        )
    except (ValueError, KeyError, TypeError):
        raise NotAccepted(
            "the tokenizer of the image told nothing", seen=output[-300:].decode(errors="replace")
        ) from None


def check_draft(stack: Stack, told: Templates) -> None:
    """Whether the draft fits the target, as the container sees both. ChecksFailed."""
    if wrong := failing(lint_configs(stack, told.target, told.draft)):
        raise ChecksFailed(
            f"the draft model of {stack.name} does not fit: {wrong[0].what}",
            seen="; ".join(wrong[0].evidence),
            hint=wrong[0].fix,
        )
