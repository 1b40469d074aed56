"""Record what the tests of the checks need, reduced to what decides them, from real wheels read by ranges.

    python scripts/record_check_facts.py [OUT.json.xz]

Recorded are the wheels of the shipped stacks' locks, those that a case of tests/checks/cases names, and ten
releases of torch. Of a library those exports are kept that another one wants or by which it differs from
another package's at that path; of its wants what neither Python nor the C and C++ libraries answer; of the
files of a wheel the libraries and what another wheel owns too. The findings on the shipped stacks are
compared with those on the whole facts before anything is written.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import tomli  # noqa: E402
from packaging.utils import canonicalize_name, parse_wheel_filename  # noqa: E402

from imagebuilder.cache import Cache  # noqa: E402
from imagebuilder.checks.gather import gather  # noqa: E402
from imagebuilder.checks.registry import find  # noqa: E402
from imagebuilder.checks.subject import Subject  # noqa: E402
from imagebuilder.facts.elf import ElfFacts, symbol_hash  # noqa: E402
from imagebuilder.facts.environment import PYTHON, SystemFacts  # noqa: E402
from imagebuilder.facts.record import WheelFacts  # noqa: E402
from imagebuilder.facts.store import FactStore  # noqa: E402
from imagebuilder.index.http import session  # noqa: E402
from imagebuilder.index.simple import Indexes  # noqa: E402
from imagebuilder.lock.pylock import read_lock  # noqa: E402
from imagebuilder.plan import make_plan  # noqa: E402
from imagebuilder.progress import Silent  # noqa: E402
from imagebuilder.settings import load  # noqa: E402
from imagebuilder.stack import load_stack  # noqa: E402
from tests.support.check_facts import FILE, TORCHES, Recorded  # noqa: E402

STACKS = ("cu128-debian", "cu130-debian", "cu128", "demo")
_DROPPED = re.compile(r"(?:GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP|ZLIB)_")
_KEPT_METADATA = re.compile(
    r"(?m)^(?:Metadata-Version|Name|Version|Requires-Dist|Requires-Python|Provides-Extra):.*$"
)


class Reducer:
    """Number tables for names, and libraries by their numbers."""

    def __init__(self, wheels: Iterable[WheelFacts], shown: Iterable[str]) -> None:
        wanted = {w for facts in wheels for elf in facts.elf.values() for w in _open(elf)}
        self.names = sorted({w.name for w in wanted})
        self.references = sorted({(w.version, w.file) for w in wanted})
        self._name = {name: i for i, name in enumerate(self.names)}
        self._reference = {reference: i for i, reference in enumerate(self.references)}
        keys = {w.name for w in wanted} | {f"{w.name}@{w.version}" for w in wanted if w.version}
        self.keys = sorted({*keys, *(f"{w.name}@" for w in wanted if w.version), *shown})
        self._hashes = [symbol_hash(key.encode()) for key in self.keys]

    def elf(self, facts: ElfFacts, *, wanted: bool = True) -> dict[str, Any]:
        """One library; what is empty is left out."""
        plain, versioned = set(facts.exports.plain), set(facts.exports.versioned)
        said = {
            "soname": facts.soname,
            "needed": facts.needed,
            "rpath": facts.rpath,
            "runpath": facts.runpath,
            "version_defs": facts.version_defs,
            "version_needs": [(n.file, n.versions) for n in facts.version_needs],
            "wanted": [
                (self._name[w.name], self._reference[w.version, w.file], w.weak + 2 * w.referenced)
                for w in (_open(facts) if wanted else ())
            ],
            "plain": [i for i, hashed in enumerate(self._hashes) if hashed in plain],
            "versioned": [i for i, hashed in enumerate(self._hashes) if hashed in versioned],
            "has_versions": facts.exports.has_versions,
        }
        return {key: value for key, value in said.items() if value}

    def wheel(self, facts: WheelFacts, shared: set[str]) -> dict[str, Any]:
        """One wheel."""
        said = {
            "metadata": "\n".join(
                _KEPT_METADATA.findall(re.split(r"\r?\n\r?\n", facts.metadata, maxsplit=1)[0])
            )
            + "\n",
            "tags": facts.tags,
            "scripts": facts.scripts,
            "files": {p: (f.crc, f.size) for p, f in facts.files.items() if p in shared or p in facts.elf},
            "elf": {path: self.elf(elf) for path, elf in sorted(facts.elf.items())},
            "gpu": {
                path: [(" ".join(map(str, g.entries)), g.count) for g in code.groups]
                for path, code in sorted(facts.gpu.items())
            },
            "literals": [(x.path, x.line, x.text) for x in facts.literals],
            "preloads": [(x.folder, x.pattern) for x in facts.preloads],
            "tools": [(t.path, t.release, t.names) for t in facts.tools],
            "problems": facts.problems,
        }
        return {key: value for key, value in said.items() if value}


def _open(elf: ElfFacts) -> Iterator[Any]:
    """What a library wants of others than Python and the C and C++ libraries."""
    for wanted in elf.wanted:
        if not wanted.weak and not _DROPPED.match(wanted.version) and not PYTHON.defines(wanted):
            yield wanted


def _only_in_one(wheels: Mapping[str, WheelFacts]) -> Iterator[str]:
    """The first names that only one of two packages' libraries at one path has; one more than is shown."""
    owners: dict[str, list[tuple[str, ElfFacts]]] = {}
    for filename, facts in wheels.items():
        for path, elf in facts.elf.items():
            owners.setdefault(path, []).append((filename.split("-")[0], elf))
    for there in owners.values():
        for (one, first), (two, second) in permutations(there, 2):
            if one != two:
                yield from (
                    n.decode(errors="replace") for n in sorted({*first.names()} - {*second.names()})[:5]
                )


