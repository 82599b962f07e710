"""Value types of the cost model: the clocks that can be set, the work, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

STEPS = 9
"""Choices of a dial without a table, evenly spaced."""


@lru_cache(maxsize=64)
def _choices(table_hz: tuple[int, ...], min_hz: int, max_hz: int) -> tuple[int, ...]:
    if table_hz:
        return tuple(hz for hz in table_hz if min_hz <= hz <= max_hz)
    step = (max_hz - min_hz) / (STEPS - 1)
    return tuple(sorted({round(min_hz + i * step) for i in range(STEPS)}))


@dataclass(frozen=True, slots=True)
class Dial:
    """A clock that could be set, as far as a policy needs to know it."""

    name: str
    """As the actuator calls it: cpu.policy0."""
    kind: str
    """cpu, gpu or memory."""
    table_hz: tuple[int, ...]
    """Ascending; empty where the range is continuous."""
    min_hz: int
    max_hz: int
    """What the limits that others set allow now."""
    writable: bool = True
    write_us: float | None = None
    """Measured, of setting it and letting it go again; None: of a CPU's clock it is in
    `Observation.write_us`, and another's is taken to be as dear, but for a memory cap, which is set
    along."""

    def choices_hz(self) -> tuple[int, ...]:
        """What may be set now, ascending; none where nothing may."""
        if not self.writable or self.min_hz > self.max_hz:
            return ()
        return _choices(self.table_hz, self.min_hz, self.max_hz)

    def nearest(self, hz: int) -> int | None:
        """The lowest choice at or above `hz`, else the highest; None where there is none."""
        choices = self.choices_hz()
        return next((c for c in choices if c >= hz), choices[-1] if choices else None)


@dataclass(frozen=True, slots=True)
class RaceCost:
    """What work takes on one device: `cycles / f + stall`, with a part per race and one per unit.

    Cycles are those of the longest thread; `stall` is time that no clock of ours shortens: memory,
    and all of the work on a device whose clock is left alone.
    """

    cycles: float
    cycles_per_unit: float
    stall_us: float = 0.0
    stall_us_per_unit: float = 0.0
    cores: float = 1.0
    """Busy on average while it runs."""
    bytes_per_unit: float = 0.0
    """Memory traffic."""
    beside_cycles: float = 0.0
    """Of one CPU core, per race, beside the wait: commits and acks."""
    commit_cycles: float = 0.0
    """Of a beat that only commits."""
    host: RaceCost | None = None
    """Of work on a GPU: what the CPU does before and after it, at a clock of its own; `cycles`,
    `stall_us` and `cores` are then of the time in which the GPU works.  None: nothing."""

    def us(self, units: float, hz: int) -> float:
        """How long a race of `units` takes at a clock."""
        cycles = self.cycles + self.cycles_per_unit * units
        return 1e6 * cycles / hz + self.stall_us + self.stall_us_per_unit * units


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done, now and from here on."""

    units: float
    """Waiting for the next race."""
    units_per_s: float
    """Arriving."""
    costs: Mapping[str, RaceCost]
    """By device, where a race could run: `cpu` or `gpu`.  A running join has one at a time, which
    placement chooses by the plans that it would come to (`governors.placement_prices`)."""
    latency_us: int
    """The tolerance: from arrival to sealed."""
    commit_us: float = 0.0
    """Of the tolerance, what the commit and the margins take beside the race."""
    upload_bytes_per_s: float = 0.0
    upload_within_us: int = 0
    """How long results may wait for an upload window; 0: they are sent with every beat."""
    period_us_max: float = math.inf
    """From one race to the next, what buffers leave: the batcher's `fill_us`, and a race."""
    commit_every_us: float = 0.0
    """How often what waits is committed without a race, so that senders have their acks; 0: only
    with races."""
