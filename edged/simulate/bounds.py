"""Rate bounds: the highest rate that each resource allows on its own.

cpu       a race lasts at most its period and half the tolerance, at the highest clocks of the power
          mode; `cpu + gpu` if a kernel on the GPU allows a higher rate
memory    windows and waiting rows fit the job's memory promise and the board's memory
network   arriving rows fit the link, with a tenth for headers. No profile has the speed of the
          link; 1 Gbit/s is assumed, and a note says so
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Setup

LINK_BITS_PER_S = 1e9
HEADERS = 1.1
SYSTEM_BYTES = 1 << 30
"""Board memory that the system and the daemon itself use."""


@dataclass(frozen=True)
class RateBounds:
    """The highest rate (rows/s of each stream) that each resource allows."""

    rows_per_s: Mapping[str, float]

    @property
    def by(self) -> str:
        """The resource with the lowest bound."""
        return min(self.rows_per_s, key=lambda name: self.rows_per_s[name])


def find_bounds(
    at: Callable[[float], Setup], device: SimulatedDevice, link_bits_per_s: float = LINK_BITS_PER_S
) -> RateBounds:
    """The bounds of a job on a board. `at(rate)` returns the setup at a rate of each stream."""
    unit = at(1000.0)
    streams = unit.work.rows_per_s / 1000.0
    bytes_per_s = unit.work.row_bytes * streams
    processor, most = "cpu", _largest(lambda rate: _keeps_up(at(rate), device, None))
    for kernel, work in unit.kernels.items():
        rate = _largest(partial(_with_kernel, at, device, kernel))
        if rate > most:
            processor, most = "cpu" if work.device == "cpu" else "cpu + gpu", rate
    return RateBounds(
        {
            processor: most,
            "memory": _largest(lambda rate: _fits(at(rate), device.profile.memory.bytes)),
            "network": link_bits_per_s / 8 / HEADERS / bytes_per_s,
        }
    )


def _with_kernel(
    at: Callable[[float], Setup], device: SimulatedDevice, kernel: str, rate: float
) -> bool:
    return _keeps_up(at(rate), device, kernel)


def _keeps_up(setup: Setup, device: SimulatedDevice, kernel: str | None) -> bool:
    """Whether races keep up with a kernel of the join; None is the default kernel."""
    work = setup.work if kernel is None else setup.kernels[kernel]
    fixed = device.fastest_us(work.cost, 0, work.device)
    each = (device.fastest_us(work.cost, 1e6, work.device) - fixed) / 1e6 * work.rows_per_s / 1e6
    period = (setup.latency_us - fixed) / (1 + each)
    return period > 0 and fixed + each * period <= min(period, setup.latency_us / 2)


def _fits(setup: Setup, board_bytes: int | None) -> bool:
    waiting = 2 * setup.work.rows_per_s * setup.work.row_bytes * setup.latency_us / 1e6
    return setup.work.state_bytes + waiting <= available_memory(setup, board_bytes)[0]


def available_memory(setup: Setup, board_bytes: int | None) -> tuple[int, str]:
    """Bytes for windows and waiting rows, and the origin of that limit."""
    free = (board_bytes or 1 << 62) - SYSTEM_BYTES
    if setup.memory_bytes <= free:
        return setup.memory_bytes, "the job's promise"
    return free, "the board's memory without the system's share"


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest rate for which `holds` is true, within a thousandth; 0 if there is none."""
    low, high = 0.001, 1e12
    if not holds(low):
        return 0.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
