"""The front of a library tells what its dynamic section says; where it does not, nothing is claimed."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from imagebuilder.facts.elf import ElfFacts, read_elf
from imagebuilder.facts.prefix import read_front

needs_gxx = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")

SOURCE = """
#include <string>
#include <map>
#include <stdexcept>
std::map<std::string, int> seen;
extern "C" int elsewhere(int);
extern "C" int perhaps(int) __attribute__((weak));
int (*pointer)(int) = elsewhere;
thread_local int local_to_thread = 3;
template <int N> struct Many {
    static int run(int x) { return x < 0 ? elsewhere(N) : Many<N - 1>::run(x - 1); }
};
template <> struct Many<0> { static int run(int) { return 0; } };
int work(int x) {
    seen[std::to_string(x)] += local_to_thread;
    if (perhaps) x += perhaps(x);
    if (x > 99) throw std::runtime_error("x");
    return Many<40>::run(x);
}
"""


def _build(folder: Path, *options: str) -> bytes:
    source, out = folder / "a.cc", folder / "liba.so"
    source.write_text(SOURCE)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-O1", str(source), "-o", str(out),
         "-Wl,--unresolved-symbols=ignore-all", *options], check=True,
    )  # fmt: skip
    return out.read_bytes()


def _key(facts: ElfFacts) -> set[tuple[str, str, str, bool]]:
    return {(w.name, w.version, w.file, w.weak) for w in facts.wanted}


@needs_gxx
@pytest.mark.parametrize("options", [(), ("-Wl,-z,noseparate-code",), ("-Wl,-z,now",), ("-s",)])
def test_equals_the_whole(tmp_path: Path, options: tuple[str, ...]) -> None:
    data = _build(tmp_path, *options)
    whole = read_elf(io.BytesIO(data), "liba.so")
    front = read_front(io.BytesIO(data), "liba.so")
    assert whole is not None
    assert front is not None
    assert _key(front) == _key(whole)
    strong = {w.name for w in whole.wanted if w.referenced and not w.weak}
    assert {w.name for w in front.wanted if w.referenced and not w.weak} == strong
    assert set(front.needed) == set(whole.needed)
    assert front.exports.plain == whole.exports.plain
    assert front.version_needs == whole.version_needs


@needs_gxx
def test_other_layouts_are_none(tmp_path: Path) -> None:
    assert read_front(io.BytesIO(_build(tmp_path, "-Wl,--hash-style=sysv")), "liba.so") is None
    assert read_front(io.BytesIO(b""), "x") is None
    assert read_front(io.BytesIO(b"\x7fELF\x02\x01" + bytes(200)), "x") is None


@needs_gxx
def test_damage_never_crashes_or_hangs(tmp_path: Path) -> None:
    data, chance = _build(tmp_path), random.Random(2)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 4, 30))):
            broken[chance.randrange(min(len(broken), 8000))] = chance.randrange(256)
        read_front(io.BytesIO(bytes(broken)), "liba.so")
