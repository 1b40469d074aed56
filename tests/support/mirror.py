"""Package indexes on loopback, filled with small wheels: any, and one like those that cu130 is made from.

    index = server.index("/simple", form="json")
    publish(index, tmp_path, "demo", "1.0", requires=["other>=2"], upload_time="2025-01-01T00:00:00Z")

    mirror = cu130_mirror(server, tmp_path)     # the vendor indexes of stacks/cu130.toml and a default one
    settings = Settings(cache_dir=…, default_index=mirror.default, index_urls=mirror.indexes)

The wheels have real names, versions, tags and pins, no code; what SGLang's patches change is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.support.http_server import Server, SimpleIndex
from tests.support.wheels import make_wheel

DATED = "2025-12-01T00:00:00Z"


def publish(
    index: SimpleIndex,
    folder: Path,
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    build: str = "",
    requires: Iterable[str] = (),
    extras: Iterable[str] = (),
    inner_version: str | None = None,
    inner_name: str | None = None,
    files: Mapping[str, bytes] | None = None,
    filename: str | None = None,
    **listed: Any,
) -> str:
    """Make a wheel and list it; its address. listed: as `SimpleIndex.add` takes it."""
    stem = re.sub(r"[-.]+", "_", name)
    info = f"{stem}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {inner_name or name}\nVersion: {inner_version or version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    called = filename or f"{stem}-{version}{f'-{build}' if build else ''}-{tag}.whl"
    contents: dict[str, Any] = {
        f"{stem}/__init__.py": f"# {called}\n__version__ = {version!r}\n".encode(),
        f"{info}/METADATA": metadata.encode(),
        **(files or {}),
    }
    path = make_wheel(folder / "made", stem, version, contents, filename=called)
    project = canonicalize_name(name)
    return index.add(project, called, path, **listed)


def publish_sdist(index: SimpleIndex, name: str, version: str, **listed: Any) -> str:
    """List a source distribution; nothing here ever opens one."""
    stem = re.sub(r"[-.]+", "_", name)
    return index.add(canonicalize_name(name), f"{stem}-{version}.tar.gz", b"not opened", **listed)


def before_patch(patch: bytes) -> dict[str, bytes]:
    """Files to which a unified diff applies exactly: its old lines where it wants them, else blank ones."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in patch.decode().splitlines():
        if line.startswith("--- ") or line.startswith("diff "):
            lines = []
        elif line.startswith("+++ "):
            lines = found.setdefault(line.split()[1].partition("/")[2], [])
        elif match := re.match(r"@@ -(\d+)(?:,\d+)? ", line):
            lines += [""] * (int(match[1]) - 1 - len(lines))
        elif line[:1] in (" ", "-"):
            lines.append(line[1:])
        elif line == "":
            lines.append("")
    return {path: ("\n".join(old) + "\n").encode() for path, old in found.items()}


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """Addresses: of the stack's indexes by name, and of the default one."""

    indexes: Mapping[str, str]
    default: str


_X86 = "manylinux_2_28_x86_64"


def cu130_mirror(
    server: Server, folder: Path, *, python: str = "312", patches: Path | None = None, pip: Path | None = None
) -> Mirror:
    """What `stacks/cu130.toml` needs, for CPython `python`. patches: the folder of SGLang's patches; pip: a
    real wheel of it, where the image is to be used.

    As in the world: PyTorch's and FlashInfer's indexes publish hashes and no upload times, SGLang's publishes
    no hashes; the default index has plain builds of the same versions, which must not be taken.
    """
    torch = server.index("/whl/cu130", form="html")
    sglang = server.index("/sglang/whl/cu130", form="html")
    flashinfer = server.index("/flashinfer/whl/cu130", form="html")
    default = server.index("/simple", form="json")
    cp = f"cp{python}-cp{python}-{_X86}"
    _vendor_wheels(torch, sglang, flashinfer, folder, cp)
    _default_wheels(default, folder, cp, patches)
    if pip is None:
        publish(default, folder, "pip", "26.3", upload_time=DATED)
    else:
        default.add("pip", pip.name, pip, upload_time=DATED)
    return Mirror(
        indexes={"pytorch-cu130": torch.url, "sglang-cu130": sglang.url, "flashinfer-cu130": flashinfer.url},
        default=default.url,
    )


