"""The reader of GPU code against cuobjdump and against what nvcc was asked to compile."""

from __future__ import annotations

import gzip
import io
import random
import re
import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.gpu import FatbinWatch, GpuCode, coverage, covers, read_gpu
from imagebuilder.values import GpuArch

DATA = Path(__file__).parents[1] / "data" / "gpu"
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin:/usr/local/cuda-13.0/bin")


def _cuobjdump() -> str | None:
    inside = [Path(p) / "nvidia" / "cu13" / "bin" for p in sys.path]
    return shutil.which("cuobjdump") or next(
        (str(p / "cuobjdump") for p in inside if (p / "cuobjdump").is_file()), None
    )


def _data(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes())


def _code(data: bytes) -> GpuCode:
    code = read_gpu(io.BytesIO(data), "x")
    assert code is not None
    return code


def _groups(code: GpuCode) -> list[tuple[str, int]]:
    return [(" ".join(map(str, g.entries)), g.count) for g in code.groups]


# tests/data/gpu/mixed.so: four translation units, as in test_what_nvcc_was_told, by nvcc 13.0.88
MIXED = [
    ("compute_80 sm_100f sm_103f", 1),
    ("sm_80 compute_90 compute_100f", 1),
    ("sm_80 sm_90a sm_100 compute_120 sm_120", 1),
    ("compute_90a sm_100f sm_120a", 1),
]


def test_recorded_library() -> None:
    code = _code(_data("mixed.so"))
    assert _groups(code) == MIXED
    assert dict(code.compressed) == {"": 10, "lz4": 1, "zstd": 3}
    assert code.total == 4


def test_recorded_fatbin_and_cubin() -> None:
    assert _groups(_code(_data("family.fatbin"))) == [("sm_100f sm_103f", 1)]
    assert _groups(_code(_data("sm_120a.cubin"))) == [("sm_120a", 1)]


def test_a_watch_sees_the_same_as_reading_again() -> None:
    data = _data("mixed.so")
    for step in (1, 7, 64, 4096, len(data)):
        watch = FatbinWatch()
        for at in range(0, len(data), step):
            watch.feed(at, data[at : at + step])
        assert len(watch.groups) == 4, step
        assert read_gpu(io.BytesIO(data), "x", watch) == _code(data)


def _compile(folder: Path, name: str, options: list[str]) -> Path:
    source, out = folder / f"{name}.cu", folder / f"{name}.o"
    source.write_text(f"__global__ void {name}(float *x) {{ x[threadIdx.x] *= 2.f; }}")
    assert NVCC
    subprocess.run([NVCC, "-Xcompiler", "-fPIC", "-c", str(source), "-o", str(out), *options], check=True)
    return out


def _gencode(*pairs: str) -> list[str]:
    words = []
    for pair in pairs:
        arch, code = pair.split(":")
        words += ["-gencode", f"arch={arch},code={code}"]
    return words


@pytest.mark.skipif(not NVCC, reason="nvcc is not installed")
def test_what_nvcc_was_told(tmp_path: Path) -> None:
    cases = {
        "a": (
            _gencode(
                "compute_80:sm_80",
                "compute_90a:sm_90a",
                "compute_100:sm_100",
                "compute_120:sm_120",
                "compute_120:compute_120",
            ),
            "sm_80 sm_90a sm_100 compute_120 sm_120",
        ),
        "b": (
            ["--compress-mode=speed", *_gencode("compute_100f:sm_100f", "compute_120a:sm_120a")],
            "sm_100f sm_120a",
        ),
        "c": (
            ["--compress-mode=none", *_gencode("compute_120f:sm_120f", "compute_90a:compute_90a")],
            "compute_90a sm_120f",
        ),
    }
    for name, (options, wanted) in cases.items():
        data = _compile(tmp_path, name, options).read_bytes()
        assert _groups(_code(data)) == [(wanted, 1)], name
        tool = _cuobjdump()
        if tool:
            assert _listed(tool, tmp_path / f"{name}.o") == _without_family(_code(data))


