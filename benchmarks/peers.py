"""The usual ways of getting wheels into an image, beside ours: pip, uv, tar, gzip, docker build and push."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import measure, subject
from benchmarks.measure import Row

if TYPE_CHECKING:
    from tests.support.engine import TestEngine

BIN = Path(sys.executable).parent
_TAGS = ["--python-version", "3.11", "--only-binary=:all:"]


def _wheel_folder(folder: Path) -> list[str]:
    wheels = folder / "wheels"
    wheels.mkdir(exist_ok=True)
    for filename, path in subject.wheel_files(subject.BIG).items():
        if not (wheels / filename).exists():
            shutil.copyfile(path, wheels / filename)
    return sorted(str(path) for path in wheels.iterdir())


def run_install(folder: Path) -> Iterator[Row]:
    """Wheels to a compressed layer: ours against installing, packing with tar and compressing with gzip."""
    wheels = _wheel_folder(folder)
    target = folder / "target"
    peers = {
        "pip": [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", *_TAGS],
        "uv": [
            str(BIN / "uv"),
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-cache",
            "--python-version",
            "3.11",
        ],
    }
    ours = measure.function("layers", str(folder / "cache"), "1", *subject.BIG)
    for name, install in peers.items():
        shutil.rmtree(target, ignore_errors=True)
        installed = measure.command([*install, "--target", str(target), *wheels])
        packed = measure.command(
            ["sh", "-c", f"tar -C {target} -cf - . | gzip -6 > {folder / 'layer.tar.gz'}"]
        )
        yield measure.at_least(
            f"{name} install, tar, gzip / ours", (installed.wall + packed.wall) / ours.wall, 5
        )
    shutil.rmtree(target)


def run_registry(folder: Path) -> Iterator[Row]:
    """Cached wheels to blobs in a registry on loopback: ours against `docker build` and `docker push`."""
    from tests.support.registry import run_registry

    engine = containerd_engine("registry")
    if engine is None:
        return
    _wheel_folder(folder)
    shutil.copyfile(BIN / "uv", folder / "wheels" / "uv")
    (folder / "wheels" / "uv").chmod(0o755)
    load_base(folder, engine)
    with run_registry(folder / "registry") as there:
        ours = _ours(folder, there.host)
        for name, bound in (("pip", 5), ("uv", 10)):
            tag = f"{there.host}/{name}:latest"
            engine.docker("tag", "imagebuilder:bench", tag)
            engine.docker("push", "--quiet", tag)  # so that only what is built is measured
            (folder / "Dockerfile").write_text(_dockerfile(name))
            build = ["docker", "build", "--quiet", "--no-cache", "-t", tag, str(folder)]
            built = measure.command(build, **engine.environment)
            pushed = measure.command(["docker", "push", "--quiet", tag], **engine.environment)
            yield measure.at_least(
                f"docker build with {name}, docker push / ours", (built.wall + pushed.wall) / ours, bound
            )
            engine.docker("rmi", "--force", tag)


def _dockerfile(name: str) -> str:
    install = {
        "pip": "/opt/venv/bin/python -m pip install --no-deps --no-index --no-cache-dir /w/*.whl",
        "uv": "/w/uv pip install --python /opt/venv/bin/python --no-deps --no-index --no-cache /w/*.whl",
    }[name]
    return f"FROM imagebuilder:bench\nRUN --mount=type=bind,source=wheels,target=/w {install}\n"


def containerd_engine(benchmark: str) -> TestEngine | None:
    """A running engine with the containerd store, where there is a registry to push to as well."""
    from tests.support.engine import engines

    usable = [engine for engine in engines() if engine.kind == "containerd"]
    if usable and shutil.which("docker-registry"):
        return usable[0]
    print(
        f"{benchmark:9} left out: needs `scripts/engine start containerd` and docker-registry",
        file=sys.stderr,
    )
    return None


def load_base(folder: Path, engine: TestEngine) -> None:
    """The demo image as the base of the Docker builds: Debian, Python and pip."""
    layout = folder / "base"
    measure.command([str(BIN / "imagebuilder"), "build", "demo", "--quiet", "--output", str(layout)])
    archive = subprocess.run(
        ["tar", "-C", str(layout), "-cf", "-", "."], check=True, capture_output=True
    ).stdout
    engine.docker("load", data=archive)
    engine.docker("tag", "imagebuilder:demo", "imagebuilder:bench")


def _ours(folder: Path, host: str) -> float:
    """Seconds from cached wheels to the registry: layers by all workers, then our own push."""
    return measure.function("push", str(folder / "ours"), host, *subject.BIG).wall