def _vendor_wheels(
    torch: SimpleIndex, sglang: SimpleIndex, flashinfer: SimpleIndex, folder: Path, cp: str
) -> None:
    needs = [
        "filelock",
        "nvidia-cudnn-cu13==9.13.0.50; platform_system == 'Linux'",
        "nvidia-nccl-cu13==2.27.7; platform_system == 'Linux'",
        "triton==3.5.1; platform_system == 'Linux'",
    ]
    for version in ("2.9.0+cu130", "2.9.1+cu130", "2.10.0+cu130"):
        publish(torch, folder, "torch", version, tag=cp, requires=needs, sized=False)
    publish(torch, folder, "torchvision", "0.24.1+cu130", tag=cp, requires=["torch==2.9.1", "numpy"])
    publish(torch, folder, "torchaudio", "2.9.1+cu130", tag=cp, requires=["torch==2.9.1"])
    kernel = "cp310-abi3-manylinux2014_x86_64"
    for version in ("0.3.16.post4", "0.3.20", "0.3.21"):
        publish(sglang, folder, "sgl-kernel", f"{version}+cu130", tag=kernel, hashed=False, sized=False)
    sglang.add("sgl-kernel", "sgl_kernel_cp312_cu130.whl", b"saved under another name", hashed=False)
    jit = "cp39-abi3-manylinux_2_28_x86_64"
    for version in ("0.6.3", "0.6.4"):
        publish(flashinfer, folder, "flashinfer-jit-cache", f"{version}+cu130", tag=jit)


def _default_wheels(default: SimpleIndex, folder: Path, cp: str, patches: Path | None) -> None:
    def put(name: str, version: str, **more: Any) -> None:
        publish(default, folder, name, version, upload_time=DATED, **more)

    changed: dict[str, bytes] = {}
    for patch in sorted(patches.glob("*.patch")) if patches else ():
        changed |= before_patch(patch.read_bytes())
    pins = [
        "torch==2.9.1", "torchaudio==2.9.1", "torchvision", "sgl-kernel==0.3.21", "flashinfer_python==0.6.3",
        "flashinfer_cubin==0.6.3", "torch_memory_saver==0.0.9", "cuda-python==12.9", "transformers==4.57.1",
        "requests", "numpy", "pytest; extra == 'test'",
    ]  # fmt: skip
    put("sglang", "0.5.9", requires=pins, extras=["test"], files=changed)
    put("torch", "2.9.1", tag=cp, requires=["filelock", "nvidia-cudnn-cu12==9.10.2.21"])
    put("torchvision", "0.24.1", tag=cp, requires=["torch==2.9.1"])
    put("torchaudio", "2.9.1", tag=cp, requires=["torch==2.9.1"])
    put("sgl-kernel", "0.3.21", tag="cp310-abi3-manylinux2014_x86_64")
    put("flashinfer-jit-cache", "9.9", requires=["an-attacker"])
    for version in ("0.6.3", "0.6.4"):
        put("flashinfer-python", version, requires=["numpy", "requests"])
        put("flashinfer-cubin", version)
    for version in ("0.0.9", "0.0.9.post1"):
        put("torch-memory-saver", version, tag="cp39-abi3-manylinux2014_x86_64")
    for version in ("12.9.0", "13.0.3"):
        put("cuda-python", version)
    for version in ("9.13.0.50", "9.16.0.29"):
        put("nvidia-cudnn-cu13", version, tag="py3-none-manylinux_2_27_x86_64")
    put("nvidia-nccl-cu13", "2.27.7", tag="py3-none-manylinux_2_18_x86_64")
    put("triton", "3.5.1", tag=cp)
    put("transformers", "4.57.1", requires=["numpy", "requests"])
    for name, version in (
        ("filelock", "3.20.0"),
        ("numpy", "2.3.5"),
        ("requests", "2.32.5"),
    ):
        put(name, version)
