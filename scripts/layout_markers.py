"""Write the markers of a layout change: names that exist only before, and only from one release on.

    python scripts/layout_markers.py torch 2.9 imagebuilder/data/layouts/c10-KernelFunction.bin 2.6.0 2.7.1 …

Reads the named releases of the package from the default index, by ranges, whole.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from packaging.version import Version

from imagebuilder.cache import Cache
from imagebuilder.facts.layouts import Markers
from imagebuilder.facts.store import FactStore
from imagebuilder.index.http import session
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.choose import best_wheel
from imagebuilder.lock.target import TargetFacts
from imagebuilder.settings import load
from imagebuilder.values import Platform, Release

# The package's own names: others (of std::, of libraries inside it) come and go without any generation.
OWN = re.compile(rb"_ZT?[VIS]?N?[KRVO]*(?:3c10|2at|5torch)|aoti_torch|torch_")
TARGET = TargetFacts(python=Release("3.11"), platform=Platform.parse("linux/amd64"), glibc=Release("2.36"))


def main(package: str, changed_in: str, out: str, *releases: str) -> None:
    """Record."""
    settings = load(os.environ)
    cache = Cache(settings.cache_dir)
    before, after = set[bytes](), set[bytes]()
    with session(settings) as http:
        indexes, store = Indexes((), settings, cache, http), FactStore(cache, http)
        files = indexes.project(package)
        for release in releases:
            wheel = best_wheel(files, Version(release), TARGET)
            assert wheel is not None, release
            address = wheel.url
            facts = store.wheel(wheel.sha256, wheel.filename, lambda address=address: address)  # type: ignore[misc]
            assert facts is not None
            names = {n for elf in facts.elf.values() for n in elf.names() if OWN.match(n)}
            (before if Version(release) < Version(changed_in) else after).update(names)
            print(release, len(names), file=sys.stderr)
    Path(out).write_bytes(Markers.make(before - after, after - before))


if __name__ == "__main__":
    main(*sys.argv[1:])
