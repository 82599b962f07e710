"""NVML meter: discrete NVIDIA GPUs.

On Tegra NVML starts, finds a GPU, and returns NotSupported or zero for every power query
(docs/hardware.md); where devfreq shows a Tegra GPU it is not used.  Elsewhere each quantity is
queried once at the start, and one that fails or is zero counts as absent.

Energy (mJ since the driver was loaded) is preferred to power (mW). A suspended GPU is not queried,
since that would wake it; its counter includes the time afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from governors.energy import Provenance, Rail
from governors.meters.base import (
    COUNTER_SPAN_US,
    BoardLike,
    Found,
    Meter,
    Missing,
    PlainMeter,
    Reading,
    failed,
    opener,
    power_reading,
)
from governors.meters.settings import MeterSettings
from governors.sysfs import Sysfs

INTERVAL_US = 1_000_000
TEGRA_GPUS = ("gv11b", "gp10b", "ga10b", "gb10b", "gpu")
"""Device-tree names of GPUs; a name that contains the last one counts too."""


@dataclass(slots=True)
class _Device:
    handle: Any
    rail: Rail
    pci: str
    counts: bool
    first_mj: int = 0
    last_mj: int = 0


class Nvml(PlainMeter):
    """All GPUs with an energy counter, or all with power only."""

    interval_us = INTERVAL_US

    def __init__(
        self, sysfs: Sysfs, library: Any, devices: list[_Device], provenance: Provenance
    ) -> None:
        counts = devices[0].counts
        self.name = "nvml" if counts else "nvml:watts"
        self.span_us: int | None = COUNTER_SPAN_US if counts else None
        self.provenance = provenance
        self.rails = tuple(device.rail for device in devices)
        self._sysfs, self._library, self._devices = sysfs, library, devices

    def read(self, now_us: int) -> list[Reading]:
        """Joules since the meter was opened, or watts."""
        return [self._read(device, now_us) for device in self._devices]

    def _read(self, device: _Device, now_us: int) -> Reading:
        if self._sysfs.get(f"{device.pci}/power/runtime_status") == "suspended":
            return failed(device.rail, now_us, "suspended: a query would wake it")
        try:
            if not device.counts:
                watts = self._library.nvmlDeviceGetPowerUsage(device.handle) / 1e3
                return power_reading(device.rail, now_us, watts)
            now_mj = int(self._library.nvmlDeviceGetTotalEnergyConsumption(device.handle))
        except self._library.NVMLError as problem:
            return failed(device.rail, now_us, f"NVML: {problem}")
        lost = ""
        if now_mj < device.last_mj:
            lost = "the driver was reloaded: its counter restarted at 0"
            device.first_mj = now_mj
        device.last_mj = now_mj
        joules = (now_mj - device.first_mj) / 1e3
        return Reading(device.rail, now_us, None, joules, lost)


@opener("nvml")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The GPUs that NVML reports figures for."""
    if settings.provenance is Provenance.SIMULATED or tegra_gpu(sysfs):
        return Found()
    library = installed()
    return Found() if library is None else look(sysfs, library, settings.provenance)


def installed() -> Any:
    """The module `pynvml`; None without NVIDIA's driver, where it is not imported."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    import pynvml

    return pynvml


def tegra_gpu(sysfs: Sysfs) -> bool:
    """Whether devfreq shows a Tegra GPU (Thor's are named gpu-gpc-0)."""
    for node in sysfs.list("/sys/class/devfreq"):
        name = sysfs.get(f"/sys/class/devfreq/{node}/device/of_node/name") or node
        if name in TEGRA_GPUS or TEGRA_GPUS[-1] in name:
            return True
    return False


def gpu_loads(sysfs: Sysfs, library: Any = None) -> list[tuple[str, Callable[[], float | None]]]:
    """Names of the GPUs that NVML reports a load for, each with a function that reads it (0 to 1;
    None: suspended, or not read)."""
    library = library or installed()
    if library is None:
        return []
    try:
        library.nvmlInit()
        handles = [
            library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())
        ]
    except library.NVMLError:
        return []
    return [(f"gpu-{i}", partial(_load, sysfs, library, h)) for i, h in enumerate(handles)]


def _load(sysfs: Sysfs, library: Any, handle: Any) -> float | None:
    try:
        if sysfs.get(f"{_pci(library, handle)}/power/runtime_status") == "suspended":
            return None
        return float(library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except library.NVMLError:
        return None


def look(sysfs: Sysfs, library: Any, provenance: Provenance) -> Found:
    """Query a library with the interface of `pynvml`."""
    try:
        library.nvmlInit()
        handles = [
            library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())
        ]
    except library.NVMLError:
        return Found()  # no NVIDIA driver: no GPU of this kind
    devices, missing = [], []
    for index, handle in enumerate(handles):
        device = _device(library, index, handle)
        if device is None:
            text = f"gpu-{index}: reports neither energy nor power"
            missing.append(Missing("nvml", text, "use an external meter: [[meters.external]]"))
        else:
            devices.append(device)
    kinds = [[d for d in devices if d.counts], [d for d in devices if not d.counts]]
    meters: list[Meter] = [Nvml(sysfs, library, found, provenance) for found in kinds if found]
    return Found(tuple(meters), tuple(missing))


def _device(library: Any, index: int, handle: Any) -> _Device | None:
    def ask(question: Any) -> int:
        try:
            return int(question(handle))
        except library.NVMLError:
            return 0

    energy_mj = ask(library.nvmlDeviceGetTotalEnergyConsumption)
    if energy_mj == 0 and ask(library.nvmlDeviceGetPowerUsage) == 0:
        return None
    rail = Rail(f"gpu-{index}", ("gpu",))
    return _Device(handle, rail, _pci(library, handle), energy_mj > 0, energy_mj, energy_mj)


def _pci(library: Any, handle: Any) -> str:
    """Directory of a GPU's device."""
    try:
        bus = library.nvmlDeviceGetPciInfo(handle).busId
        text = bus.decode() if isinstance(bus, bytes) else str(bus)
    except library.NVMLError:
        text = ""
    return f"/sys/bus/pci/devices/{text[-12:].lower()}"  # NVML writes the domain with 8 digits
