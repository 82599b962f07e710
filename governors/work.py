"""Value types of the cost model: clocks that can be set, pending work, and its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

STEPS = 9
"""Number of choices, evenly spaced, of a dial without a frequency table."""


@lru_cache(maxsize=64)
def _choices(table_hz: tuple[int, ...], min_hz: int, max_hz: int) -> tuple[int, ...]:
    if table_hz:
        return tuple(hz for hz in table_hz if min_hz <= hz <= max_hz)
    step = (max_hz - min_hz) / (STEPS - 1)
    return tuple(sorted({round(min_hz + i * step) for i in range(STEPS)}))


@dataclass(frozen=True, slots=True)
class Dial:
    """A clock that a policy may set."""

    name: str
    """Name of its actuator: cpu.policy0."""
    kind: str
    """cpu, gpu or memory."""
    table_hz: tuple[int, ...]
    """Ascending; empty where the range is continuous."""
    min_hz: int
    max_hz: int
    """Range that the limits of other processes allow now."""
    writable: bool = True
    write_us: float | None = None
    """Measured time to set the clock and release it.  None: a CPU clock's is in
    `Observation.write_us`; any other clock is taken to cost as much, except a memory cap, which is
    set along with it."""

    def choices_hz(self) -> tuple[int, ...]:
        """Clocks that may be set now, ascending; empty where none may."""
        if not self.writable or self.min_hz > self.max_hz:
            return ()
        return _choices(self.table_hz, self.min_hz, self.max_hz)

    def nearest(self, hz: int) -> int | None:
        """The lowest choice at or above `hz`, else the highest; None without choices."""
        choices = self.choices_hz()
        return next((c for c in choices if c >= hz), choices[-1] if choices else None)


@dataclass(frozen=True, slots=True)
class RaceCost:
    """Cost of a race on one device: `cycles / f + stall`, each with a part per race and a part per
    unit.

    Cycles are those of the longest thread.  `stall` is time that no clock of edged's shortens:
    memory accesses, and all the work of a device whose clock is not set.
    """

    cycles: float
    cycles_per_unit: float
    stall_us: float = 0.0
    stall_us_per_unit: float = 0.0
    cores: float = 1.0
    """Mean number of busy cores during the race."""
    bytes_per_unit: float = 0.0
    """Memory traffic."""
    beside_cycles: float = 0.0
    """Cycles of one CPU core per race for commits and acks, outside the wait."""
    commit_cycles: float = 0.0
    """Cycles of a beat that only commits."""
    host: RaceCost | None = None
    """For GPU work: what the CPU does before and after it, at its own clock.  `cycles`, `stall_us`
    and `cores` then cover the time in which the GPU works.  None: the CPU does nothing."""

    def us(self, units: float, hz: int) -> float:
        """Duration of a race of `units` at a clock (µs)."""
        cycles = self.cycles + self.cycles_per_unit * units
        return 1e6 * cycles / hz + self.stall_us + self.stall_us_per_unit * units


@dataclass(frozen=True, slots=True)
class Work:
    """Units that wait now, and the rate of arrival."""

    units: float
    """Waiting for the next race."""
    units_per_s: float
    """Rate of arrival."""
    costs: Mapping[str, RaceCost]
    """Cost by device (`cpu` or `gpu`) that can run the race.  A running join has one device at a
    time; placement chooses it (`governors.placement_prices`)."""
    latency_us: int
    """Latency tolerance: from arrival to sealed."""
    commit_us: float = 0.0
    """Part of the tolerance that the commit and the margins take besides the race."""
    upload_bytes_per_s: float = 0.0
    upload_within_us: int = 0
    """Longest time that results may wait for an upload window; 0: every beat sends."""
    period_us_max: float = math.inf
    """Longest time between two races that buffers allow: the batcher's `fill_us` and one race."""
    commit_every_us: float = 0.0
    """Interval of commits without a race, which send the acks; 0: commits come with races only."""
