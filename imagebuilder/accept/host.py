"""The machine that is measured on: GPUs, driver, and samples of clocks, power and temperature by NVML.

Needs the optional `nvidia-ml-py`, and a driver; without either it says so and gives nothing.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

from imagebuilder.accept.model import Gpu, HostFacts, HostSample

T = TypeVar("T")
EVERY = 1.0
"""Seconds between samples."""
BUSY = 0.5
"""Utilisation from which on a sample counts as under load."""
_CROWDED = 1 << 30

# Source: NVML API reference, nvmlClocksEventReasons.
REASONS = {
    0x4: "power cap (software)",
    0x8: "slow-down (hardware)",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake (hardware)",
    0x200: "board limit",
    0x400: "reliability limit",
}


class Sampler:
    """Samples all GPUs in a thread. Use as a context manager. idle: none, the servers are elsewhere."""

    def __init__(self, *, idle: bool = False) -> None:
        self._idle = idle
        self._facts = HostFacts(machine=f"{platform.system()} {platform.release()} {platform.machine()}")
        self._samples: list[HostSample] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._crowded: tuple[str, ...] = ()

    def __enter__(self) -> Sampler:
        if not self._idle:
            self._open()
        if self._handles:
            self._thread = threading.Thread(target=self._work, name="nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        if self._nvml is not None:
            self._quietly(self._nvml.nvmlShutdown)

    @property
    def facts(self) -> HostFacts:
        """What is known so far."""
        samples = tuple(self._samples)
        return replace(self._facts, samples=samples, throttling=(*self._crowded, *throttling(samples)))

    def _open(self) -> None:
        try:
            pynvml: Any = import_module("pynvml")
        except ImportError:
            note = "GPUs were not sampled: pip install 'imagebuilder[nvml]'"
            self._facts = replace(self._facts, note=note)
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except pynvml.NVMLError as error:
            self._facts = replace(self._facts, note=f"GPUs were not sampled: NVML says {error}")
            return
        cuda = self._quietly(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        self._facts = replace(
            self._facts,
            driver=_text(self._quietly(pynvml.nvmlSystemGetDriverVersion)),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=tuple(self._gpu(i, handle) for i, handle in enumerate(self._handles)),
        )
        self._crowded = tuple(
            f"GPU {s.gpu} had {s.memory_used / 2**30:.1f} GiB in use before anything was started"
            for s in self._sample(0.0)
            if s.memory_used and s.memory_used > _CROWDED
        )

    def _gpu(self, index: int, handle: Any) -> Gpu:
        nvml = self._nvml
        memory = self._quietly(nvml.nvmlDeviceGetMemoryInfo, handle)
        limit = self._quietly(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        capability = self._quietly(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return Gpu(
            index=index,
            name=_text(self._quietly(nvml.nvmlDeviceGetName, handle)),
            uuid=_text(self._quietly(nvml.nvmlDeviceGetUUID, handle)),
            capability=".".join(map(str, capability)) if capability else "",
            memory=int(memory.total) if memory else 0,
            power_limit_w=limit / 1000 if limit else None,
        )

    def _work(self) -> None:
        began = time.monotonic()
        while not self._end.wait(EVERY):
            self._samples += self._sample(time.monotonic() - began)

    def _sample(self, at: float) -> list[HostSample]:
        return [self._one(index, handle, at) for index, handle in enumerate(self._handles)]

    def _one(self, index: int, handle: Any, at: float) -> HostSample:
        nvml, ask = self._nvml, self._quietly
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        energy = ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        used = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        return HostSample(
            at_s=at,
            gpu=index,
            sm_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            power_w=power / 1000 if power is not None else None,
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            utilisation=used.gpu / 100 if used else None,
            memory_used=int(memory.used) if memory else None,
            energy_j=energy / 1000 if energy is not None else None,
            reasons=self._reasons(handle),
        )

    def _reasons(self, handle: Any) -> int | None:
        """Under the name that this release of NVML and of its binding have."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            call = getattr(self._nvml, name, None)
            if call and (bits := self._quietly(call, handle)) is not None:
                return int(bits)
        return None

    def _quietly(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What NVML answers, None where this GPU cannot tell."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None


def throttling(samples: Iterable[HostSample]) -> tuple[str, ...]:
    """What kept clocks low while GPUs were busy, as sentences. Pure."""
    busy: Counter[int] = Counter()
    held: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        if sample.utilisation is None or sample.utilisation < BUSY or sample.reasons is None:
            continue
        busy[sample.gpu] += 1
        held.update((sample.gpu, bit) for bit in REASONS if sample.reasons & bit)
    return tuple(
        f"GPU {gpu}: {REASONS[bit]} held its clocks in {100 * count / busy[gpu]:.0f} % of the time under load"
        for (gpu, bit), count in sorted(held.items())
    )


def energy_j(samples: Sequence[HostSample]) -> float | None:
    """Energy of all GPUs between the first and last sample; None where it is not told. Pure."""
    total = 0.0
    for gpu in {s.gpu for s in samples}:
        told = [s.energy_j for s in samples if s.gpu == gpu and s.energy_j is not None]
        if len(told) < 2:
            return None
        total += told[-1] - told[0]
    return total if samples else None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
