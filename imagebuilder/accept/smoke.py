"""Whether the image works in its container at all: what the probe saw, against lock, target and scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from imagebuilder.accept.model import OF_THE_IMAGE, SmokeCheck, SmokeReport
from imagebuilder.accept.server import Launch, Runtime, Script
from imagebuilder.checks import acceptance as codes
from imagebuilder.checks.model import Code, Finding
from imagebuilder.checks.registry import matches
from imagebuilder.errors import NotAccepted
from imagebuilder.lock.model import Lock
from imagebuilder.stack.model import Acceptance, Stack
from imagebuilder.values import Release

IMPORT_TIMEOUT = 300
"""Seconds for the import of one package: without bytecode the largest take a minute."""
PROBE_TIMEOUT = 3600
_CACHES = (
    "PYTHONPYCACHEPREFIX", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TVM_FFI_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE", "SGLANG_DG_CACHE_DIR", "HF_HOME", "XDG_CACHE_HOME",
)  # fmt: skip
_NEEDS_GPU = (
    "libcuda.so",
    "libnvidia-ml.so",
    "NVIDIA driver",
    "no CUDA",
    "CUDA GPUs are available",
    "CUDA device",
)
_SMALL_SHM = 1 << 30


def probe(stack: Stack, lock: Lock, launch: Launch, runtime: Runtime, *, jobs: int = 0) -> dict[str, Any]:
    """Let the probe run where the server will; what it told. NotAccepted."""
    env = dict((*stack.env, *launch.env))
    asked = {
        "packages": [wheel.name for wheel in lock.wheels] if runtime.kind in OF_THE_IMAGE else [],
        "jobs": jobs,
        "timeout": IMPORT_TIMEOUT,
        "folders": ["/tmp", *(env[name] for name in _CACHES if env.get(name))]
        if runtime.kind in OF_THE_IMAGE
        else [],
    }
    source = Path(__file__).with_name("probe.py").read_text(encoding="utf-8")
    script = Script(name="probe", source=source, data=json.dumps(asked).encode())
    output = runtime.run(script, launch, PROBE_TIMEOUT)
    try:
        told = json.loads(output)
    except ValueError:
        raise NotAccepted("the probe told nothing", seen=output[-300:].decode(errors="replace")) from None
    if not isinstance(told, dict):
        raise NotAccepted("the probe told nothing", seen=output[-300:].decode(errors="replace"))
    return told


def judge(
    stack: Stack, lock: Lock, acceptance: Acceptance | None, told: Mapping[str, Any], kind: str
) -> SmokeReport:
    """What the probe's words mean. kind: of the runtime; a `process` says nothing about the image. Pure."""
    checks: list[SmokeCheck] = []
    if kind in OF_THE_IMAGE:
        checks += [*_packages(lock, told), *_folders(told, acceptance)]
    checks += [*_torch(lock, told), *_gpus(stack, acceptance, told)]
    return SmokeReport(checks=tuple(_waived(check, stack) for check in checks), facts=_facts(told))


def _check(code: Code, subject: str, wrong: str, *, ok: str = "", unseen: bool = False) -> SmokeCheck:
    if unseen:
        return SmokeCheck(code=code.code, subject=subject, status="unseen", detail=wrong)
    if not wrong:
        return SmokeCheck(code=code.code, subject=subject, status="ok", detail=ok)
    status: Literal["warning", "failed"] = "warning" if code.severity == "warning" else "failed"
    return SmokeCheck(code=code.code, subject=subject, status=status, detail=wrong)


def _waived(check: SmokeCheck, stack: Stack) -> SmokeCheck:
    if check.status not in ("failed", "warning"):
        return check
    finding = Finding(code=check.code, severity="error", what="", package=check.subject, path=check.subject)
    for waiver in stack.waivers:
        if matches(waiver, finding):
            return SmokeCheck(
                code=check.code,
                subject=check.subject,
                status="waived",
                detail=f"{check.detail} (waived: {waiver.reason})",
            )
    return check


def _packages(lock: Lock, told: Mapping[str, Any]) -> Iterator[SmokeCheck]:
    here: Mapping[str, Any] = told.get("packages") or {}
    no_gpu = not (told.get("gpus") or {}).get("devices")
    good = imported = 0
    for wheel in lock.wheels:
        seen = here.get(wheel.name)
        version = str(seen["version"]) if seen else ""
        if seen and _fits(version, str(wheel.version)):
            good += 1
        else:
            yield _check(codes.DISTRIBUTION, wheel.name, f"{version or 'not there'}, locked {wheel.version}")
        error = str(seen["error"]) if seen else ""
        if error:
            gpu = no_gpu and any(word in error for word in _NEEDS_GPU)
            yield _check(codes.IMPORT, wheel.name, error, unseen=gpu)
        elif seen and seen["modules"]:
            imported += 1
    yield _check(codes.DISTRIBUTION, "packages", "", ok=f"{good} of {len(lock.wheels)} are as locked")
    yield _check(codes.IMPORT, "packages", "", ok=f"{imported} imported, each in a process of its own")


