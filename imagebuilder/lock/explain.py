"""uv's refusals as errors of ours: what stands in the way, and what to do about it. Pure."""

from __future__ import annotations

import errno
import re

from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, MachineLacks, Unresolvable
from imagebuilder.lock.target import TargetFacts

PROJECT = "the-stack"
"""What uv calls the stack."""

_SHOWN_STEPS = 3
_DECORATION = re.compile(r"^[\s×╰─▶│├]*(?:error: |cause: )?")
_NETWORK = re.compile(
    r"Failed to fetch|Request failed|error sending request|HTTP status|Failed to download|"
    r"Network connectivity is disabled|authentication|dns error|invalid peer certificate",
    re.IGNORECASE,
)
_LACKS = ("EACCES", "EDQUOT", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EPERM", "EROFS")
_LACKING = "|".join(str(getattr(errno, name)) for name in _LACKS)
_MACHINE = re.compile(rf"memory allocation of \d+ bytes failed|\(os error (?:{_LACKING})\)")
_NO_SOLUTION = "No solution found"
_UNSOUND = re.compile(
    r"Failed to unzip wheel|Failed to read metadata|Metadata file .* is invalid", re.IGNORECASE
)
_UNSOUND_ONE = re.compile(
    r"Because (\S+) has (?:an invalid package format|inconsistent metadata|invalid metadata)"
)


def explain_failure(stderr: str, stack_name: str, target: TargetFacts) -> ImagebuilderError:
    """The error that says why uv failed: Unresolvable; ArtefactUnusable where an index failed,
    MachineLacks where this machine did.
    """
    lines = [line for line in stderr.splitlines() if not line.startswith("warning: ")]
    text, hints = _split_hints("\n".join(lines))
    if _NO_SOLUTION in text:
        steps = _steps(text)
        if (unsound := _UNSOUND_ONE.search(" ".join(text.split()))) and len(steps) <= _SHOWN_STEPS:
            return ArtefactUnusable(
                f"{stack_name} cannot be locked: {unsound[1]} is not a sound wheel",
                seen="; ".join(hints) or _shorten(steps),
                hint="ask for another version, or tell whoever keeps that index",
            )
        return Unresolvable(
            f"{stack_name} cannot be resolved: {_summary(text, target)}",
            seen=_shorten(steps),
            hint=_advice(text, hints, target, stack_name),
        )
    clean = [_DECORATION.sub("", line) for line in text.splitlines() if line.strip()]
    what = clean[0].rstrip(".:") if clean else "uv ended without saying why"
    if _MACHINE.search(text) and "error sending request" not in text:  # a firewall refuses in such words too
        return MachineLacks(
            f"{stack_name} cannot be locked: uv lacks memory, space or a permission", seen="; ".join(clean)
        )
    if _NETWORK.search(text):
        return ArtefactUnusable(
            f"{stack_name} cannot be locked: an index or file cannot be read",
            seen="; ".join(clean),
            hint="imagebuilder doctor",
        )
    if _UNSOUND.search(text):
        return ArtefactUnusable(f"{stack_name} cannot be locked: {what}", seen="; ".join(clean[1:]))
    return Unresolvable(f"{stack_name} cannot be resolved: {what}", seen="; ".join(clean[1:]))


def _split_hints(text: str) -> tuple[str, list[str]]:
    body, *hints = re.split(r"\n\s*hint: ", text)
    return body, [" ".join(hint.split()) for hint in hints]


def _steps(text: str) -> list[str]:
    """uv's chain of reasons, one a step, without decoration."""
    lines = [_DECORATION.sub("", line) for line in text.splitlines()]
    reasons = " ".join(line for line in lines if line and _NO_SOLUTION not in line)
    reasons = reasons.replace(PROJECT, "the stack").replace("your requirements are", "the stack is")
    steps = re.split(r"(?:^|\s)(?:And because|Because) ", reasons.replace(", we can conclude that", ", so"))
    return [step.strip() for step in steps if step.strip()]


def _shorten(steps: list[str]) -> str:
    left_out = len(steps) - _SHOWN_STEPS
    lines = [f"(the first {left_out} of {len(steps)} steps are left out)"] if left_out > 0 else []
    return "\n          ".join([*lines, *(f"because {step}" for step in steps[-_SHOWN_STEPS:])])


def _summary(text: str, target: TargetFacts) -> str:
    """One clause that names the kind of obstacle."""
    flat = " ".join(text.split())
    wanted = f"CPython {target.python}, glibc {target.glibc}, {target.platform.machine}"
    patterns = (
        (r"(?:all versions of )?(\S+) (?:has|have) no usable wheels", "{} has only source distributions"),
        (
            r"(?:all versions of )?(\S+) (?:has|have) no wheels with a matching",
            "{} has no wheel for " + wanted,
        ),
        (r"(\S+) was not found in the package registry", "{} is not on its index"),
        (r"there (?:is|are) no versions? of (\S+) and", "there is no {} on its index"),
        (
            r"requested Python version .*? does not satisfy",
            "Python " + target.python.text + " is not admitted",
        ),
    )
    for pattern, clause in patterns:
        found = re.findall(pattern, flat)
        if found and len(_steps(text)) <= _SHOWN_STEPS:
            return clause.format(found[0])
    return "its requirements contradict each other"


def _advice(text: str, hints: list[str], target: TargetFacts, stack_name: str) -> str:
    joined = " ".join(hints)
    if "exclude-newer" in joined:
        return "move [resolve] as-of to a later instant, or ask for a version that was there by then"
    if "no usable wheels" in text:
        return (
            "imagebuilder installs wheels only: ask for a version that has one, name an index that has one, "
            "or build it (`pip wheel NAME`) and name the file's address: NAME @ https://…/NAME-….whl"
        )
    if "no wheels with a matching" in text:
        return f"{joined}. Ask for another version, or change [target] or [base]".removeprefix(". ")
    if "not found in the package registry" in text:
        return "check the spelling, and in the layer's `index` whether the right index is asked"
    if re.search(r"there (is|are) no versions? of", " ".join(text.split())):
        return f"imagebuilder recon {stack_name} shows the versions that there are"
    return (
        "ask for other versions, or declare a deliberate break as [[override]] with its reason; "
        f"imagebuilder recon {stack_name} shows the versions that there are"
    )
