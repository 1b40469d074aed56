"""What indexes offer: a real server plays several of them, one closed to us, some without hashes or sizes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from packaging.version import Version

from imagebuilder.cache import Cache
from imagebuilder.cli.main import run
from imagebuilder.index.http import Session
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.target import TargetFacts
from imagebuilder.progress import Silent
from imagebuilder.recon.ask import ask, places_of, places_of_stack
from imagebuilder.recon.survey import Row
from imagebuilder.settings import Settings
from imagebuilder.stack.loader import load_stack
from imagebuilder.values import Platform, Release
from tests.support.http_server import Reply, Server
from tests.support.schemas import validated

NOW = datetime(2026, 2, 25, tzinfo=timezone.utc)
TARGET = TargetFacts(python=Release("3.12"), platform=Platform("linux", "amd64"), glibc=Release("2.39"))

STACK = """
schema = 1
name = "s"
[target]
python = "3.12"
[base]
debian = { suite = "bookworm" }
[[index]]
name = "nightly"
url = "URLnightly"
explicit = true
[[index]]
name = "kernels"
url = "URLkernels"
explicit = true
[[index]]
name = "gone"
url = "URLgone"
explicit = true
[[layer]]
name = "flashinfer"
requirements = ["flashinfer-python"]
index = "nightly"
[[layer]]
name = "kernels"
requirements = ["sgl-kernel"]
index = "kernels"
[[layer]]
name = "lost"
requirements = ["lost"]
index = "gone"
[[layer]]
name = "sglang"
requirements = ["sglang"]
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        nightly = running.index("/nightly", form="html")
        name = "flashinfer_python-0.2.14.dev2025100{}-py3-none-any.whl"
        for day in (1, 9):
            nightly.add("flashinfer-python", name.format(day), b"x", hashed=False)
        kernels = running.index("/kernels", form="html")
        kernels.add("sgl-kernel", "sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl", b"xy")
        kernels.add("sgl-kernel", "sgl_kernel_cp312_cu130.whl", b"x")
        kernels.add("sgl-kernel", "sgl_kernel-0.3.22-cp310-abi3-manylinux2014_aarch64.whl", b"x")
        default = running.index("/simple")
        default.add(
            "flashinfer-python",
            "flashinfer_python-0.6.4-py3-none-any.whl",
            upload_time="2026-02-01T00:00:00Z",
        )
        default.add("sglang", "sglang-0.5.9-py3-none-any.whl", upload_time="2026-02-02T00:00:00Z")
        default.add("sglang", "sglang-0.5.10rc1-py3-none-any.whl", upload_time="2026-02-20T00:00:00Z")
        default.add("sglang", "sglang-0.5.11-py3-none-any.whl", yanked="broken")
        default.add("only-source", "only_source-2.8.3.tar.gz")
        running.route("/gone/", lambda request: Reply(status=403))
        yield running


@pytest.fixture
def stack_file(server: Server, tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(STACK.replace("URL", server.url + "/"))
    return path


def _rows(server: Server, stack_file: Path, tmp_path: Path, *packages: str) -> dict[tuple[str, str], Row]:
    from packaging.requirements import Requirement

    stack = load_stack(stack_file)
    settings = Settings(cache_dir=tmp_path / "cache", default_index=server.url + "/simple/", timeout=240.0)
    indexes = Indexes(
        stack.indexes, settings, Cache(settings.cache_dir), Session(settings, pause=lambda _: None)
    )
    if packages:
        places = list(places_of([Requirement(p) for p in packages], indexes, None, None))
    else:
        places = list(places_of_stack(stack, indexes, None, None))
    rows = ask(places, indexes, TARGET, Silent(), now=NOW, workers=4)
    return {(row.package, row.index): row for row in rows}


def test_a_stale_nightly_is_told(server: Server, stack_file: Path, tmp_path: Path) -> None:
    row = _rows(server, stack_file, tmp_path)["flashinfer-python", "nightly"]
    assert row.bound and row.stable is None and row.pre is not None
    assert row.pre.version == Version("0.2.14.dev20251009")
    assert row.pre.made == datetime(2025, 10, 9, tzinfo=timezone.utc)
    assert not row.pre.hashed and row.pre.size == 1
    assert row.marks == ("stale nightly, 139 days old",)


def test_only_what_fits_the_target_counts(server: Server, stack_file: Path, tmp_path: Path) -> None:
    row = _rows(server, stack_file, tmp_path)["sgl-kernel", "kernels"]
    assert (row.versions, row.fitting) == (2, 1)
    assert row.stable is not None
    assert (str(row.stable.version), row.stable.cuda, row.stable.size) == ("0.3.21+cu130", "cu130", 2)
    assert row.odd[0].startswith("sgl_kernel_cp312_cu130.whl: its name is neither a wheel's nor an sdist's")


def test_newest_stable_and_newer_pre_release(server: Server, stack_file: Path, tmp_path: Path) -> None:
    row = _rows(server, stack_file, tmp_path)["sglang", "default"]
    assert row.stable and str(row.stable.version) == "0.5.9"
    assert row.pre and str(row.pre.version) == "0.5.10rc1"


def test_an_index_that_does_not_answer_is_a_line(server: Server, stack_file: Path, tmp_path: Path) -> None:
    rows = _rows(server, stack_file, tmp_path)
    assert rows["lost", "gone"].down and "403" in rows["lost", "gone"].problem
    assert rows["lost", "default"].problem == "not on this index"
    assert rows["sglang", "default"].stable


def test_requirements_are_looked_for_everywhere(server: Server, stack_file: Path, tmp_path: Path) -> None:
    rows = _rows(server, stack_file, tmp_path, "flashinfer-python>=0.6", "only-source")
    assert set(rows) == {
        (p, i)
        for p in ("flashinfer-python", "only-source")
        for i in ("nightly", "kernels", "gone", "default")
    }
    problem = rows["only-source", "default"].problem
    assert "it has no wheel, only a source distribution" in problem


@pytest.fixture
def at_home(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", server.url + "/simple/")


@pytest.mark.usefixtures("at_home")
def test_the_verb(stack_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recon", str(stack_file), "--json"]) == 0
    document = validated("recon", capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "recon")
    row = next(r for r in document["rows"] if (r["package"], r["index"]) == ("sgl-kernel", "kernels"))
    assert row["newest"]["version"] == "0.3.21+cu130" and row["bound"] and not row["down"]
    assert run(["recon", str(stack_file)]) == 0
    text = capsys.readouterr().out
    assert "stale nightly" in text and "no wheel: sgl_kernel_cp312_cu130.whl" in text
    assert text.splitlines()[-1].startswith("gone: the page of")


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["recon"], 2),
        (["recon", "not a requirement!"], 2),
        (["recon", "nowhere/stack.toml"], 2),
        (["recon", "sglang", "--python", "x"], 2),
        (["recon", "sglang", "--against", "demo-that-is-not"], 2),
        (["recon", "no-such-package-here"], 0),
    ],
)
def test_bad_input(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == code
    assert "Traceback" not in capsys.readouterr().err
