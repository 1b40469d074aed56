"""Which releases go together: on recorded facts, and on PyPI by ranges."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from imagebuilder.facts.elf import ElfFacts
from imagebuilder.facts.record import FileFact, WheelFacts
from imagebuilder.facts.tables import alternate_words, driver, layouts, runtimes
from imagebuilder.recon.matrix import Question, Release, Row, matrix
from tests.support import check_facts
from tests.support.abi_facts import recorded
from tests.support.http_server import Server
from tests.support.mirror import publish
from tests.support.schemas import validated

SMALL = {"libc10.so", "libc10_cuda.so"}


def _rows(
    extension: str, *, complete: bool, whole_too: str = "", python: tuple[int, ...] = (3, 11)
) -> dict[str, Row]:
    data = recorded()
    filename = next(name for name in sorted({r[1] for r in data.rows}) if name.startswith(extension))
    torches = {torch.split("-")[1]: data.wheel(torch) for torch in sorted(data.closures)}
    return _asked(data.wheel(filename), torches, complete=complete, whole_too=whole_too, python=python)


def _asked(
    facts: WheelFacts,
    torches: Mapping[str, WheelFacts],
    *,
    complete: bool,
    whole_too: str = "",
    python: tuple[int, ...] = (3, 11),
) -> dict[str, Row]:
    """The rows by release; what is not complete has the small libraries only."""
    question = Question(
        package="extension",
        facts=replace(facts, files={path: FileFact(crc=0, size=0) for path in facts.elf}),
        against="torch",
        python=python,
        layouts=layouts(),
        words=alternate_words(),
        runtimes=runtimes(),
        driver=driver(),
    )
    releases = []
    for version, whole in torches.items():
        files = {path: FileFact(crc=0, size=0) for path in whole.elf}
        elf = {
            p: e
            for p, e in whole.elf.items()
            if complete or version == whole_too or posixpath.basename(p) in SMALL
        }
        releases.append(
            Release(version=version, facts=replace(whole, files=files, elf=elf), complete=complete)
        )
    return {row.version: row for row in matrix(question, releases)}


def _loads(rows: dict[str, Row]) -> set[str]:
    return {version for version, row in rows.items() if row.verdict == "loads"}


@pytest.mark.parametrize("complete", [False, True])
def test_sgl_kernel_goes_with_two_releases(complete: bool) -> None:
    rows = _rows("sgl_kernel-0.3.21", complete=complete)
    assert _loads(rows) == {"2.9.0", "2.9.1"}
    changed = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_"
    assert f"{changed}ib" in rows["2.10.0"].missing
    assert dict(rows["2.10.0"].instead)[f"{changed}ib"] == f"{changed}jb"
    assert "libcudart.so.12" in rows["2.11.0"].missing
    assert bool(rows["2.9.1"].unchecked) is not complete


@pytest.mark.parametrize("complete", [False, True])
def test_of_ten_releases_it_goes_with_two(complete: bool) -> None:
    """The ten that `matrix` asks by default: read whole (`--full`), and by their small libraries alone."""
    data = check_facts.recorded()
    torches = {parse_wheel_filename(name)[1]: data.wheel(name) for name in check_facts.TORCHES}
    facts = data.wheel("sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl")
    rows = _asked(facts, {str(v): torches[v] for v in sorted(torches, reverse=True)}, complete=complete)
    assert len(rows) == len(check_facts.TORCHES) == 10
    assert _loads(rows) == {"2.9.0", "2.9.1"}
    assert all(row.missing for row in rows.values() if row.verdict != "loads")
    assert all(bool(rows[v].unchecked) is not complete for v in ("2.9.0", "2.9.1"))
    if complete:
        assert not any(row.unchecked for row in rows.values())


@pytest.mark.parametrize(
    ("extension", "good"),
    [
        ("sgl_kernel-0.3.18", {"2.8.0"}),
        ("sglang_kernel-0.4.2.post2", {"2.11.0"}),
        ("torchvision-0.24.1", {"2.9.0", "2.9.1"}),
        ("torchvision-0.23.0", {"2.8.0"}),
    ],
)
def test_whole_wheels_against_whole_releases(extension: str, good: set[str]) -> None:
    """What the recorded dlopen outcomes say of all members together."""
    assert _loads(_rows(extension, complete=True)) == good


def test_an_own_library_that_was_not_read_is_there() -> None:
    """Grafted into the wheel (`torchvision.libs/`), too large for its front to be read to the end."""
    data = recorded()
    torch = next(name for name in sorted(data.closures) if name.startswith("torch-2.9.1"))
    needs = ElfFacts(machine="x86_64", needed=("libnvjpeg.8dd2b5e6.so.12",))
    library = "made.libs/libnvjpeg.8dd2b5e6.so.12"
    files = {path: FileFact(crc=0, size=0) for path in ("made/image.so", library)}
    facts = WheelFacts(metadata="", tags=(), files=files, elf={"made/image.so": needs}, gpu={})
    question = Question(
        package="made", facts=facts, against="torch", python=(3, 11), runtimes=runtimes(), driver=driver()
    )
    whole = data.wheel(torch)
    files = {path: FileFact(crc=0, size=0) for path in whole.elf}
    release = Release(version="2.9.1", facts=replace(whole, files=files), complete=False)
    assert [row.verdict for row in matrix(question, [release])] == ["loads"]


@pytest.mark.parametrize("whole_too", ["2.8.0", "2.9.1", "2.11.0"])
def test_what_one_release_is_known_for_accuses_no_other(whole_too: str) -> None:
    """A release that was checked before is known whole; its large libraries say nothing about the others'."""
    for extension in ("sgl_kernel-0.3.21", "torchvision-0.24.1", "sgl_kernel-0.3.18"):
        mixed = _rows(extension, complete=False, whole_too=whole_too)
        assert _loads(_rows(extension, complete=True)) <= _loads(mixed), extension


