"""Which files of a wheel are alternatives to each other."""

from __future__ import annotations

import pytest

from imagebuilder.facts.alternates import groups, importable
from imagebuilder.facts.tables import alternate_words


@pytest.mark.parametrize(
    ("paths", "number"),
    [
        (["a/sm90/ops.so", "a/sm100/ops.so"], 1),
        (["b/lib_cuda118.so", "b/lib_rocm71.so", "b/lib_cpu.so", "b/lib_xpu.so"], 1),
        ([f"c/core{n}.so" for n in range(4, 9)], 1),
        (["d/x_torch24-cpu.so", "d/x_torch29-cuda.so"], 1),
        (["m_hook_preload.so", "m_hook_torch.so"], 2),
        (["n_hook_cu12.so", "n_hook_cu13.so"], 1),
        (["n_hook.so", "n_hook_cu12.so", "n_hook_cu13.so", "n_other.so"], 2),
        (["o/libc10.so", "o/libc10_cuda.so"], 2),
        (["e/ops.so", "e/image.so"], 2),
        (["f/cudart.so", "f/cpuinfo.so"], 2),
        ([], 0),
    ],
)
def test_groups(paths: list[str], number: int) -> None:
    found = groups(paths, alternate_words())
    assert len(found) == number
    assert sorted(p for group in found for p in group) == sorted(paths)


@pytest.mark.parametrize(
    ("path", "python", "wanted"),
    [
        ("a.cpython-311-x86_64-linux-gnu.so", (3, 11), True),
        ("a.cpython-310-x86_64-linux-gnu.so", (3, 11), False),
        ("a.cpython-313t-x86_64-linux-gnu.so", (3, 13), True),
        ("a.pypy310-pp73-x86_64-linux-gnu.so", (3, 10), False),
        ("a.abi3.so", (3, 12), True),
        ("libx.so.1", (3, 12), True),
    ],
)
def test_importable(path: str, python: tuple[int, ...], wanted: bool) -> None:
    assert importable(path, python) is wanted
