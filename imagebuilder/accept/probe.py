"""Looks around in a container and tells what it sees, as JSON. Sent there; needs the standard library only.

Its argument is a JSON file: packages (names to import), jobs, timeout (seconds for one import), folders (to
write to). Nothing is judged here: see `smoke`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any

# Names of folders that wheels drop beside their package by mistake.
STRAY = {"test", "tests", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts"}
MOST_MODULES = 6
IMPORT = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
TORCH = """
import json, torch
nccl = ""
try:
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    nccl = ""
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl,
                  "cudnn": str(torch.backends.cudnn.version() or ""), "available": torch.cuda.is_available(),
                  "arch": torch.cuda.get_arch_list() if torch.version.cuda else []}))
"""


def modules_of(distribution: Distribution) -> list[str]:
    """What can be imported of a distribution: its packages and modules; of namespaces the packages inside."""
    files = [PurePosixPath(str(file)) for file in distribution.files or ()]
    packages = {f.parent.parts for f in files if f.name == "__init__.py" and 1 <= len(f.parts) - 1 <= 2}
    tops = {parts[0] for parts in packages if len(parts) == 1}
    names = set(tops)
    names |= {".".join(parts) for parts in packages if len(parts) == 2 and parts[0] not in tops}
    for file in files:
        if len(file.parts) == 1 and file.suffix in (".py", ".so"):
            names.add(file.name.split(".")[0])
    good = [n for n in sorted(names) if all(p.isidentifier() for p in n.split(".")) and n not in STRAY]
    public = [n for n in good if not n.startswith("_")]
    return (public or good)[:MOST_MODULES]


def imported(modules: list[str], timeout: float) -> str:
    """Import them in a process of their own; what went wrong, empty if nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", IMPORT, *modules],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {timeout:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    said = lines[-1][:500] if lines else ""
    return said if done.returncode > 0 else f"killed by signal {-done.returncode}: {said}"


def imports(wanted: list[str], jobs: int, timeout: float) -> dict[str, Any]:
    """name → version, modules and error for every distribution asked for that is here."""
    here = {canonical(d.metadata["Name"]): d for d in distributions() if d.metadata["Name"]}
    found: dict[str, Any] = {}

    def look(name: str) -> None:
        modules = modules_of(here[name])
        error = imported(modules, timeout) if modules else ""
        found[name] = {"version": here[name].version, "modules": modules, "error": error}

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        list(pool.map(look, [name for name in wanted if name in here]))
    return found


def canonical(name: str) -> str:
    """PEP 503."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)


def torch_facts(timeout: float) -> dict[str, Any]:
    """What torch says of itself; `error` where it cannot; empty without torch."""
    if not any(canonical(d.metadata["Name"] or "") == "torch" for d in distributions()):
        return {}
    try:
        done = subprocess.run(
            [sys.executable, "-c", TORCH], capture_output=True, timeout=timeout, check=False
        )
        told: dict[str, Any] = json.loads(done.stdout)
        return told
    except (subprocess.TimeoutExpired, ValueError) as error:
        return {"error": type(error).__name__}


def gpus() -> dict[str, Any]:
    """GPUs as the CUDA driver has them, and the driver's version; `error` where there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": str(error), "devices": [], "driver": driver_version()}
    count, status = ctypes.c_int(), cuda.cuInit(0)
    if status or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return {"error": f"cuInit: status {status}", "devices": [], "driver": driver_version()}
    devices = []
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
        memory, major, minor = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # compute capability, major and minor
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        devices.append(
            {
                "name": name.value.decode(errors="replace"),
                "memory": memory.value,
                "capability": [major.value, minor.value],
            }
        )
    return {"error": "", "devices": devices, "driver": driver_version()}


def driver_version() -> str:
    """Of NVIDIA's driver, from NVML; empty where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, len(text)):
        return ""
    return text.value.decode(errors="replace")


def folders(paths: list[str]) -> dict[str, str]:
    """path → why nothing can be written there; empty if something can."""
    found = {}
    for path in paths:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                found[path] = ""
        except OSError as error:
            found[path] = error.strerror or str(error)
    return found


def shm_bytes() -> int:
    """Size of /dev/shm."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return stat.f_blocks * stat.f_frsize


def main() -> None:
    """Tell everything on standard output, and let nobody else write there."""
    asked = json.loads(Path(sys.argv[1]).read_bytes())
    out = os.dup(1)
    os.dup2(2, 1)
    told = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "packages": imports(asked["packages"], asked["jobs"] or os.cpu_count() or 1, asked["timeout"]),
        "torch": torch_facts(asked["timeout"]),
        "gpus": gpus(),
        "folders": folders(asked["folders"]),
        "shm": shm_bytes(),
    }
    os.write(out, json.dumps(told).encode())


if __name__ == "__main__":
    main()
