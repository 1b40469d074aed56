"""Exit codes are an interface: documented, stable, and one per situation."""

from __future__ import annotations

import re
from pathlib import Path

from imagebuilder import errors

ROOT = Path(__file__).resolve().parent.parent


def defining_classes() -> dict[str, int]:
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {
        name: cls.__dict__["exit_code"]
        for name, cls in classes.items()
        if issubclass(cls, errors.ImagebuilderError) and "exit_code" in cls.__dict__
    }


def test_exit_codes_are_unique() -> None:
    codes = defining_classes()
    assert len(set(codes.values())) == len(codes), codes
    assert not {0, 1, 130} & set(codes.values()), "0 is success, 1 a bug, 130 an interrupt"


def test_exit_codes_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| `?(\w*)`?", (ROOT / "docs" / "90-exit-codes.md").read_text(), re.M)
    documented = {name: int(code) for code, name in rows if name}
    assert documented == defining_classes()


def test_an_error_says_seen_wanted_and_next() -> None:
    error = errors.ArtefactUnusable(
        "torch.whl has another hash", seen="sha256:aa", wanted="sha256:bb", hint="imagebuilder fetch"
    )
    assert str(error).splitlines() == [
        "torch.whl has another hash",
        "  seen:   sha256:aa",
        "  wanted: sha256:bb",
        "  next:   imagebuilder fetch",
    ]


def test_a_stack_error_lists_every_problem() -> None:
    error = errors.StackInvalid(
        "a.toml",
        [
            errors.Problem(key="name", message="missing"),
            errors.Problem(key="x", message="unknown", hint="y?"),
        ],
    )
    assert str(error) == "a.toml: 2 problems in the stack file\n  name: missing\n  x: unknown (y?)"