def extra_wheels() -> list[str]:
    """File names of wheels that tests name, whether or not a shipped lock has them."""
    names: dict[str, None] = dict.fromkeys(TORCHES)
    for case in sorted((ROOT / "tests" / "checks" / "cases").glob("*.toml")):
        names.update(dict.fromkeys(tomli.loads(case.read_text()).get("wheels", ())))
    return list(names)


def read_extra(store: FactStore, indexes: Indexes, filename: str) -> WheelFacts:
    """One wheel of the default index."""
    file = next(
        f
        for f in indexes.project(canonicalize_name(parse_wheel_filename(filename)[0]))
        if f.filename == filename
    )
    print(f"reading {filename}", file=sys.stderr, flush=True)
    facts = store.wheel(file.sha256, filename, lambda: file.url)
    assert facts is not None
    return facts


def main(out: Path) -> None:
    """Read, reduce, compare, write."""
    settings = load(os.environ)
    cache = Cache(settings.cache_dir)
    subjects: dict[str, Subject] = {}
    for name in STACKS:
        print(f"reading {name}", file=sys.stderr, flush=True)
        stack = load_stack(ROOT / "stacks" / f"{name}.toml")
        lock = read_lock(ROOT / "stacks" / f"pylock.{name}.toml")
        subjects[name] = gather(
            stack, lock, make_plan(stack, lock), settings=settings, cache=cache, reporter=Silent()
        )
        assert not subjects[name].unread and not subjects[name].gone, (
            subjects[name].unread,
            subjects[name].gone,
        )
    wheels = {s.lock.by_name[n].filename: f for s in subjects.values() for n, f in s.facts.items()}
    with session(settings) as http, ThreadPoolExecutor(3) as pool:
        store, indexes = FactStore(cache, http), Indexes((), settings, cache, http)
        extra = [name for name in extra_wheels() if name not in wheels]
        wheels.update(zip(extra, pool.map(lambda n: read_extra(store, indexes, n), extra), strict=True))
    systems = {name: s.system for name, s in subjects.items() if not s.system_is_assumed}
    whole = {name: find(s) for name, s in subjects.items()}
    shown = {
        m[1]
        for found in whole.values()
        for f in found
        for e in f.evidence
        if (m := re.search(r" defines (\S+)$", e))
    }
    reducer = Reducer(wheels.values(), shown | set(_only_in_one(wheels)))
    owners = Counter(path for facts in wheels.values() for path in facts.files)
    shared = {path for path, count in owners.items() if count > 1 and not path.startswith("../../../bin/")}
    document = {
        "names": reducer.names,
        "references": reducer.references,
        "keys": reducer.keys,
        "wheels": {name: reducer.wheel(facts, shared) for name, facts in sorted(wheels.items())},
        "systems": {name: _system(reducer, system) for name, system in systems.items()},
    }
    data = lzma.compress(json.dumps(document, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME)
    recorded = Recorded(data)
    for name, subject in subjects.items():
        again = find(
            replace(
                subject,
                facts={n: recorded.wheel(subject.lock.by_name[n].filename) for n in subject.facts},
                system=recorded.system(name) if name in systems else subject.system,
            )
        )
        different = set(map(repr, again)) ^ set(map(repr, whole[name]))
        assert not different, f"{name}: reduced facts give other findings:\n" + "\n".join(sorted(different))
    out.write_bytes(data)
    print(f"{out}: {len(data)} bytes, {len(wheels)} wheels", file=sys.stderr)


def _system(reducer: Reducer, system: SystemFacts) -> dict[str, Any]:
    return {
        "libraries": {path: reducer.elf(elf, wanted=False) for path, elf in sorted(system.libraries.items())},
        "links": dict(system.links),
        "default_dirs": system.default_dirs,
        "lib": system.lib,
        "program": system.program,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
