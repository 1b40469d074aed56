"""One stack and lock give one digest, whatever else changes: real wheels and the shipped demo, really built.

A stack of real wheels is built under one changed condition after the other, the demo under many at once.
Every build is one of the real command in a process of its own, from downloaded files, with no layer cached.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support.command import ROOT, Machine, give_files, install, interpreters
from tests.support.golden import STACKS, check, fetch, golden, summary

pytestmark = pytest.mark.network

AS_ROOT = os.geteuid() == 0
NOBODY = 65534
SYSTEM_PYTHON = Path("/usr/bin/python3")
OTHERS = list(interpreters())

ZLIB = "import zlib; from imagebuilder.oci import inflate; inflate.use_library(zlib)"
ZLIB_NG = "from zlib_ng import zlib_ng; from imagebuilder.oci import inflate; inflate.use_library(zlib_ng)"
# As a distribution that builds Python with zlib-ng: everybody who imports zlib gets it, and there is no isal.
DISTRIBUTION = (
    "import sys; from zlib_ng import zlib_ng; sys.modules['zlib'] = zlib_ng; sys.modules['isal'] = None"
)

OTHER_HOST = ("unshare", "--uts", "sh", "-c", 'hostname other && exec "$@"', "-")

Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, work)`: a folder that `work` fills, once for all workers of this run."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def make(name: str, work: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                work(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """The files of a stack's lock, in this user's cache, by sha256."""
    known: dict[str, dict[str, str]] = {}

    def files(stack: str) -> dict[str, str]:
        if stack not in known:
            known[stack] = fetch(stack, Machine(root=tmp_path_factory.mktemp("fetch")))
        return known[stack]

    return files


@pytest.fixture(scope="session")
def project_wheel(once: Once) -> Path:
    """imagebuilder's own wheel, built from the checkout."""

    def build(folder: Path) -> None:
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
        command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)

    return next(once("project-wheel", build).glob("*.whl"))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may read, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="imagebuilder-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What is other than usual. site: Python code that runs when the interpreter starts."""

    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    site: str = ""
    inflater: str = ""
    root: bool = False


