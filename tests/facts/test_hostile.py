"""Wheels that nobody meant well: facts or an error, in bounded memory, and checks that live with either."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuilder.checks.registry import find
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.collect import collect, collect_front
from imagebuilder.facts.record import decode, encode
from tests.support.check_cases import made_subject

DATA = Path(__file__).parents[1] / "data" / "gpu"
NAME = "made-1.0-cp39-abi3-linux_x86_64.whl"
MOST = 96 << 20  # bytes; the largest thing here has some hundred kB
HUGE = st.sampled_from(
    [0, 1, 7, 255, 4096, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
)
quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def bounded() -> Iterator[None]:
    """What runs inside never holds more than MOST bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@cache
def library() -> bytes:
    """A small library of this machine's compiler, else its interpreter's smallest extension."""
    if not shutil.which("gcc"):
        folders = [Path(p) for p in sys.path if p.endswith("lib-dynload")]
        return min((p.read_bytes() for f in folders for p in f.glob("*.so")), key=len)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o"]
    code = b"extern int far(void); int near(void) { return far(); }"
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "x.so"
        subprocess.run([*command, str(place)], input=code, check=True)
        return place.read_bytes()


def wheel(
    files: dict[str, bytes], metadata: bytes = b"Metadata-Version: 2.1\nName: made\nVersion: 1.0\n"
) -> io.BytesIO:
    out = io.BytesIO()
    info = "made-1.0.dist-info"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp39-abi3-linux_x86_64\n")
        archive.writestr(f"{info}/RECORD", "")
    return out


def looked_at(source: io.BytesIO, folder: Path) -> None:
    """As `check` and `matrix` look at it, with what a cache would give back."""
    with suppress(ArtefactUnusable):
        facts = collect(source, NAME, [("made/__init__.py", "load")])
        assert encode(decode(encode(facts))) == encode(facts)
        for finding in find(made_subject({"made": facts}, folder)):
            assert finding.code and finding.what
    with suppress(ArtefactUnusable):
        collect_front(source, NAME)
    with suppress(ArtefactUnusable):
        collect_front(source, NAME, whole=frozenset({"_x.abi3.so"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stack")
    made_subject({}, folder)  # what is read once for all is not held against anybody
    find(made_subject({}, folder))
    return folder


@quick
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from("BHIQ"), HUGE), max_size=6))
def test_a_library_whose_numbers_lie(folder: Path, changes: list[tuple[int, str, int]]) -> None:
    data = bytearray(library())
    for place, form, value in changes:
        size = struct.calcsize(form)
        at = place % 1024 if place % 3 else place % (len(data) - 8)  # headers and dynamic tables most often
        struct.pack_into(f"<{form}", data, at // size * size, value & ((1 << 8 * size) - 1))
    with bounded():
        looked_at(wheel({"made/_x.abi3.so": bytes(data)}), folder)


@quick
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), HUGE), max_size=6),
    name=st.sampled_from(["family.fatbin", "mixed.so"]),
)
def test_gpu_code_whose_numbers_lie(folder: Path, changes: list[tuple[int, int]], name: str) -> None:
    import gzip

    data = bytearray(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
    marks = [i for i in range(0, len(data) - 64, 8) if data[i : i + 4] == b"\x50\xed\x55\xba"] or [0]
    for place, value in changes:
        at = (marks[place % len(marks)] + place // 7 % 80 // 4 * 4) % (len(data) - 8)
        struct.pack_into("<Q", data, at, value)
    path = "made/_x.abi3.so" if name.endswith(".so") else "made/x.fatbin"
    with bounded():
        looked_at(wheel({path: bytes(data)}), folder)


LINES = st.sampled_from(
    ["Name: made", "Version: 1.0", "Requires-Dist: torch==2.9.1", "Requires-Dist: torch (>=1) ; extra == 'x'",
     "Requires-Dist: @@", "Requires-Dist: a; python_version ~= ''", "Requires-Python: <<3",
     "Provides-Extra: ü", ":", " folded", "\x00", "Requires-Dist: " + "a" * 5000]
)  # fmt: skip


@quick
@given(
    metadata=st.one_of(
        st.binary(max_size=300), st.lists(LINES, max_size=8).map(lambda x: "\n".join(x).encode())
    )
)
def test_metadata_of_any_kind(folder: Path, metadata: bytes) -> None:
    with bounded():
        looked_at(wheel({"made/__init__.py": b""}, metadata), folder)


@quick
@given(source=st.binary(max_size=400), script=st.text(max_size=30))
def test_python_and_entry_points_of_any_kind(folder: Path, source: bytes, script: str) -> None:
    files = {
        "made/__init__.py": source + b"\ndef load():\n    ctypes.CDLL('libcudart.so.12')\n",
        "made-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{script}\n".encode("utf-8", "replace"),
    }
    with bounded():
        looked_at(wheel(files), folder)


def test_gpu_code_that_unpacks_to_much(folder: Path) -> None:
    """A small entry whose zstd blocks each stand for 128 kB."""
    block = (1 | 1 << 1 | (1 << 17) << 3).to_bytes(4, "little")[:3] + b"\0"  # the last one, repeated
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + (bytes([block[0] & ~1]) + block[1:]) * 900 + block
    entry = bytearray(64)
    struct.pack_into("<HHIQ", entry, 0, 2, 0x101, 64, len(frame))
    struct.pack_into("<I", entry, 28, 120)
    struct.pack_into("<Q", entry, 40, 1 << 15)
    body = bytes(entry) + frame
    data = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    with bounded():
        looked_at(wheel({"made/x.fatbin": data}), folder)


def test_a_library_that_unpacks_to_much_more(folder: Path) -> None:
    """1 MB of packed zeros behind an ELF header: read as a stream."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("made/_x.abi3.so", "w") as member:
            member.write(library()[:64])
            for _ in range(256):
                member.write(bytes(1 << 20))
        for file, text in (("METADATA", "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n"), ("RECORD", ""),
                           ("WHEEL", "Wheel-Version: 1.0\nTag: cp39-abi3-linux_x86_64\n")):  # fmt: skip
            archive.writestr(f"made-1.0.dist-info/{file}", text)
    with bounded():
        looked_at(out, folder)
