"""Whether the server that is deployed is the one that was accepted: its options and environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagebuilder.accept.model import Scenario
from imagebuilder.stack.model import Pairs

_ELSEWHERE = {"--host", "--port", "--enable-metrics", "--served-model-name", "--api-key", "--log-level"}
"""Where and how it is offered and watched; neither changes what it computes."""
_MEASURING = {"--random-seed", "--enable-cache-report"}
"""What an acceptance gives to both servers, so that they can be compared."""
_ALIASES = {
    "--model": "--model-path",
    "--tensor-parallel-size": "--tp", "--tp-size": "--tp",
    "--pipeline-parallel-size": "--pp", "--pp-size": "--pp",
}  # fmt: skip


def other_than_accepted(scenario: Scenario, words: Sequence[str], env: Pairs) -> tuple[str, ...]:
    """One line for each difference to the server that was accepted; nothing where there is none.

    words: what starts the deployed server. A server without speculation is compared with the baseline.
    """
    ours = _options(words)
    speculates = any(name.startswith("--speculative-") for name in ours)
    theirs = _options(scenario.eagle3 if speculates else scenario.baseline)
    equalised = {text.partition(" ")[0] for text, _ in scenario.equalised}
    found = [] if speculates else ["it does not speculate, and EAGLE-3 was accepted"]
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name) and (name in ours or name not in equalised):
            found.append(f"{_shown(name, ours)}, accepted {_shown(name, theirs)}")
    there, accepted = dict(env), dict(scenario.eagle3_env if speculates else scenario.baseline_env)
    for name in sorted(there.keys() | accepted.keys()):
        if there.get(name) != accepted.get(name):
            found.append(f"{_set(name, there)}, accepted {_set(name, accepted)}")
    return tuple(found)


def _options(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What each option is given; what comes before the first option is under the empty name."""
    found: dict[str, tuple[str, ...]] = {"": ()}
    current = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = _ALIASES.get(name, name)
            found[current] = (value,) if equals else ()
        else:
            found[current] += (word,)
    return {name: values for name, values in found.items() if name not in _ELSEWHERE | _MEASURING}


def _shown(name: str, options: Mapping[str, tuple[str, ...]]) -> str:
    return " ".join((name, *options[name])).strip() if name in options else f"without {name}"


def _set(name: str, env: Mapping[str, str]) -> str:
    return f"{name}={env[name]}" if name in env else f"without {name}"
