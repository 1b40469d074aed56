"""What the probe's words mean, against lock, target and waivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from imagebuilder.accept import probe
from imagebuilder.accept.host import energy_j, throttling
from imagebuilder.accept.model import HostSample, SmokeReport
from imagebuilder.accept.smoke import judge
from imagebuilder.lock.model import Lock
from imagebuilder.stack.model import Acceptance, Waiver
from imagebuilder.values import GpuArch, Release
from tests.accept.test_run import DEMO, LOCK

WHEEL = LOCK.wheels[0]
STACK = replace(
    DEMO,
    target=replace(DEMO.target, gpus=(GpuArch.parse("sm_120"),), driver=Release("580.65.06")),
    waivers=(),
)
ACCEPTANCE = Acceptance(model="m", draft="d", gpus=(0, 1))
GPU = {"name": "RTX PRO 6000", "memory": 1 << 36, "capability": [12, 0]}


def lock(**versions: str) -> Lock:
    """A lock of these wheels only."""
    wheels = tuple(replace(WHEEL, name=n.replace("_", "-"), version=v) for n, v in versions.items())  # type: ignore[arg-type]
    return replace(LOCK, wheels=wheels)


def report(told: dict[str, Any], locked: Lock, stack: Any = STACK, kind: str = "docker") -> SmokeReport:
    usual = {
        "packages": {},
        "torch": {},
        "gpus": {"devices": [GPU, GPU], "driver": "590.48.01"},
        "shm": 1 << 35,
    }
    return judge(stack, locked, ACCEPTANCE, {**usual, **told}, kind)


def failed(told: dict[str, Any], locked: Lock, stack: Any = STACK) -> dict[str, str]:
    return {f"{c.code} {c.subject}": c.detail for c in report(told, locked, stack).failed}


def package(version: str, error: str = "", modules: tuple[str, ...] = ("m",)) -> dict[str, Any]:
    return {"version": version, "modules": list(modules), "error": error}


def test_all_is_well() -> None:
    told = {
        "packages": {"torch": package("2.9.1+cu130"), "nvidia-nccl-cu13": package("2.27.7", modules=())},
        "torch": {"version": "2.9.1+cu130", "cuda": "13.0", "nccl": "2.27.7"},
    }
    found = report(told, lock(torch="2.9.1+cu130", nvidia_nccl_cu13="2.27.7"))
    assert {c.status for c in found.checks} == {"ok"}
    assert dict(found.facts)["GPUs"] == "RTX PRO 6000, RTX PRO 6000"


@pytest.mark.parametrize(
    ("seen", "locked", "fits"),
    [
        ("2.9.1", "2.9.1", True),
        ("2.9.1+cu128", "2.9.1+cu130", False),
        ("2.9.1", "2.9.1+cu130", False),
        ("2.9.0", "2.9.1", False),
        ("0.5.9+patched.1a2b3c4d", "0.5.9", True),
        ("2.9.1+cu130.patched.1a2b3c4d", "2.9.1+cu130", True),
        ("2.9.1+cu128.patched.1a2b3c4d", "2.9.1+cu130", False),
        ("1.0", "1.0.0", True),
        ("not a version", "not a version", True),
    ],
)
def test_versions(seen: str, locked: str, fits: bool) -> None:
    assert (
        "acceptance.distribution x" not in failed({"packages": {"x": package(seen)}}, lock(x=locked))
    ) is fits


def test_what_is_missing_or_does_not_import() -> None:
    told = {"packages": {"a": package("1", "libnuma.so.1: cannot open shared object file")}}
    assert failed(told, lock(a="1", b="2")) == {
        "acceptance.import a": "libnuma.so.1: cannot open shared object file",
        "acceptance.distribution b": "not there, locked 2",
    }


def test_imports_that_only_lack_a_gpu_are_unseen() -> None:
    told = {
        "packages": {"a": package("1", "ImportError: libcuda.so.1: cannot open shared object file")},
        "gpus": {"devices": [], "error": "libcuda.so.1: cannot open"},
    }
    found = report(told, lock(a="1"))
    assert not found.failed
    assert {c.subject for c in found.unseen} == {"a", "GPUs"}
    assert failed({**told, "gpus": {"devices": [GPU, GPU], "driver": "590.1"}}, lock(a="1"))


def test_waived() -> None:
    told = {"packages": {"a": package("1", "no such module")}}
    waiver = Waiver(code="acceptance.import", package="a", reason="optional here")
    found = report(told, lock(a="1"), replace(STACK, waivers=(waiver,)))
    assert not found.failed
    assert [c.detail for c in found.checks if c.status == "waived"] == [
        "no such module (waived: optional here)"
    ]


@pytest.mark.parametrize(
    ("versions", "torch", "wrong"),
    [
        ({"torch": "2.9.1+cu130"}, {"cuda": "12.8", "nccl": ""}, "CUDA of torch"),
        (
            {"torch": "2.9.1", "nvidia_cuda_runtime_cu12": "12.8.90"},
            {"cuda": "13.0", "nccl": ""},
            "CUDA of torch",
        ),
        ({"torch": "2.9.1", "nvidia_cuda_runtime_cu12": "12.8.90"}, {"cuda": "12.8", "nccl": ""}, ""),
        ({"torch": "2.9.1"}, {"cuda": "12.8", "nccl": "2.27.5"}, ""),
        (
            {"torch": "2.9.1", "nvidia_nccl_cu12": "2.27.5"},
            {"cuda": "12.8", "nccl": "2.21.5"},
            "NCCL of torch",
        ),
        ({"torch": "2.9.1"}, {"error": "ValueError"}, "torch"),
    ],
)
def test_torch(versions: dict[str, str], torch: dict[str, Any], wrong: str) -> None:
    packages = {n.replace("_", "-"): package(v) for n, v in versions.items()}
    found = failed({"packages": packages, "torch": torch}, lock(**versions))
    assert [k.removeprefix("acceptance.torch ") for k in found] == ([wrong] if wrong else [])


@pytest.mark.parametrize(
    ("gpus", "wrong"),
    [
        ({"devices": [GPU], "driver": "590.1"}, ["acceptance.device number of GPUs"]),
        (
            {"devices": [GPU, {**GPU, "name": "H200", "capability": [9, 0]}], "driver": "590.1"},
            ["acceptance.device GPU 1"],
        ),
        ({"devices": [GPU, GPU], "driver": "570.86"}, ["acceptance.driver driver"]),
        ({"devices": [GPU, GPU], "driver": ""}, []),
    ],
)
def test_gpus(gpus: dict[str, Any], wrong: list[str]) -> None:
    assert list(failed({"gpus": gpus}, lock())) == wrong


def test_folders_and_shm_are_warnings() -> None:
    found = report({"folders": {"/cache": "Read-only file system", "/tmp": ""}, "shm": 64 << 20}, lock())
    assert {c.subject for c in found.checks if c.status == "warning"} == {"/cache", "/dev/shm"}
    assert not found.failed


def test_a_rehearsal_says_nothing_about_packages() -> None:
    found = report({"gpus": {"devices": []}}, lock(a="1"), kind="process")
    assert [c.subject for c in found.checks] == ["GPUs"]


# ---------------------------------------------------------------- the probe itself


class Fake:
    """As much of a distribution as the probe looks at."""

    def __init__(self, *files: str) -> None:
        self.files = list(files)


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        (("torch/__init__.py", "torch/nn/__init__.py", "functorch/__init__.py"), ["functorch", "torch"]),
        (("six.py", "six-1.0.dist-info/METADATA"), ["six"]),
        (("_cffi_backend.cpython-311-x86_64-linux-gnu.so",), ["_cffi_backend"]),
        (("google/protobuf/__init__.py", "google/protobuf/x.py"), ["google.protobuf"]),
        (("a/__init__.py", "tests/__init__.py", "docs/__init__.py"), ["a"]),
        (("nvidia/nccl/lib/libnccl.so.2",), []),
        (("../../bin/tool", "a-b/__init__.py"), []),
        ((), []),
    ],
)
def test_what_can_be_imported(files: tuple[str, ...], modules: list[str]) -> None:
    assert probe.modules_of(Fake(*files)) == modules  # type: ignore[arg-type]


def test_imports_that_go_wrong(tmp_path: Any) -> None:
    assert probe.imported(["json"], 60) == ""
    assert "No module named 'not_there'" in probe.imported(["not_there"], 60)
    assert probe.imported(["antigravity_that_never_ends"], 60)
    assert "within 0.01 s" in probe.imported(["json"], 0.01)
    assert probe.canonical("Foo__Bar.baz") == "foo-bar-baz"


# ---------------------------------------------------------------- the host


def test_throttling_is_told_only_under_load() -> None:
    idle = HostSample(at_s=0, gpu=0, utilisation=0.0, reasons=0x4)
    busy = HostSample(at_s=1, gpu=0, utilisation=0.9, reasons=0)
    hot = HostSample(at_s=2, gpu=0, utilisation=0.9, reasons=0x44)
    assert throttling([idle, busy]) == ()
    assert throttling([busy, hot]) == (
        "GPU 0: power cap (software) held its clocks in 50 % of the time under load",
        "GPU 0: thermal (hardware) held its clocks in 50 % of the time under load",
    )
    assert throttling([HostSample(at_s=0, gpu=0)]) == ()


def test_energy() -> None:
    samples = [HostSample(at_s=t, gpu=g, energy_j=100.0 * t + g) for t in (0, 1, 3) for g in (0, 1)]
    assert energy_j(samples) == 600
    assert energy_j(samples[:1]) is None
    assert energy_j([]) is None
