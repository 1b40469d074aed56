"""GPUs by NVML: the real binding, over its C ABI, with a library that is compiled here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagebuilder.accept import codec
from imagebuilder.accept.host import energy_j
from imagebuilder.accept.model import HostFacts
from imagebuilder.accept.record import make_record
from imagebuilder.accept.report import html, markdown
from imagebuilder.accept.verdict import judge
from tests.accept.synthetic import make_run
from tests.support.command import ROOT, WAIT

SOURCE = ROOT / "tests" / "data" / "nvml" / "nvml.c"
SAMPLE = """
import time
from imagebuilder.accept import codec, host
host.EVERY = 0.01
with host.Sampler() as sampler:
    while len(sampler.facts.samples) < 20 and not sampler.facts.note:
        time.sleep(0.01)
    facts = sampler.facts
print(codec.dumps(facts))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `new` and `old` with a libnvidia-ml.so.1 each."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    compiler = shutil.which("gcc") or pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("nvml")
    for name, flags in (("new", []), ("old", ["-DOLD"])):
        (folder / name).mkdir()
        target = str(folder / name / "libnvidia-ml.so.1")
        words = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", target, str(SOURCE)]
        subprocess.run(words, check=True)
    return folder


def sampled(library: Path, **more: str) -> HostFacts:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), **more}
    words = [sys.executable, "-c", SAMPLE]
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return codec.loads(HostFacts, done.stdout)


@pytest.mark.parametrize("driver", ["new", "old"])
def test_gpus_and_samples(libraries: Path, driver: str) -> None:
    facts = sampled(libraries / driver)
    assert (facts.driver, facts.cuda, facts.note) == ("580.95.05", "13.0", "")
    assert [(g.index, g.uuid, g.capability, g.memory >> 30, g.power_limit_w) for g in facts.gpus] == [
        (0, "GPU-0000", "12.0", 96, 600.0), (1, "GPU-1111", "12.0", 96, 600.0),
    ]  # fmt: skip
    first, second = (next(s for s in facts.samples if s.gpu == n) for n in (0, 1))
    assert (first.sm_mhz, first.memory_mhz, first.power_w, first.temperature_c) == (2400, 14001, 400.0, 61)
    assert (first.utilisation, first.memory_used, first.reasons) == (0.97, 1 << 20, 0x1)
    assert (second.sm_mhz, second.temperature_c, second.energy_j) == (1800, 91, None)
    assert first.energy_j is not None and first.energy_j > 5e6, "more than 32 bits of millijoules"
    assert second.reasons == 0x44, "by the older name where the newer is missing"
    assert energy_j([s for s in facts.samples if s.gpu == 0]) > 0  # type: ignore[operator]


def test_throttling_and_other_tenants_are_noticed_and_reported(libraries: Path) -> None:
    facts = sampled(libraries / "new")
    assert facts.throttling == (
        "GPU 1 had 3.0 GiB in use before anything was started",
        "GPU 1: power cap (software) held its clocks in 100 % of the time under load",
        "GPU 1: thermal (hardware) held its clocks in 100 % of the time under load",
    )
    run = make_run(host=facts)
    record = make_record(run, judge(run))
    page = html(run, record)
    for words in ("<h2>GPUs</h2>", "Clock", "Power", "Temperature", "2 × NVIDIA RTX PRO 6000 Blackwell",
                  "580.95.05 (CUDA 13.0)", "91 °C at most", *facts.throttling):  # fmt: skip
        assert words in page, words
    assert facts.throttling[2] in markdown(run, record)


def test_no_driver(libraries: Path) -> None:
    facts = sampled(libraries / "new", FAKE_NVML_INIT="9")
    assert facts.note == "GPUs were not sampled: NVML says Driver Not Loaded"
    assert not facts.gpus


def test_a_gpu_that_is_lost(libraries: Path) -> None:
    facts = sampled(libraries / "new", FAKE_NVML_LOST="1")
    assert facts.note == "GPUs were not sampled: NVML says GPU is lost"


def test_no_library(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if any(
        Path(folder, "libnvidia-ml.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    ):
        pytest.skip("this machine has an NVIDIA driver")
    assert "NVML says NVML Shared Library Not Found" in sampled(tmp_path).note
