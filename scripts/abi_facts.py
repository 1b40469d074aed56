"""Record what the loading tests need, reduced to what they ask, from real wheels read by ranges.

    python scripts/abi_facts.py TRUTH.tsv OUT.json.xz

TRUTH.tsv has lines of: torch wheel, extension wheel, member, mode (import | siblings), outcome, first symbol
or library; made by really loading each member after `import torch`. OUT holds these rows and, of every
library that can take part, only what the rows refer to. System libraries are recorded from this machine.

    IMAGEBUILDER_ABI_TRUTH=OUT.json.xz pytest tests/facts/test_loading_truth.py

then judges them.
"""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import tomli
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from imagebuilder.cache import Cache
from imagebuilder.facts.elf import ElfFacts, read_elf, symbol_hash
from imagebuilder.facts.record import WheelFacts
from imagebuilder.facts.store import FactStore
from imagebuilder.index.http import session
from imagebuilder.index.simple import Indexes
from imagebuilder.settings import Settings, load

SYSTEM = Path("/usr/lib/x86_64-linux-gnu")
PROGRAM = "/usr/bin/python3"
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in range(36, 4, -1)] + [
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
]


def tags(python: tuple[int, int]) -> dict[Tag, int]:
    """Tags of this Python on x86_64 with glibc 2.36, with their rank."""
    own = list(cpython_tags(python, platforms=PLATFORMS))
    both = own + list(compatible_tags(python, f"cp{python[0]}{python[1]}", platforms=PLATFORMS))
    return {tag: rank for rank, tag in enumerate(both)}


def closure(requirement: str, python: tuple[int, int] = (3, 11)) -> list[str]:
    """File names of the wheels that this requirement brings, as uv resolves it today."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.in"
        wanted.write_text(requirement)
        out = subprocess.run(
            [
                "uv", "pip", "compile", "--no-config", "--no-build", "--no-python-downloads", "-q",
                "--python-version", f"{python[0]}.{python[1]}", "--python-platform", "x86_64-manylinux_2_36",
                "--format", "pylock.toml", str(wanted),
            ],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    rank, names = tags(python), []
    for package in tomli.loads(out)["packages"]:
        fitting = []
        for wheel in package.get("wheels", ()):
            name = wheel.get("name") or wheel["url"].rsplit("/", 1)[1]
            _, _, build, its = parse_wheel_filename(name)
            ranks = [rank[t] for t in its if t in rank]
            if ranks:
                fitting.append((min(ranks), [-build[0]] if build else [0], name))
        names.append(min(fitting)[2])
    return names


class Source:
    """Facts of wheels by file name, from the default index."""

    def __init__(self, settings: Settings) -> None:
        self._cache = Cache(settings.cache_dir)
        self._http = session(settings)
        self._indexes = Indexes((), settings, self._cache, self._http)
        self._store = FactStore(self._cache, self._http)
        self._facts: dict[str, WheelFacts] = {}

    def facts(self, filename: str) -> WheelFacts:
        """Read once, kept in the cache."""
        if filename not in self._facts:
            project = re.sub(r"[-_.]+", "-", filename.split("-", 1)[0]).lower()
            file = next(f for f in self._indexes.project(project) if f.filename == filename)
            assert file.sha256 is not None
            print(f"reading {filename}", file=sys.stderr, flush=True)
            found = self._store.wheel(file.sha256, filename, lambda: file.url)
            assert found is not None
            self._facts[filename] = found
        return self._facts[filename]


def torch_closure(torch: str) -> list[str]:
    """The vendor libraries that this torch wheel pins."""
    release = torch.split("-")[1]
    return sorted(n for n in closure(f"torch=={release}") if n.startswith("nvidia_"))


def system_facts(needed: set[str]) -> tuple[dict[str, ElfFacts], dict[str, str]]:
    """This machine's libraries of these names with all they need, and the links that lead to them."""
    libraries, links, waiting = dict[str, ElfFacts](), dict[str, str](), sorted(needed)
    program = _read(Path(sys.executable).resolve())
    libraries[PROGRAM] = replace(program, rpath=(), runpath=())  # where this machine has it does not matter
    waiting.extend(program.needed)
    while waiting:
        path = SYSTEM / waiting.pop()
        if path.is_file() and str(path) not in libraries and str(path) not in links:
            real = path.resolve()
            if real != path:
                links[str(path)] = str(real)
            if str(real) not in libraries:
                libraries[str(real)] = _read(real)
                waiting.extend(libraries[str(real)].needed)
    return libraries, links