def _listed(tool: str, path: Path) -> list[tuple[str, str]]:
    out = subprocess.run(
        [tool, "--list-elf", "--list-ptx", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"\.sm_(\d+[af]?)\.(cubin|ptx)", out)
    return sorted((number, "sm" if kind == "cubin" else "compute") for number, kind in found)


def _without_family(code: GpuCode) -> list[tuple[str, str]]:
    """As cuobjdump 13 lists entries: it drops the `f` of machine code."""
    return sorted(
        (f"{a.number}{'' if a.kind == 'sm' and a.suffix == 'f' else a.suffix}", a.kind)
        for group in code.groups
        for a in group.entries
        for _ in range(group.count)
    )


@pytest.mark.skipif(not NVCC, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["80", "90a", "100f", "120", "120a"])
def test_single_cubins(tmp_path: Path, arch: str) -> None:
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(float *x) { *x = 1.f; }")
    out = tmp_path / "k.cubin"
    assert NVCC
    subprocess.run([NVCC, "-cubin", f"-arch=sm_{arch}", str(source), "-o", str(out)], check=True)
    assert _groups(_code(out.read_bytes())) == [(f"sm_{arch}", 1)]


@pytest.mark.parametrize(
    ("entry", "gpu", "wanted"),
    [
        ("sm_80", "sm_80", "sass"),
        ("sm_80", "sm_86", "sass"),
        ("sm_86", "sm_80", None),
        ("sm_80", "sm_90", None),
        ("sm_90a", "sm_90", "sass"),
        ("sm_120a", "sm_120", "sass"),
        ("sm_120a", "sm_121", None),
        ("sm_120", "sm_121", "sass"),
        ("sm_120f", "sm_121", "sass"),
        ("sm_100f", "sm_103", "sass"),
        ("sm_100f", "sm_120", None),
        ("sm_100a", "sm_103", None),
        ("compute_80", "sm_120", "ptx"),
        ("compute_90a", "sm_120", None),
        ("compute_90a", "sm_90", "ptx"),
        ("compute_100f", "sm_103", "ptx"),
        ("compute_120", "sm_100", None),
    ],
)
def test_what_runs_on_what(entry: str, gpu: str, wanted: str | None) -> None:
    assert covers(GpuArch.parse(entry), GpuArch.parse(gpu)) == wanted


def test_machine_code_is_better_than_ptx() -> None:
    entries = [GpuArch.parse(t) for t in ("compute_80", "sm_120a")]
    assert coverage(entries, GpuArch.parse("sm_120")) == "sass"
    assert coverage(entries, GpuArch.parse("sm_121")) == "ptx"
    assert coverage(entries, GpuArch.parse("sm_75")) is None


def test_lies_are_errors() -> None:
    data = _data("family.fatbin")
    for broken in (
        data[:8] + struct.pack("<Q", 1 << 60) + data[16:],  # size of the fat binary
        data[:24] + struct.pack("<Q", 1 << 60) + data[32:],  # size of its first entry
        data[:100],
    ):
        with pytest.raises(ArtefactUnusable):
            read_gpu(io.BytesIO(broken), "x")


def test_damage_never_crashes_or_hangs() -> None:
    chance = random.Random(4)
    for name in ("mixed.so", "family.fatbin", "sm_120a.cubin"):
        data = _data(name)
        for _ in range(150):
            broken = bytearray(data)
            for _ in range(chance.choice((1, 5, 30))):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            watch = FatbinWatch()
            watch.feed(0, bytes(broken))
            for seen in (None, watch):
                with suppress(ArtefactUnusable):
                    read_gpu(io.BytesIO(bytes(broken)), "x", seen)


TAGS = "manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64"


@pytest.mark.network
@pytest.mark.parametrize(
    ("project", "filename", "member"),
    [
        ("torchvision", "torchvision-0.24.1-cp311-cp311-manylinux_2_28_x86_64.whl", "torchvision/_C.so"),
        ("torchao", f"torchao-0.9.0-cp39-abi3-{TAGS}.whl", "torchao/_C.abi3.so"),
    ],
)
def test_real_wheels_equal_cuobjdump(tmp_path: Path, project: str, filename: str, member: str) -> None:
    tool = _cuobjdump()
    if not tool:
        pytest.skip("cuobjdump is not installed (PyPI: nvidia-cuda-cuobjdump)")
    import os
    from typing import IO, cast

    from imagebuilder.cache import Cache
    from imagebuilder.facts.wheel import Wheel
    from imagebuilder.index.http import session
    from imagebuilder.index.ranged import RangedFile
    from imagebuilder.index.simple import Indexes
    from imagebuilder.settings import load

    settings = load({**os.environ, "IMAGEBUILDER_CACHE_DIR": str(tmp_path / "cache")})
    with session(settings) as http:
        indexes = Indexes((), settings, Cache(settings.cache_dir), http)
        url = next(f.url for f in indexes.project(project) if f.filename == filename)
        with Wheel.open(cast("IO[bytes]", RangedFile(url, http, name=filename)), filename) as wheel:
            data = wheel.read(member, limit=1 << 28)
    library = tmp_path / "library.so"
    library.write_bytes(data)
    code = _code(data)
    assert code.total >= 1
    assert sorted(set(_listed(tool, library))) == sorted(set(_without_family(code)))
