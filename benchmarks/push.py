"""An image into an empty registry on loopback: ours against `docker push`, `skopeo copy` and `curl -T`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import measure, subject
from benchmarks.measure import Row

ROUNDS = 3


def run(folder: Path) -> Iterator[Row]:
    """The same blobs each time, and each time a new registry, so that nothing can be skipped or linked."""
    from tests.support.engine import engines
    from tests.support.registry import run_registry

    if not shutil.which("docker-registry"):
        print("push      left out: needs docker-registry", file=sys.stderr)
        return
    layout = folder / "image"
    measure.function("layout", str(folder / "cache"), str(layout), *subject.BIG)
    size = sum(f.stat().st_size for f in (layout / "blobs" / "sha256").iterdir())
    yield measure.at_least("the image, GB", size / 1e9, 1, "GB")
    peers: dict[str, Callable[[str], measure.Cost]] = {"curl -T, one blob after the other": _curl(layout)}
    if shutil.which("skopeo"):
        peers["skopeo copy"] = _skopeo(layout)
    usable = [engine for engine in engines() if engine.kind in ("containerd", "classic")]
    for engine in usable:
        archive = subprocess.run(["tar", "-C", str(layout), "-cf", "-", "."], check=True, capture_output=True)
        engine.docker("load", data=archive.stdout)
        del archive
        peers[f"docker push ({engine.kind})"] = _docker(engine)
    pairs: dict[str, list[tuple[measure.Cost, measure.Cost]]] = {name: [] for name in peers}
    try:
        for number in range(ROUNDS):
            for name, push in peers.items():
                with run_registry(folder / f"theirs{number}") as there:
                    theirs = push(there.host)
                with run_registry(folder / f"ours{number}") as there:
                    ours = measure.function("push_layout", str(folder / "cache"), str(layout), there.host)
                pairs[name].append((theirs, ours))
    finally:
        for engine in usable:
            engine.docker("rmi", "--force", "imagebuilder:push", check=False)
    for name, measured in pairs.items():
        bound = 0.8 if name.startswith("curl") else 1.0
        yield measure.at_least(f"{name} / imagebuilder push", measure.ratio(measured), bound)


def _skopeo(layout: Path) -> Callable[[str], measure.Cost]:
    def push(host: str) -> measure.Cost:
        target = f"docker://{host}/bench:push"
        return measure.command(
            ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}:push", target]
        )

    return push


def _docker(engine: object) -> Callable[[str], measure.Cost]:
    def push(host: str) -> measure.Cost:
        tag = f"{host}/bench:push"
        engine.docker("tag", "imagebuilder:push", tag)  # type: ignore[attr-defined]
        try:
            return measure.command(["docker", "push", "--quiet", tag], **engine.environment)  # type: ignore[attr-defined]
        finally:
            engine.docker("rmi", "--force", tag, check=False)  # type: ignore[attr-defined]

    return push


def _curl(layout: Path) -> Callable[[str], measure.Cost]:
    """What the registry itself needs for these bytes: the floor of any push over one connection."""
    script = """
for blob in {layout}/blobs/sha256/*; do
    at=$(curl -sS -X POST -D - -o /dev/null http://{host}/v2/bench/blobs/uploads/ |
        tr -d '\\r' | sed -n 's/^Location: //p')
    curl -sS --fail -o /dev/null -H Expect: -H 'Content-Type: application/octet-stream' -T "$blob" \
        "$at&digest=sha256:${{blob##*/}}"
done
"""

    def push(host: str) -> measure.Cost:
        return measure.command(["sh", "-ec", script.format(layout=layout, host=host)])

    return push