def test_a_fast_no_is_never_wrong() -> None:
    """Whatever loads when everything is read is not refused when little is read."""
    for name in sorted({r[1] for r in recorded().rows}):
        prefix = "-".join(name.split("-")[:2])
        fast, full = _rows(prefix, complete=False), _rows(prefix, complete=True)
        assert _loads(full) <= _loads(fast), prefix


def test_a_crash_says_why() -> None:
    row = _rows("torchvision-0.23.0", complete=True)["2.9.1"]
    assert row.verdict == "fails"
    assert "c10::KernelFunction" in row.because
    assert json.loads(json.dumps(row.as_json()))["because"] == row.because


def _library(folder: Path, soname: str, source: str, *needs: str) -> bytes:
    """A tiny shared library, compiled here."""
    folder.mkdir(exist_ok=True)
    (folder / "x.c").write_text(source)
    out = ["-o", soname, "x.c", *(f"./{need}" for need in needs)]
    words = ["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", f"-Wl,-soname,{soname}", *out]
    subprocess.run(words, cwd=folder, check=True)
    return (folder / soname).read_bytes()


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_fast_and_full_on_an_index(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve releases, of which the newest ten are asked by default, the same ones by both."""
    from imagebuilder.cli import main

    made = tmp_path / "compiled"
    _library(made, "libtwo.so", "int two_f(int x) { return x; }")
    wanting = _library(
        made, "_one.abi3.so", "int two_f(int); int one(void) { return two_f(1); }", "libtwo.so"
    )
    with Server() as server:
        index = server.index("/simple", form="json")
        publish(index, tmp_path, "one", "1.0", files={"one/_one.abi3.so": wanting})
        for minor in range(12):
            source = f"int two_{'f' if minor in (0, 7, 8) else 'g'}(int x) {{ return x; }}"
            library = _library(made, "libtwo.so", source)
            publish(index, tmp_path, "two", f"1.{minor}", files={"two/lib/libtwo.so": library})
        monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", index.url)
        for more in ([], ["--full"]):
            monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / f"cache{len(more)}"))
            assert main.run(["matrix", "one==1.0", "--against", "two", "--json", *more]) == 0
            rows = validated("matrix", capfd.readouterr().out)["rows"]
            assert [r["version"] for r in rows] == [f"1.{minor}" for minor in range(11, 1, -1)]
            assert {r["version"] for r in rows if r["verdict"] == "loads"} == {"1.7", "1.8"}
            assert {tuple(r["missing"]) for r in rows if r["verdict"] == "fails"} == {("two_f",)}
            assert not any(r["unchecked"] for r in rows)


@pytest.mark.network
def test_on_pypi_by_ranges(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from imagebuilder.cli import main

    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path))
    arguments = ["matrix", "sgl-kernel==0.3.21", "--against", "torch<=2.15.0", "--json"]
    assert main.run(arguments) == 0
    out, err = capfd.readouterr()
    rows = validated("matrix", out)["rows"]
    assert len(rows) == 10
    assert {r["version"] for r in rows if r["verdict"] == "loads"} == {"2.9.0", "2.9.1"}
    read = re.search(r"read ([\d.]+) MB", err)
    assert read and float(read[1]) <= 40
    monkeypatch.setattr("imagebuilder.recon.releases.matrix", None)  # a second answer judges nothing
    assert main.run([*arguments, "--offline"]) == 0
    assert validated("matrix", capfd.readouterr().out)["rows"] == rows