def _fits(version: str, locked: str) -> bool:
    """Whether this is the locked version, or that with patches applied."""
    try:
        one, other = Version(version), Version(locked)
    except ValueError:
        return version == locked
    local = re.sub(r"(?:^|\.)patched\..*", "", one.local or "")
    return Version(one.public + (f"+{local}" if local else "")) == other


def _torch(lock: Lock, told: Mapping[str, Any]) -> Iterator[SmokeCheck]:
    torch: Mapping[str, Any] = told.get("torch") or {}
    wheels = {str(wheel.name): str(wheel.version) for wheel in lock.wheels}
    if "torch" not in wheels:
        return
    if not torch or torch.get("error"):
        yield _check(codes.TORCH, "torch", str(torch.get("error", "not there")), unseen=not torch)
        return
    wanted = _cuda_of(wheels)
    if wanted:
        seen = str(torch["cuda"])
        wrong = "" if seen == wanted else f"a build for CUDA {seen or 'none'}, locked for {wanted}"
        yield _check(codes.TORCH, "CUDA of torch", wrong, ok=seen)
    nccl = next((v for name, v in wheels.items() if name.startswith("nvidia-nccl-")), "")
    if nccl and torch["nccl"]:
        wrong = "" if torch["nccl"] == nccl else f"NCCL {torch['nccl']}, locked {nccl}"
        yield _check(codes.TORCH, "NCCL of torch", wrong, ok=str(torch["nccl"]))


def _cuda_of(wheels: Mapping[str, str]) -> str:
    """CUDA major.minor that the locked torch is for; empty where the lock does not say."""
    local = Version(wheels["torch"]).local or ""
    if local.startswith("cu") and local[2:].isdigit():
        return f"{local[2:-1]}.{local[-1]}"
    runtime = next((v for n, v in wheels.items() if n.startswith("nvidia-cuda-runtime")), "")
    return ".".join(runtime.split(".")[:2])


def _gpus(stack: Stack, acceptance: Acceptance | None, told: Mapping[str, Any]) -> Iterator[SmokeCheck]:
    if not stack.target.gpus or (acceptance and acceptance.gpus == "none"):
        return
    seen: Mapping[str, Any] = told.get("gpus") or {}
    devices = seen.get("devices") or []
    if not devices:
        yield _check(codes.DEVICE, "GPUs", str(seen.get("error") or "none seen"), unseen=True)
        return
    wanted = {gpu.capability for gpu in stack.target.gpus}
    for index, device in enumerate(devices):
        major, minor = device["capability"]
        fits = (major, minor) in wanted
        name = f"{device['name']} (sm_{major}{minor})"
        target = ", ".join(map(str, stack.target.gpus))
        yield _check(codes.DEVICE, f"GPU {index}", "" if fits else f"{name}, made for {target}", ok=name)
    if acceptance and isinstance(acceptance.gpus, tuple):
        wrong = (
            ""
            if len(devices) == len(acceptance.gpus)
            else f"{len(devices)}, asked for {len(acceptance.gpus)}"
        )
        yield _check(codes.DEVICE, "number of GPUs", wrong, ok=str(len(devices)))
    driver = str(seen.get("driver") or "")
    if stack.target.driver:
        try:
            old = bool(driver) and Release(driver) < stack.target.driver
        except ValueError:
            old = False
        wrong = (
            f"{driver}, promised {stack.target.driver}"
            if old
            else ""
            if driver
            else "its version is not told"
        )
        yield _check(codes.DRIVER, "driver", wrong, ok=driver, unseen=not driver)


def _folders(told: Mapping[str, Any], acceptance: Acceptance | None) -> Iterator[SmokeCheck]:
    for path, error in (told.get("folders") or {}).items():
        yield _check(codes.FOLDER, str(path), str(error), ok="can be written to")
    shm = int(told.get("shm") or 0)
    if acceptance and acceptance.gpus != "none":
        wrong = f"{shm >> 20} MiB: NCCL needs more with several GPUs" if shm < _SMALL_SHM else ""
        yield _check(codes.FOLDER, "/dev/shm", wrong, ok=f"{shm >> 20} MiB")


def _facts(told: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    torch, seen = told.get("torch") or {}, told.get("gpus") or {}
    facts = {
        "Python": told.get("python"),
        "machine": told.get("machine"),
        "glibc": told.get("glibc"),
        "torch": torch.get("version"),
        "CUDA of torch": torch.get("cuda"),
        "cuDNN": torch.get("cudnn"),
        "NCCL": torch.get("nccl"),
        "driver": seen.get("driver"),
        "GPUs": ", ".join(str(d["name"]) for d in seen.get("devices") or ()),
    }
    return tuple((name, str(value)) for name, value in facts.items() if value)
