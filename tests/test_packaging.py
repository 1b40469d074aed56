"""The wheel carries all that the program needs, and works where nothing of the checkout is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from the checkout without touching it."""
    out = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_carries_stacks_templates_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("stacks", "templates"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                assert f"imagebuilder/data/{folder}/{path.relative_to(ROOT / folder)}" in names
    assert "imagebuilder/data/stack.schema.json" in names
    assert not [n for n in names if n.startswith(("tests/", "docs/", "benchmarks/"))]


def test_an_installed_wheel_lists_and_loads_the_shipped_stacks(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # Its dependencies come from the environment that runs the tests; imagebuilder itself only from the wheel.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import imagebuilder, imagebuilder.stack as s; print(imagebuilder.__file__);"
        "print(*(s.load_stack(p).name for p in s.shipped_stacks()))"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=env
    )
    where, names = done.stdout.splitlines()
    assert where.startswith(str(site))
    assert set(names.split()) >= {"demo", "cu128", "cu130", "cu128-debian", "cu130-debian"}
