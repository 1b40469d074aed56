"""Builds the stacks whose digests tests compare with, and writes tests/data/golden. Needs a network."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.command import Machine, give_files
from tests.support.dockerfiles import dockerfile_of, golden_path, names
from tests.support.golden import FOLDER, STACKS, fetch, summary


def main() -> None:
    """One file for each stack. Downloads come from this user's cache, layers do not."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for stack, place in STACKS.items():
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(root=Path(folder))
            give_files(fetch(stack, machine), machine.cache)
            record = machine.build(place(machine), "--locked", "--offline")
        path = FOLDER / f"{stack}.json"
        path.write_text(json.dumps(summary(record), indent=2) + "\n", encoding="utf-8")
        print(f"{record['manifest']}  {path.name}")
    for name in names():
        with tempfile.TemporaryDirectory() as folder:
            golden_path(name).write_text(dockerfile_of(name, Path(folder)), encoding="utf-8")
        print(golden_path(name).name)


if __name__ == "__main__":
    main()
