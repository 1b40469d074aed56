"""The reader of GPU code against cuobjdump and against what nvcc was asked to compile."""

from __future__ import annotations

import gzip
import io
import os
import random
import re
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.gpu import FatbinWatch, GpuCode, coverage, covers, read_gpu
from imagebuilder.settings import load
from imagebuilder.values import GpuArch
from tests.support.network import no_network

DATA = Path(__file__).parents[1] / "data" / "gpu"
PLACES = "/usr/local/cuda/bin:/usr/local/cuda-13.0/bin"
RELEASE = "==13.0.*"
TOOLKIT = (f"nvidia-cuda-nvcc{RELEASE}", f"nvidia-nvvm{RELEASE}", f"nvidia-cuda-crt{RELEASE}",
           f"nvidia-cuda-runtime{RELEASE}", f"nvidia-cuda-cccl{RELEASE}")  # fmt: skip


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This machine's nvcc, else PyPI's."""
    if not shutil.which("g++"):
        pytest.skip("nvcc needs g++, which is not installed")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=PLACES)
    return found or _from_pypi(tmp_path_factory, "nvcc", *TOOLKIT)


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This machine's cuobjdump, else PyPI's."""
    found = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=PLACES)
    return found or _from_pypi(tmp_path_factory, "cuobjdump", "nvidia-cuda-cuobjdump")


def _from_pypi(factory: pytest.TempPathFactory, program: str, *requirements: str) -> str:
    if why := no_network():
        pytest.skip(f"{program} is not installed, and {why}")
    import uv

    folder = factory.mktemp(program)
    index = load(os.environ).default_index
    environment = {**os.environ, "UV_NO_PROGRESS": "1", **({"UV_DEFAULT_INDEX": index} if index else {})}
    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--target", str(folder), *requirements]
    subprocess.run(command, check=True, env=environment)
    return str(folder / "nvidia" / "cu13" / "bin" / program)


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


def test_names_of_sections_are_read_only_where_a_fat_binary_may_be() -> None:
    """They may lie before 30 MB of others (a library that was not stripped), where reading has passed."""
    data, fatbin = _data("mixed.so"), b"\x50\xed\x55\xba"

    def places(data: bytes) -> list[int]:
        """Where reading goes once a watch has seen all."""
        watch, file, seen = FatbinWatch(), io.BytesIO(data), []
        watch.feed(0, data)
        seek = file.seek
        file.seek = lambda *place: seen.append(place[0]) or seek(*place)  # type: ignore[method-assign]
        with suppress(ArtefactUnusable):  # of what is no fat binary any more
            read_gpu(file, "x", watch)
        return seen

    headers = int.from_bytes(data[40:48], "little")
    row = headers + 64 * int.from_bytes(data[62:64], "little")
    names = int.from_bytes(data[row + 24 : row + 32], "little")
    assert names in places(data)
    none = data.replace(fatbin, bytes(4))
    assert names not in places(none) and headers in places(none)
    odd = none[:4097] + fatbin + none[4101:]  # no fat binary begins there
    assert names not in places(odd)
    again = none[:4096] + fatbin + none[4100:]
    assert names in places(again)


def _compile(nvcc: str, folder: Path, name: str, options: list[str]) -> Path:
    source, out = folder / f"{name}.cu", folder / f"{name}.o"
    source.write_text(f"__global__ void {name}(float *x) {{ x[threadIdx.x] *= 2.f; }}")
    subprocess.run([nvcc, "-Xcompiler", "-fPIC", "-c", str(source), "-o", str(out), *options], check=True)
    return out


def _gencode(*pairs: str) -> list[str]:
    words = []
    for pair in pairs:
        arch, code = pair.split(":")
        words += ["-gencode", f"arch={arch},code={code}"]
    return words


def test_what_nvcc_was_told(tmp_path: Path, nvcc: str, cuobjdump: str) -> None:
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
        data = _compile(nvcc, tmp_path, name, options).read_bytes()
        assert _groups(_code(data)) == [(wanted, 1)], name
        assert _listed(cuobjdump, tmp_path / f"{name}.o") == _without_family(_code(data))


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


@pytest.mark.parametrize("arch", ["80", "90a", "100f", "120", "120a"])
def test_single_cubins(tmp_path: Path, nvcc: str, arch: str) -> None:
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(float *x) { *x = 1.f; }")
    out = tmp_path / "k.cubin"
    subprocess.run([nvcc, "-cubin", f"-arch=sm_{arch}", str(source), "-o", str(out)], check=True)
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
def test_real_wheels_equal_cuobjdump(
    tmp_path: Path, cuobjdump: str, project: str, filename: str, member: str
) -> None:
    from typing import IO, cast

    from imagebuilder.cache import Cache
    from imagebuilder.facts.wheel import Wheel
    from imagebuilder.index.http import session
    from imagebuilder.index.ranged import RangedFile
    from imagebuilder.index.simple import Indexes

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
    assert sorted(set(_listed(cuobjdump, library))) == sorted(set(_without_family(code)))