CONDITIONS: dict[str, Condition] = {
    "as usual": Condition(),
    "no such home": Condition(environment={"HOME": "/nonexistent"}),
    "umask 077": Condition(more={"umask": 0o077}),
    "umask 000": Condition(more={"umask": 0}),
    "time zone": Condition(environment={"TZ": "Pacific/Kiritimati"}),
    "C locale": Condition(environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "Turkish": Condition(environment={"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"}),
    "hash seed 1": Condition(environment={"PYTHONHASHSEED": "1"}),
    "hash seed 2": Condition(environment={"PYTHONHASHSEED": "2"}),
    "optimized": Condition(environment={"PYTHONOPTIMIZE": "2"}),
    "SOURCE_DATE_EPOCH": Condition(environment={"SOURCE_DATE_EPOCH": "315532800"}),
    "host name": Condition(
        prefix=("unshare", "--uts", "sh", "-c", 'hostname other && exec "$@"', "-"), root=True
    ),
    "one worker": Condition(environment={"IMAGEBUILDER_WORKERS": "1"}),
    "seven workers": Condition(environment={"IMAGEBUILDER_WORKERS": "7"}),
    "inflated by zlib": Condition(site=ZLIB, inflater="zlib"),
    "inflated by zlib-ng": Condition(site=ZLIB_NG, inflater="zlib_ng"),
    "zlib is zlib-ng": Condition(site=DISTRIBUTION, inflater="zlib_ng"),
}


def build_under(condition: Condition, machine: Machine, argument: str, *more: str) -> dict[str, Any]:
    """The record of a build under this condition."""
    if condition.root and not AS_ROOT:
        pytest.skip("only root may do that")
    machine.environment |= condition.environment
    if condition.site:
        site = machine.root / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(condition.site + "\n")
        machine.environment["PYTHONPATH"] = str(site)
    record = machine.build(
        argument, "--locked", "--offline", *more, prefix=condition.prefix, **condition.more
    )
    if condition.inflater:
        assert record["builder"]["inflater"] == condition.inflater
    return record


@pytest.mark.parametrize("name", CONDITIONS)
def test_real_wheels(name: str, fetched: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    machine = Machine(root=tmp_path)
    give_files(fetched("wheels"), machine.cache)
    record = build_under(CONDITIONS[name], machine, STACKS["wheels"](machine))
    assert not record["unchanged"]
    check(record)


def test_real_wheels_from_elsewhere_by_path(fetched: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    """Another current folder, an absolute path with blanks and umlauts, into a tar file."""
    machine = Machine(root=tmp_path / "a folder für Bilder")
    give_files(fetched("wheels"), machine.cache)
    stack = machine.work / STACKS["wheels"](machine)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    output = tmp_path / "image.tar"
    record = machine.build(str(stack), "--offline", "--output", str(output), cwd=elsewhere)
    check(record)
    assert output.is_file()
    assert not list(elsewhere.iterdir())


def test_real_wheels_again_and_with_a_cold_cache(
    fetched: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """With a warm layer cache, then with a cold one over an image that is there already."""
    machine = Machine(root=tmp_path)
    give_files(fetched("wheels"), machine.cache)
    argument = STACKS["wheels"](machine)
    first = machine.build(argument, "--offline")
    second = machine.build(argument, "--offline")
    assert (first["unchanged"], second["unchanged"]) == (False, True)
    shutil.rmtree(machine.cache / "records")
    third = machine.build(argument, "--offline")
    assert not third["unchanged"]
    assert summary(first) == summary(second) == summary(third) == golden("wheels")


@pytest.mark.parametrize("release", [release for release, _ in OTHERS] or ["no other"])
def test_real_wheels_with_another_python_and_an_installed_wheel(
    release: str, project_wheel: Path, fetched: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    if not OTHERS:
        pytest.skip("no other Python from 3.10 on is on PATH")
    python = install(project_wheel, tmp_path / "venv", dict(OTHERS)[release])
    machine = Machine(root=tmp_path, python=python)
    give_files(fetched("wheels"), machine.cache)
    record = machine.build(STACKS["wheels"](machine), "--offline")
    assert record["builder"]["python"].startswith(f"CPython {release}")
    check(record)


def foreign_user(folder: Path) -> tuple[str, ...]:
    """The words that start a command as nobody, to whom this folder then belongs."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.mark.skipif(not AS_ROOT, reason="only root may become another user")
def test_real_wheels_as_another_user(
    project_wheel: Path, fetched: Callable[[str], dict[str, str]], public_folder: Path
) -> None:
    python = install(project_wheel, public_folder / "venv", SYSTEM_PYTHON)
    machine = Machine(root=public_folder / "nobody", python=python)
    give_files(fetched("wheels"), machine.cache, copied=True)
    argument = STACKS["wheels"](machine)
    condition = Condition(prefix=foreign_user(machine.root))
    record = build_under(condition, machine, argument)
    assert (machine.work / "images" / "wheels").stat().st_uid == NOBODY
    check(record)


# ---------------------------------------------------------------- the demo, under many conditions at once


def test_the_demo(fetched: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    """What is built from the shipped lock, as README says; then once more, with nothing to do."""
    machine = Machine(root=tmp_path)
    give_files(fetched("demo"), machine.cache)
    record = machine.build("demo", "--offline")
    check(record)
    again = machine.build("demo", "--offline")
    assert again["unchanged"]
    assert again["manifest"] == record["manifest"]


def test_the_demo_with_everything_changed(
    project_wheel: Path, fetched: Callable[[str], dict[str, str]], public_folder: Path
) -> None:
    """Another user, host, home, umask, zone, locale, hash seed, zlib; an installed wheel; one worker."""
    python = install(project_wheel, public_folder / "venv", SYSTEM_PYTHON, "zlib-ng")
    machine = Machine(root=public_folder / "nobody", python=python)
    give_files(fetched("demo"), machine.cache, copied=True)
    host = OTHER_HOST if AS_ROOT else ()
    condition = Condition(
        environment={
            "HOME": "/nonexistent",
            "TZ": "Asia/Kathmandu",
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONHASHSEED": "12345",
            "IMAGEBUILDER_WORKERS": "1",
        },
        prefix=(*host, *(foreign_user(machine.root) if AS_ROOT else ())),
        more={"umask": 0o077},
        site=DISTRIBUTION,
        inflater="zlib_ng",
    )
    check(build_under(condition, machine, "demo"))


@pytest.mark.skipif(not OTHERS, reason="no other Python from 3.10 on is on PATH")
def test_the_demo_with_another_python(
    project_wheel: Path, fetched: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """The newest Python that is here, more workers than cores, everything open to everybody."""
    release, interpreter = OTHERS[-1]
    python = install(project_wheel, tmp_path / "venv", interpreter)
    machine = Machine(root=tmp_path, python=python)
    give_files(fetched("demo"), machine.cache)
    condition = Condition(environment={"IMAGEBUILDER_WORKERS": "5"}, more={"umask": 0})
    record = build_under(condition, machine, "demo")
    assert record["builder"]["python"].startswith(f"CPython {release}")
    check(record)
