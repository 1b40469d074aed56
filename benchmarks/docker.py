"""One line of a patch changed, with Docker: our layers against one `RUN pip install`, built and pushed."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure, peers, subject
from benchmarks.measure import Row

if TYPE_CHECKING:
    from tests.support.engine import TestEngine

BIN = Path(sys.executable).parent
_STACK = """\
schema = 1
name = "bench"
summary = "Large wheels, and a small patched one"

[target]
platform = "linux/amd64"
python = "3.11"

[base]
debian = {{ suite = "bookworm" }}

[system]
packages = ["ca-certificates", "python3"]

[resolve]
as-of = 2026-11-15T00:00:00Z

[[layer]]
name = "large"
requirements = [{large}]

[[layer]]
name = "patched"
requirements = ["jinja2==3.1.6"]
patches = ["patches/*.patch"]
"""
_PATCH = """\
--- a/jinja2/__init__.py
+++ b/jinja2/__init__.py
@@ -1,3 +1,4 @@
+# {line}
 \"\"\"Jinja is a template engine written in pure Python. It provides a
 non-XML syntax that supports inline expressions and an optional
 sandboxed environment.
"""
# What is written by hand, where everything is installed and patched in one go.
_USUAL = """\
FROM imagebuilder:bench
RUN --mount=type=bind,source=wheels/bench,target=/w --mount=type=bind,source=patches,target=/p \\
    /opt/venv/bin/python -m pip install --no-deps --no-index --no-cache-dir /w/*.whl && \\
    cat /p/line >> /opt/venv/lib/python3.11/site-packages/jinja2/__init__.py
"""


def run(folder: Path) -> Iterator[Row]:
    """Seconds of building and pushing again, and the bytes of the layers that the registry had not seen."""
    from tests.support.registry import run_registry

    engine = peers.containerd_engine("docker")
    if engine is None:
        return
    peers.load_base(folder, engine)
    _write_stack(folder)
    with run_registry(folder / "registry") as there:
        ours, usual = _Ours(folder, there.host, engine), _Usual(folder, there.host, engine)
        try:
            before = ours.build("first line"), usual.build("first line")
            after = ours.build("second line"), usual.build("second line")
        finally:
            for way in (ours, usual):
                engine.docker("rmi", "--force", way.tag, check=False)
    new = [sum(now.layers[d] for d in now.layers.keys() - old.layers.keys())
           for old, now in zip(before, after, strict=True)]  # fmt: skip
    yield measure.at_most("layers that are new with ours, MB", new[0] / 1e6, 10, "MB")
    yield measure.at_least("bytes of new layers: one pip install / ours", new[1] / new[0], 10)
    yield measure.at_least("build and push again: one pip install / ours", after[1].wall / after[0].wall, 5)


class _Built:
    """wall: seconds of building and pushing. layers: digest → bytes, as the registry has them."""

    def __init__(self, wall: float, host: str, repository: str) -> None:
        self.wall = wall
        at = f"http://{host}/v2/{repository}/manifests"
        manifest = _get(f"{at}/latest")
        if "manifests" in manifest:  # BuildKit's attestation lies beside the image
            (image,) = (m for m in manifest["manifests"] if m["platform"]["os"] == "linux")
            manifest = _get(f"{at}/{image['digest']}")
        self.layers = {layer["digest"]: layer["size"] for layer in manifest["layers"]}


def _get(url: str) -> Any:
    kinds = ("index", "manifest")
    accept = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in kinds)
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept})) as answer:
        return json.load(answer)


class _Ours:
    def __init__(self, folder: Path, host: str, engine: TestEngine) -> None:
        self.folder, self.host, self.engine = folder, host, engine
        self.tag = f"{host}/ours:latest"

    def build(self, line: str) -> _Built:
        (self.folder / "patches" / "line.patch").write_text(_PATCH.format(line=line))
        program, stack = str(BIN / "imagebuilder"), str(self.folder / "bench.toml")
        run = [program, "build", stack, "--quiet", "--no-check"]  # torch is not in this stack
        run += ["--builder", "docker", "--tag", self.tag, "--push"]
        run += ["--output", str(self.folder / "image")]
        locked = measure.command([program, "lock", stack])  # the lock holds the patch's hash
        built = measure.command(run, **self.engine.environment)
        return _Built(locked.wall + built.wall, self.host, "ours")


class _Usual:
    def __init__(self, folder: Path, host: str, engine: TestEngine) -> None:
        self.folder, self.host, self.engine = folder, host, engine
        self.tag = f"{host}/usual:latest"
        (folder / "Dockerfile").write_text(_USUAL)

    def build(self, line: str) -> _Built:
        (self.folder / "patches" / "line").write_text(f"# {line}\n")
        environment = self.engine.environment
        built = measure.command(
            ["docker", "build", "--quiet", "-t", self.tag, str(self.folder)], **environment
        )
        pushed = measure.command(["docker", "push", "--quiet", self.tag], **environment)
        return _Built(built.wall + pushed.wall, self.host, "usual")


def _write_stack(folder: Path) -> None:
    """The stack, locked and fetched; its large wheels are those that are measured everywhere here."""
    _, lock = subject.stack_and_lock(subject.BIG)
    large = ", ".join(f'"{wheel.name}=={wheel.version}"' for wheel in lock.wheels)
    (folder / "bench.toml").write_text(_STACK.format(large=large))
    (folder / "patches").mkdir()
    (folder / "patches" / "line.patch").write_text(_PATCH.format(line="no line"))
    (folder / ".dockerignore").write_text("*\n!wheels/bench\n!patches/line\n")
    for verb in ("lock", "fetch"):
        measure.command([str(BIN / "imagebuilder"), verb, str(folder / "bench.toml")])
