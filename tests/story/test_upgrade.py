"""The upgrade that took days, as an afternoon at the command line: each failure found from artefacts alone.

The stack begins as somebody would write it and ends as `stacks/cu130.toml`. Each step runs the command
that a user would run, reads the finding and its advice, and does what it says. The wheels are those of PyPI
as they were recorded; those that only the vendors' indexes have are PyPI's with the sonames of CUDA 13.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.stack import shipped_folder
from tests.support.check_facts import recorded
from tests.support.command import Outcome
from tests.support.http_server import Server
from tests.support.mirror import before_patch
from tests.support.recorded_index import RecordedIndexes, for_cuda_13
from tests.support.schemas import validated

SHIPPED = shipped_folder() / "cu130.toml"
OLD_BASE = f'image = "nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04@sha256:{"24" * 32}"'
BASE = next(line for line in SHIPPED.read_text().splitlines() if line.startswith("image = "))
PYTORCH = (
    '"torch==2.9.1+cu130", "torchvision==0.24.1+cu130", "torchaudio==2.9.1+cu130"]\nindex = "pytorch-cu130"'
)
PLAIN = '"torch==2.9.1", "torchvision==0.24.1", "torchaudio==2.9.1"]'
KERNELS = '"sgl-kernel==0.3.21+cu130"]\nindex = "sglang-cu130"'
FLASHINFER = '"flashinfer-python==0.6.4", "flashinfer-cubin==0.6.4"]'
NIGHTLY = '[[index]]\nname = "nightly"\nurl = "https://example.org/whl/nightly/cu130"\nexplicit = true\n\n'
PINNED = '[[override]]\nrequirement = "flashinfer-python==0.6.4"\nreason'
NEWEST = '[[override]]\nrequirement = "torch==2.10.0"\nreason = "the newest"\n\n'
PATCHES = 'patches = ["patches/sglang-0.5.9/*.patch"]'
SYMM_MEM = '"--trust-remote-code", "--disable-custom-all-reduce"'


class Said(Outcome):
    """An outcome of `--json`."""

    @property
    def json(self) -> Any:
        return validated(json.loads(self.out)["kind"], self.out)

    @property
    def open(self) -> set[tuple[str, str]]:
        """(code, place) of those that no waiver covers."""
        return {(f["code"], f["place"]) for f in self.json["findings"] if f["waived"] is None}

    def finding(self, code: str, package: str = "") -> dict[str, Any]:
        """The one that is not waived, of `check --json`."""
        found = [f for f in self.json["findings"] if f["code"] == code and f["place"].startswith(package)]
        assert found, [(f["code"], f["place"], f["what"]) for f in self.json["findings"]]
        return found[0]


PRODUCTION = f"""schema = 1
name = "production"
[target]
platform = "linux/amd64"
python = "3.11"
[base]
{OLD_BASE}
[[layer]]
name = "all"
requirements = ["flashinfer-python==0.6.4"]
"""


@dataclass
class Afternoon:
    """A command line, and the stack file that is being written."""

    path: Path
    server: str
    call: Callable[..., Said]

    def edit(self, *replacements: tuple[str, str]) -> None:
        text = self.path.read_text()
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new, 1)
        self.path.write_text(text)


@pytest.fixture
def afternoon(
    imagebuilder: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Afternoon]:
    work = tmp_path / "work"
    shutil.copytree(shipped_folder() / "patches", work / "stacks" / "patches")
    path = work / "stacks" / "mine.toml"
    path.write_text(
        SHIPPED.read_text().replace('name = "cu130"', 'name = "mine"').replace('"3.12"', '"3.11"')
    )
    with Server() as server:
        for name, url in _indexes(server, tmp_path).items():
            monkeypatch.setenv(f"IMAGEBUILDER_INDEX_{name.upper().replace('-', '_')}_URL", url)
        yield Afternoon(path=path, server=server.url, call=lambda *words: Said(**vars(imagebuilder(*words))))


def _indexes(server: Server, folder: Path) -> dict[str, str]:
    indexes = RecordedIndexes(server, folder / "made", folder / "cache")
    put, facts = indexes.put, recorded().wheel
    torch = server.index("/whl/cu130", form="html")
    sglang = server.index("/sglang/whl/cu130", form="html")
    flashinfer = server.index("/flashinfer/whl/cu130", form="html")
    nightly = server.index("/whl/nightly/cu130", form="html")
    files = {}
    for patch in sorted((shipped_folder() / "patches" / "sglang-0.5.9").glob("*.patch")):
        files |= before_patch(patch.read_bytes())
    sglang_wheel = "sglang-0.5.9-py3-none-any.whl"
    indexes.shipped("cu128-debian", but=("sglang",))
    put(indexes.default, facts(sglang_wheel), sglang_wheel, files, upload_time="2025-12-01T00:00:00Z")
    for version in ("2.7.1", "2.8.0", "2.9.0", "2.10.0-3", "2.11.0"):
        indexes.recorded(f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl")
    indexes.recorded("torch_memory_saver-0.0.9.post1-cp39-abi3-manylinux2014_x86_64.whl")
    here = set(indexes.filenames)
    for name in recorded().filenames:
        if (
            name.startswith(("nvidia_", "cuda_"))
            and "cu12" not in name
            and name not in here
            and "cp312" not in name
        ):
            indexes.recorded(name)
    for package, version, like in (
        ("cuda_python", "13.0.3", "cuda_python-13.4.4-py3-none-any.whl"),
        ("nvidia_cudnn_cu13", "9.16.0.29", "nvidia_cudnn_cu13-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl"),
        ("flashinfer_python", "0.6.4", "flashinfer_python-0.6.3-py3-none-any.whl"),
        ("flashinfer_cubin", "0.6.4", "flashinfer_cubin-0.6.3-py3-none-any.whl"),
    ):
        tag = like.split("-", 2)[2]
        put(indexes.default, facts(like), f"{package}-{version}-{tag}", upload_time="2025-12-01T00:00:00Z")

    indexes.neighbours("torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl")
    indexes.neighbours("torch-2.10.0-3-cp311-cp311-manylinux_2_28_x86_64.whl")

    def cuda_13(line: str) -> str:
        return re.sub(r"(nvidia-[a-z-]+?)(-cu12)?==[\d.]+;", _renamed, line)

    def vendor(index: Any, package: str, version: str, **listed: Any) -> None:
        like = next(n for n in here if n.startswith(f"{package}-{version}-"))
        tag = like.split("-", 2)[2]
        put(index, for_cuda_13(facts(like), cuda_13), f"{package}-{version}+cu130-{tag}", **listed)

    for package, version in (("torch", "2.9.1"), ("torchvision", "0.24.1"), ("torchaudio", "2.9.1")):
        vendor(torch, package, version)
    vendor(sglang, "sgl_kernel", "0.3.21", hashed=False)
    sglang.add("sgl-kernel", "sgl_kernel_cp312_cu130.whl", b"saved under another name", hashed=False)
    like = facts("flashinfer_cubin-0.6.3-py3-none-any.whl")
    like = type(like)(
        metadata=like.metadata.replace("flashinfer-cubin", "flashinfer-jit-cache"),
        tags=(),
        files={},
        elf={},
        gpu={},
    )
    put(flashinfer, like, "flashinfer_jit_cache-0.6.4+cu130-cp39-abi3-manylinux_2_28_x86_64.whl")
    old = facts("flashinfer_python-0.6.3-py3-none-any.whl")
    for day in ("01", "09"):
        put(nightly, old, f"flashinfer_python-0.2.14.dev202510{day}-py3-none-any.whl", hashed=False)
    return {
        "default": indexes.default.url, "pytorch-cu130": torch.url, "sglang-cu130": sglang.url,
        "flashinfer-cu130": flashinfer.url, "nightly": nightly.url,
    }  # fmt: skip


_SUFFIXED = {"nvidia-cudnn", "nvidia-nccl", "nvidia-nvshmem", "nvidia-cusparselt"}


def _renamed(match: re.Match[str]) -> str:
    pin = "==9.13.0.50" if match[1] == "nvidia-cudnn" else ""
    return f"{match[1]}{'-cu13' if match[1] in _SUFFIXED else ''}{pin};"


def test_from_a_first_attempt_to_cu130(afternoon: Afternoon) -> None:
    call, edit = afternoon.call, afternoon.edit
    shipped = afternoon.path.read_text()
    (afternoon.path.parent / "production.toml").write_text(PRODUCTION)
    made = call("lock", "production")  # what runs today: one lock to compare with
    assert made.code == 0, made.err

    # At first: FlashInfer from the nightly index, the newest torch, the kernels as PyPI has them, the base of
    # CUDA 12.8, symmetric memory without the patch for SM120.
    first = (
        ('[[layer]]\nname = "python"', NIGHTLY + '[[layer]]\nname = "python"'),
        (FLASHINFER, '"flashinfer-python"]\nindex = "nightly"'),
        (PINNED, PINNED.replace("==0.6.4", ">=0")),
        (f"requirements = [{PYTORCH}", f"requirements = [{PLAIN.replace('2.9.1', '2.10.0', 1)}"),
        ("[[override]]", NEWEST + "[[override]]"),
        (KERNELS, '"sgl-kernel==0.3.21"]'),
        (BASE, OLD_BASE),
        (PATCHES, ""),
        (SYMM_MEM, SYMM_MEM + ', "--enable-torch-symm-mem"'),
    )
    edit(*first)

    # The newest wheel of the nightly index is months old, and older than production.
    rows = {row["index"]: row for row in recon(call, "flashinfer-python", "--against", "production")}
    assert rows["nightly"]["newest-pre-release"]["version"] == "0.2.14.dev20251009"
    assert any(mark.startswith("stale nightly") for mark in rows["nightly"]["marks"])
    assert "a downgrade from production: 0.6.4" in rows["nightly"]["marks"]
    assert rows["default"]["newest"]["version"] == "0.6.4"  # the advice

    # A file that was saved under another name is no wheel to anybody.
    (kernels,) = (r for r in recon(call, "sgl-kernel") if r["index"] == "sglang-cu130")
    assert kernels["odd"][0].startswith("sgl_kernel_cp312_cu130.whl: its name is neither")
    assert kernels["newest"]["version"] == "0.3.21+cu130"
    by_url = f"sgl-kernel @ {afternoon.server}/files/sgl-kernel/sgl_kernel_cp312_cu130.whl"
    edit(('"sgl-kernel==0.3.21"', f'"{by_url}"'))
    refused = call("lock", "mine")
    assert refused.code == 12 and "sgl_kernel_cp312_cu130.whl" in refused.err
    edit((f'"{by_url}"', '"sgl-kernel==0.3.21"'))

    # torch 2.10.0 and cuda-python 13 exclude each other; then the rest is told at once.
    refused = call("lock", "mine")
    assert refused.code == 12 and "cuda-python==13.0.3" in refused.err and "[[override]]" in refused.err
    edit(("cuda-python==13.0.3", "cuda-python==12.9"))
    assert call("lock", "mine").code == 0
    found = call("check", "mine", "--json", "--against", "production")
    assert found.code == 5
    assert "days old" in found.finding("version.nightly", "flashinfer-python")["what"]
    assert "0.6.4" in found.finding("version.downgrade", "flashinfer-python")["what"]
    unsigned = found.finding("abi.undefined-symbol", "sgl-kernel: sgl_kernel/sm100/common_ops.abi3.so")
    assert "c10_cuda_check_implementationEiPKcS2_ib" in unsigned["what"]
    assert any(line.endswith("c10_cuda_check_implementationEiPKcS2_jb") for line in unsigned["evidence"])
    assert unsigned["fix"].startswith("imagebuilder matrix sgl-kernel --against torch")
    assert "12.9" in found.finding("toolchain.nvcc-too-old", "flashinfer-python")["what"]
    sm120 = found.finding("acceptance.argument-unsupported", "sglang")
    assert "sm_120" in sm120["what"] and "patch" in sm120["fix"]

    # The advice: ask which torch these kernels go with.
    table = call("matrix", "sgl-kernel==0.3.21", "--against", "torch", "--stack", "mine", "--json")
    loads = [row["version"] for row in table.json["rows"] if row["verdict"] == "loads"]
    assert loads == ["2.9.1", "2.9.0"]

    # Production's FlashInfer, that torch, the patch; the kernels from SGLang's index for CUDA 13. torch is
    # still bound to no index, so the resolver takes the build for CUDA 12, silently.
    kept = {OLD_BASE, f"requirements = [{PLAIN.replace('2.9.1', '2.10.0', 1)}"}
    edit(*((now, was) for was, now in reversed(first) if now not in kept and now))
    edit((PLAIN.replace("2.9.1", "2.10.0", 1), PLAIN), ("cuda-python==12.9", "cuda-python==13.0.3"))
    edit(('requirements = ["sglang==0.5.9"]\n', f'requirements = ["sglang==0.5.9"]\n{PATCHES}'))
    assert call("lock", "mine").code == 0
    found = call("check", "mine", "--json")
    assert found.code == 5
    swapped = found.finding("cuda.two-builds", "torch")
    assert "torch 2.9.1 is built for CUDA 12" in swapped["what"]
    assert swapped["fix"].startswith(f"torch=={loads[0]}+cu130, bound to an index")
    lost = found.finding("lib.missing", "sgl-kernel: sgl_kernel/sm100/common_ops.abi3.so")
    assert "libnvrtc.so.13" in lost["what"]
    assert "builds of the others for CUDA 13" in found.finding("cuda.two-majors", "sgl-kernel")["fix"]
    rows = {row["index"]: row for row in recon(call, "torch")}
    assert rows["pytorch-cu130"]["newest"]["version"] == "2.9.1+cu130"

    # That done, and the base of CUDA 13 for its nvcc, it is `cu130`: nothing stands in the way.
    edit((f"requirements = [{PLAIN}", f"requirements = [{PYTORCH}"), (OLD_BASE, BASE))
    assert afternoon.path.read_text() == shipped
    assert call("lock", "mine").code == 0
    found = call("check", "mine", "--json")
    still = [f for f in found.json["findings"] if f["waived"] is None and f["severity"] != "note"]
    assert found.code == 0 and not still, still
    for waiver in re.findall(r"(?ms)^\[\[waive\]\]\n.*?\n\n", shipped):  # and each waiver is needed
        afternoon.path.write_text(shipped.replace(waiver, "", 1))
        back = call("check", "mine", "--json").open - found.open
        assert {code for code, _ in back} == {waiver.split('"')[1]}


def recon(call: Callable[..., Said], package: str, *more: str) -> list[dict[str, Any]]:
    """The rows of one package on all indexes of the stack."""
    outcome = call("recon", package, "--stack", "mine", "--json", *more)
    assert outcome.code == 0, outcome.err
    rows: list[dict[str, Any]] = outcome.json["rows"]
    return rows
