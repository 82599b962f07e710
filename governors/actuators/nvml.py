"""Clock cap of a discrete NVIDIA GPU, by NVML's locked clocks.

A successful `nvmlInit` proves nothing (docs/hardware.md): on Orin it succeeds, and then every
figure is missing, zero or garbage.  A knob therefore needs a board without a Tegra GPU and a device
that reports power above zero, a clock, and its settable clocks.  A suspended GPU is not queried,
since a query would wake it.

Locking requires root.  NVML does not report locks, so the knob cannot be read back or watched: it
is a cap with the path `nvml:UUID`, whose original value is `unlocked`. Restoring resets the lock,
including a lock of another process.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from governors.actuators.base import SCHEMES, Knob, finder
from governors.detect import DetectedBoard
from governors.sysfs import Sysfs, error

PCI = "/sys/bus/pci/devices"
UNLOCKED = "unlocked"
MHZ = 1_000_000
_ERRNO = {3: errno.ENOTSUP, 4: errno.EPERM, 6: errno.ENOENT, 15: errno.ENODEV, 2: errno.EINVAL}
"""nvmlReturn_t -> errno: not supported, no permission, not found, GPU lost, invalid argument."""


@finder
def locks(sysfs: Sysfs, board: DetectedBoard) -> Iterator[Knob]:
    """`gpu.nvml0`, ...; optional, since other processes share the GPU's clock."""
    if board.tegra or sysfs.root != Path("/") or not _awake(sysfs):
        return
    library = _library()
    if library is None:
        return
    for index in range(library.nvmlDeviceGetCount()):
        try:
            yield _knob(library, library.nvmlDeviceGetHandleByIndex(index), index)
        except (library.NVMLError, ValueError):
            continue


def write(path: str, text: str) -> None:
    """Lock the clock below `text` MHz, or unlock it.  Raises SysfsError."""
    library = _library()
    if library is None:
        raise error(path, OSError(errno.ENODEV, "NVML is not available"))
    try:
        device = library.nvmlDeviceGetHandleByUUID(path.partition(":")[2])
        if text == UNLOCKED:
            library.nvmlDeviceResetGpuLockedClocks(device)
        else:
            library.nvmlDeviceSetGpuLockedClocks(device, min(_table(library, device)), int(text))
    except library.NVMLError as problem:
        raise error(path, OSError(_ERRNO.get(problem.value, errno.EIO), str(problem))) from problem


def clock_hz(path: str) -> int | None:
    """Current clock; None where NVML does not report it."""
    mhz = _query(path, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_GRAPHICS))
    return None if mhz is None else mhz * MHZ


def celsius(path: str) -> int | None:
    """Temperature; None where NVML does not report it."""
    return _query(
        path, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    )


def refusal(path: str) -> str:
    """Why this process may not lock the clock; empty where it may."""
    return "" if os.geteuid() == 0 else f"{path}: only root may lock a GPU's clock"


def _query(path: str, ask: Callable[[Any, Any], int]) -> int | None:
    library = _library()
    if library is None:
        return None
    try:
        return int(ask(library, library.nvmlDeviceGetHandleByUUID(path.partition(":")[2])))
    except library.NVMLError:
        return None


def _awake(sysfs: Sysfs) -> bool:
    """Whether an NVIDIA GPU exists and none is suspended; a query would wake it."""
    found = [
        device
        for device in (f"{PCI}/{name}" for name in sysfs.list(PCI))
        if sysfs.get(f"{device}/vendor") == "0x10de"
        and (sysfs.get(f"{device}/class") or "").startswith("0x03")
    ]
    states = [sysfs.get(f"{device}/power/runtime_status") for device in found]
    return bool(found) and "suspended" not in states


def _library() -> Any:
    """pynvml, initialised; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def _knob(library: Any, device: Any, index: int) -> Knob:
    """Raises NVMLError or ValueError where the device reports no real figures."""
    if library.nvmlDeviceGetPowerUsage(device) <= 0:
        raise ValueError("no power")
    if library.nvmlDeviceGetClockInfo(device, library.NVML_CLOCK_GRAPHICS) <= 0:
        raise ValueError("no clock")
    table = tuple(sorted(mhz * MHZ for mhz in _table(library, device)))
    return Knob(
        f"gpu.nvml{index}", "gpu", MHZ, "", f"nvml:{library.nvmlDeviceGetUUID(device)}", "",
        table, table[0], table[-1], uncapped=UNLOCKED, optional=True,
    )  # fmt: skip


def _table(library: Any, device: Any) -> set[int]:
    memory = library.nvmlDeviceGetSupportedMemoryClocks(device)
    table = set(library.nvmlDeviceGetSupportedGraphicsClocks(device, max(memory)))
    if not table:
        raise ValueError("no table")
    return table


SCHEMES["nvml"] = sys.modules[__name__]
