"""Every check there is. Adding one: write its module, name it here, add its cases to the tests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from imagebuilder.checks import gpu, loading
from imagebuilder.checks.model import Check, Code

CHECKS: tuple[Check, ...] = (
    loading.CHECK,
    gpu.CHECK,
)


@cache
def codes() -> Mapping[str, Code]:
    """Every code that some check may report, by its name. ValueError where two checks claim one."""
    found: dict[str, Code] = {}
    for check in CHECKS:
        for code in check.codes:
            if code.code in found:
                raise ValueError(f"two checks have the code {code.code}")
            found[code.code] = code
    return found