def _read(path: Path) -> ElfFacts:
    with path.open("rb") as file:
        facts = read_elf(file, path.name)
    assert facts is not None
    return facts


class Reducer:
    """Writes libraries with only those exports that some extension wants."""

    def __init__(self, extensions: list[WheelFacts]) -> None:
        wanted = {w for facts in extensions for elf in facts.elf.values() for w in elf.wanted}
        self.names = sorted({w.name for w in wanted})
        self.references = sorted({(w.version, w.file) for w in wanted})
        self._name = {name: i for i, name in enumerate(self.names)}
        self._reference = {reference: i for i, reference in enumerate(self.references)}
        keys = {w.name for w in wanted} | {f"{w.name}@{w.version}" for w in wanted if w.version}
        self.keys = sorted(keys | {f"{w.name}@" for w in wanted if w.version})
        self._hashes = [symbol_hash(key.encode()) for key in self.keys]

    def elf(self, facts: ElfFacts, *, with_wanted: bool) -> dict[str, object]:
        """One library."""
        plain, versioned = set(facts.exports.plain), set(facts.exports.versioned)
        return {
            "soname": facts.soname,
            "needed": facts.needed,
            "rpath": facts.rpath,
            "runpath": facts.runpath,
            "version_defs": facts.version_defs,
            "version_needs": [(n.file, n.versions) for n in facts.version_needs] if with_wanted else [],
            "wanted": [
                (self._name[w.name], self._reference[w.version, w.file], w.weak + 2 * w.referenced)
                for w in facts.wanted
            ]
            if with_wanted
            else [],
            "plain": [i for i, hashed in enumerate(self._hashes) if hashed in plain],
            "versioned": [i for i, hashed in enumerate(self._hashes) if hashed in versioned],
            "has_versions": facts.exports.has_versions,
        }

    def wheel(self, facts: WheelFacts, *, with_wanted: bool) -> dict[str, object]:
        """One wheel."""
        kept = re.findall(r"(?m)^(?:Metadata-Version|Name|Version|Requires-Dist: torch\b).*$", facts.metadata)
        return {
            "metadata": "\n".join(kept) + "\n",
            "preloads": [(p.folder, p.pattern) for p in facts.preloads],
            "elf": {path: self.elf(elf, with_wanted=with_wanted) for path, elf in sorted(facts.elf.items())},
        }


def main(truth: Path, out: Path) -> None:
    """Record."""
    import os

    rows = [line.split("\t") for line in truth.read_text().splitlines()[1:]]
    source = Source(load(os.environ))
    torches, extensions = sorted({r[0] for r in rows}), sorted({r[1] for r in rows})
    closures = {torch: torch_closure(torch) for torch in torches}
    reducer = Reducer([source.facts(name) for name in extensions])
    wheels = {name: reducer.wheel(source.facts(name), with_wanted=True) for name in extensions}
    needed = {n for name in extensions for elf in source.facts(name).elf.values() for n in elf.needed}
    for name in sorted({name for c in closures.values() for name in c} | set(torches)):
        wheels[name] = reducer.wheel(source.facts(name), with_wanted=False)
        needed |= {n for elf in source.facts(name).elf.values() for n in elf.needed}
    libraries, links = system_facts(needed)
    document = {
        "names": reducer.names,
        "references": reducer.references,
        "keys": reducer.keys,
        "wheels": wheels,
        "closures": closures,
        "system": {path: reducer.elf(elf, with_wanted=False) for path, elf in sorted(libraries.items())},
        "links": links,
        "program": PROGRAM,
        "rows": rows,
    }
    out.write_bytes(lzma.compress(json.dumps(document, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
