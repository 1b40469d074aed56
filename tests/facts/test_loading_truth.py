"""The emulated loader against what really happened: dlopen of 1,491 members after `import torch`.

The rows and the facts that they need were recorded by scripts/abi_facts.py.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from imagebuilder.facts.environment import Environment
from imagebuilder.facts.filesystem import Assumed
from imagebuilder.facts.tables import driver, layouts, runtimes
from imagebuilder.facts.verdict import judge
from tests.support.abi_facts import recorded

OUTCOMES = {"loads": "ok", "crash": "crash-in-constructor"}
# In mode `siblings` these were replaced by stubs that define whatever of theirs is asked for.
STUBBED = re.compile(r"lib(av|sw|postproc|sox)")


def _environment(torch: str, extension: str, mode: str) -> Environment:
    data = recorded()
    wheels = {**data.set_of(torch), "extension": data.wheel(extension)}
    stubs = []
    if mode == "siblings":
        needed = {n for elf in data.wheel(extension).elf.values() for n in elf.needed}
        stubs = [
            Assumed(soname=n, provider="stub", symbols="(av|sws|swr|sox|postproc)")
            for n in sorted(needed)
            if STUBBED.match(n)
        ]
    return Environment(wheels, data.system(), [*driver(), *stubs], runtimes(), site="/site")


@pytest.mark.parametrize("torch", sorted({row[0] for row in recorded().rows}))
def test_every_row_agrees(torch: str) -> None:
    rows = [row for row in recorded().rows if row[0] == torch]
    wrong, seen = [], Counter[str]()
    version = torch.split("-")[1]
    for extension, mode in sorted({(row[1], row[3]) for row in rows}):
        environment = _environment(torch, extension, mode)
        process = environment.start()
        for _, _, member, _, outcome, name in (r for r in rows if r[1] == extension and r[3] == mode):
            verdict = judge(
                environment,
                process,
                "extension",
                member,
                layouts=layouts(),
                version_of={"torch": version},
                siblings=mode == "siblings",
            )
            seen[verdict.kind] += 1
            mine = (OUTCOMES.get(verdict.kind, verdict.kind), verdict.first)
            if mine != (outcome, name):
                wrong.append((extension, member, mode, (outcome, name), mine))
    assert not wrong, f"{len(wrong)} of {len(rows)}: {wrong[:3]}"
    assert seen["unknown"] == 0
    assert seen["loads"] > 10


def test_what_is_missing_is_reported_together() -> None:
    """The loader shows only the first; sgl_kernel beside a CUDA 13 torch lacks two libraries and symbols."""
    torch = next(t for t in recorded().closures if t.startswith("torch-2.11"))
    extension = next(r[1] for r in recorded().rows if r[1].startswith("sgl_kernel-0.3.21"))
    environment = _environment(torch, extension, "import")
    verdict = judge(
        environment,
        environment.start(),
        "extension",
        "sgl_kernel/sm100/common_ops.abi3.so",
        layouts=layouts(),
        version_of={"torch": "2.11.0"},
    )
    assert {m.name for m in verdict.outcome.libraries} >= {"libcudart.so.12", "libnvrtc.so.12"}
    assert "c10_cuda_check_implementation" in " ".join(str(s.symbol) for s in verdict.outcome.symbols)


def test_without_torch_nothing_of_it_is_found() -> None:
    torch = next(t for t in recorded().closures if t.startswith("torch-2.9.1"))
    extension = next(r[1] for r in recorded().rows if r[1].startswith("sgl_kernel-0.3.21"))
    full = _environment(torch, extension, "import")
    bare = Environment(full.wheels, full.system, driver(), (), site="/site")
    verdict = judge(
        bare,
        bare.start(),
        "extension",
        "sgl_kernel/spatial_ops.abi3.so",
        layouts=(),
        version_of={},
        siblings=False,
    )
    assert verdict.kind == "missing-library"
