"""The emulated loader against this machine's: random families of libraries, compiled and really loaded."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuilder.facts.elf import ElfFacts, read_elf
from imagebuilder.facts.filesystem import Assumed, FileSystem
from imagebuilder.facts.loader import Outcome, Process

LIBRARIES = 6
SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib", "/lib64")
needs_gcc = pytest.mark.skipif(
    not shutil.which("gcc") or sys.platform != "linux" or sys.maxsize < 2**32, reason="gcc is not installed"
)

# Loads each (path, everywhere) in turn in one process, and prints what the loader said.
LOAD = """
import ctypes, json, sys
said = []
for path, everywhere in json.load(sys.stdin):
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL if everywhere else ctypes.RTLD_LOCAL)
        said.append("")
    except OSError as error:
        said.append(str(error))
print(json.dumps(said))
"""


class Disk(Mapping[str, ElfFacts]):
    """Facts of this machine's libraries, read when asked for."""

    def __init__(self) -> None:
        self._read: dict[str, ElfFacts] = {}

    def __getitem__(self, path: str) -> ElfFacts:
        real = str(Path(path).resolve())
        if real not in self._read:
            with Path(real).open("rb") as file:
                facts = read_elf(file, real)
            if facts is None:
                raise KeyError(path)
            self._read[real] = facts
        return self._read[real]

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and Path(path).is_file() and not Path(path).is_symlink()

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


class Links(Mapping[str, str]):
    """This machine's symbolic links."""

    def __getitem__(self, path: str) -> str:
        return str(Path(path).resolve())

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and Path(path).is_symlink()

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(())

    def __len__(self) -> int:
        return 0


def _family(folder: Path, chance: random.Random) -> list[Path]:
    """Libraries that need each other by name, with and without a way to find each other."""
    places = [folder / name for name in ("a", "b", "a/deep")]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    where = [chance.choice(places) for _ in range(LIBRARIES)]
    paths = [where[i] / f"lib{i}.so" for i in range(LIBRARIES)]
    dummies = folder / "dummies"
    dummies.mkdir()
    for i in range(LIBRARIES):
        subprocess.run(
            ["gcc", "-shared", "-o", str(dummies / f"lib{i}.so"), "-x", "c", "/dev/null",
             f"-Wl,-soname,lib{i}.so"], check=True,
        )  # fmt: skip
    for i, path in enumerate(paths):
        needed = [j for j in range(LIBRARIES) if j != i and chance.random() < 0.3]
        strong = [j for j in range(LIBRARIES) if j != i and chance.random() < 0.25]
        weak = [j for j in range(LIBRARIES) if j not in (i, *strong) and chance.random() < 0.15]
        source = f"int f{i}(void) {{ return {i}; }}\n"
        source += "".join(f"extern int f{j}(void);\n" for j in strong)
        source += "".join(f"extern int f{j}(void) __attribute__((weak));\n" for j in weak)
        uses = " + ".join(f"f{j}()" for j in strong) or "0"
        source += f"int g{i}(void) {{ return {uses}; }}\n"
        source += "".join(f"int (*p{i}_{j})(void) = f{j};\n" for j in weak)
        names = [
            chance.choice(
                [f"$ORIGIN/{Path('/', *p.parts).name}", str(p), "$ORIGIN", "${ORIGIN}/..", "$ORIGIN/../b"]
            )
            for p in places
            if chance.random() < 0.5
        ]
        options = [f"-Wl,-rpath,{':'.join(names)}"] if names else []
        options.append(chance.choice(["-Wl,--enable-new-dtags", "-Wl,--disable-new-dtags"]))
        if chance.random() < 0.7:
            options.append(f"-Wl,-soname,lib{i}.so")
        code = folder / f"{i}.c"
        code.write_text(source)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O0", str(code), "-o", str(path), *options,
             f"-L{dummies}", "-Wl,--no-as-needed", *[f"-l{j}" for j in needed],
             "-Wl,--unresolved-symbols=ignore-all"], check=True,
        )  # fmt: skip
    return paths


def _said(message: str, folder: Path) -> tuple[str, str]:
    if not message:
        return "loads", ""
    missing = re.match(r"(\S+): cannot open shared object file", message)
    if missing:
        return "library", missing[1].replace(str(folder), "")
    symbol = re.search(r"undefined symbol: (\w+)", message)
    return ("symbol", symbol[1]) if symbol else ("other", message)


def _mine(outcome: Outcome) -> tuple[str, str]:
    if outcome.libraries:
        return "library", outcome.libraries[0].name
    if outcome.symbols:
        return "symbol", outcome.symbols[0].symbol.name
    return "loads", ""


@needs_gcc
@pytest.mark.parametrize("seed", range(8))
def test_like_the_real_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    paths = _family(tmp_path, chance)
    order = [(str(path), chance.random() < 0.4) for path in paths for _ in range(2)]
    chance.shuffle(order)
    out = subprocess.run(
        [sys.executable, "-c", LOAD], input=json.dumps(order), capture_output=True, text=True, check=True
    ).stdout
    process = Process(
        FileSystem(libraries=Disk(), links=Links(), default_dirs=SYSTEM),
        program=Assumed(soname="python", provider="python", symbols="_?Py"),
    )
    mine = [_mine(process.load(path, everywhere=everywhere)) for path, everywhere in order]
    assert mine == [_said(text, tmp_path) for text in json.loads(out)]


def _elf(**more: object) -> ElfFacts:
    return ElfFacts(machine="x86_64", **more)  # type: ignore[arg-type]


def test_assumed_libraries_know_their_versions() -> None:
    libc = Assumed(soname="libc.so.6", provider="system", newest=(("GLIBC_", (2, 36)), ("GLIBC_ABI_", (99,))))
    assert libc.has_version("GLIBC_2.36")
    assert libc.has_version("GLIBC_2.2.5")
    assert not libc.has_version("GLIBC_2.38")
    assert libc.has_version("SOMETHING_1")


def test_a_chain_of_links_that_never_ends_is_no_library() -> None:
    files = FileSystem(libraries={}, links={"/a.so": "/b.so", "/b.so": "/a.so"})
    assert Process(files).load("/a.so").libraries[0].name == "/a.so"


def test_needing_oneself_and_each_other_ends() -> None:
    files = FileSystem(
        libraries={
            "/lib/a.so": _elf(soname="a.so", needed=("a.so", "b.so")),
            "/lib/b.so": _elf(soname="b.so", needed=("a.so",)),
        }
    )
    assert Process(files).load("/lib/a.so").loads
