"""What other processes use of a GPU: its load, and the memory that they hold.

    integrated GPU    `load` of devfreq's device, per mille (docs/hardware.md 1.2); its memory is
                      the machine's: what is not available, without this process's own
    discrete GPU      NVML: utilisation, and memory without this process's own

The load is the whole GPU's: `edged.placement.gpu_share` subtracts edged's own.  A figure that
cannot be read is None.  A suspended GPU is not asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil

from governors.health import devfreq_gpus
from governors.meters.nvml import gpu_loads, installed, tegra_gpu
from governors.sysfs import Sysfs


class GpuTenants:
    """The first GPU of a machine, which joins run on."""

    def __init__(self, sysfs: Sysfs, simulated: bool) -> None:
        self._sysfs = sysfs
        self._discrete = not simulated and not tegra_gpu(sysfs)
        self._load: Callable[[], float | None] | None = None
        found = list(devfreq_gpus(sysfs))
        if self._discrete:
            found += gpu_loads(sysfs)
        if found:
            self.name, self._load = found[0]
        else:
            self.name = ""

    def load(self) -> float | None:
        """Share of time for which any process uses the GPU, 0 to 1."""
        return None if self._load is None else self._load()

    def memory(self) -> float | None:
        """Share of the GPU's memory that other processes hold."""
        if self._load is None:
            return None
        return _nvml_memory() if self._discrete else _machine_memory(self._sysfs)


def _machine_memory(sysfs: Sysfs) -> float | None:
    """Of the memory that CPU and GPU share."""
    fields = dict(line.split(":", 1) for line in (sysfs.get("/proc/meminfo") or "").splitlines()
                  if ":" in line)  # fmt: skip
    try:
        total, free = (int(fields[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return None
    own = psutil.Process().memory_info().rss
    return min(1.0, max(0.0, total - free - own) / total) if total else None


def _nvml_memory(library: Any = None) -> float | None:
    """Of the first GPU."""
    library = library or installed()
    if library is None:
        return None
    try:
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByIndex(0)
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        mine = sum(
            process.usedGpuMemory or 0
            for process in library.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.pid == os.getpid()
        )
    except Exception:  # the library raises anything where there is no driver
        return None
    return min(1.0, max(0.0, memory.used - mine) / memory.total) if memory.total else None
