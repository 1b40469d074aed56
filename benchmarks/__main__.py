"""`python -m benchmarks [NAME…]`: run benchmarks and print ratios; exits with 1 when a bound is missed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import check, client, compare, docker, layers, peer_load, peers, push, rebuild, statistics
from benchmarks.measure import Row

BENCHMARKS: dict[str, Callable[[Path], Iterable[Row]]] = {
    "layers": layers.run,
    "rebuild": rebuild.run,
    "install": peers.run_install,
    "registry": peers.run_registry,
    "docker": docker.run,
    "push": push.run,
    "diff": compare.run,
    "check": check.run,
    "statistics": statistics.run,
    "client": client.run,
    "peer-load": peer_load.run,
}


def main() -> int:
    unknown = set(sys.argv[1:]) - set(BENCHMARKS)
    if unknown:
        print(
            f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}",
            file=sys.stderr,
        )
        return 2
    missed = 0
    for name in sys.argv[1:] or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix="imagebuilder-bench-") as folder:
            for row in BENCHMARKS[name](Path(folder)):
                print(f"{name:9} {row}", flush=True)
                missed += not row.holds
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
