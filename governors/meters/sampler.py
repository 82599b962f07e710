"""Sampler: reads each meter when it is due, counts joules, and bounds its own CPU time.

There is no polling: the caller's event loop sleeps until `due_us` and calls `sample`. Readings are
made when due and not when a beat runs, since a sensor read only in races would see only races.  For
the same reason intervals vary evenly between half and one and a half times their mean (a
golden-ratio sequence), so that no rhythm of beats is always sampled at the same phase.

Meters due within SLACK of their interval are read together, so that one wake serves several.

The cost of a read is measured in CPU time of the calling thread, including what the caller books
after it (`booked`). Where reading a meter at its interval would take more than `share_max` of a
core, its interval is stretched; `schedules` reports that.  A counter's interval is never stretched
so far that a wrap could go unnoticed.  The energy of waking a core is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from governors.energy import Provenance, RailEnergy
from governors.meters.base import Meter, Reading, failed
from governors.meters.rails import Key, Whole, input_energy, wholes
from governors.meters.totals import Total, difference

SHARE_MAX = 0.001
"""Of one core."""
BRIDGE_INTERVALS = 3
"""Intervals without a watt reading that make a gap."""
SLACK = 0.25
COST_WEIGHT = 0.2
"""Weight of the newest read in the mean cost."""
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of one meter."""

    meter: str
    wanted_us: int
    """The meter's own interval."""
    interval_us: int
    """Mean interval in use; longer than wanted where reading costs too much."""
    cost_us: float
    """Mean CPU time of a read and its booking."""
    share: float
    """Of a core, at this interval."""
    reads: int


@dataclass(slots=True)
class _SampledMeter:
    meter: Meter
    totals: dict[str, Total]
    due_us: int | None = None
    cost_us: float = 0.0
    reads: int = 0

    def interval_us(self, share_max: float, booking_us: float) -> int:
        stretched = max(self.meter.interval_us, int((self.cost_us + booking_us) / share_max))
        span_us = self.meter.span_us
        return stretched if span_us is None else min(stretched, max(1, span_us // 2))

    def bridge_us(self, interval_us: int) -> int:
        span_us = self.meter.span_us
        return BRIDGE_INTERVALS * interval_us if span_us is None else span_us


def thread_time_us() -> float:
    """CPU time of the calling thread."""
    return time.thread_time_ns() / 1e3


class Sampler:
    """Reads `meters`. Use from one thread."""

    def __init__(
        self,
        meters: Sequence[Meter],
        cpu_us: Callable[[], float] = thread_time_us,
        share_max: float = SHARE_MAX,
    ) -> None:
        self._cpu_us, self._share_max = cpu_us, share_max
        self._booking_us, self._bookings = 0.0, 0
        self.cpu_us = 0.0
        """CPU time of all reads so far."""
        self._reads = [
            _SampledMeter(m, {r.name: _total(m, r.name) for r in m.rails}) for m in meters
        ]
        self.wholes: list[Whole] = wholes(meters)
        """Ways to obtain the whole input, best first."""

    def due_us(self, now_us: int) -> int | None:
        """Time of the next `sample`; None without meters."""
        return min((now_us if r.due_us is None else r.due_us for r in self._reads), default=None)

    def sample(
        self, now_us: int, busy_cores: float | None = None, all_meters: bool = False
    ) -> list[Reading]:
        """Read the meters that are due, or all of them.  `busy_cores`: mean number of busy cores
        since the previous call, where known; without it frozen sensors are not detected."""
        readings = []
        for read in self._reads:
            slack_us = int(SLACK * self._interval_us(read)) if read.reads else 0
            if all_meters or read.due_us is None or now_us >= read.due_us - slack_us:
                readings += self._read(read, now_us, busy_cores)
        return readings

    def _read(self, read: _SampledMeter, now_us: int, busy_cores: float | None) -> list[Reading]:
        before_us = self._cpu_us()
        got = {reading.rail.name: reading for reading in read.meter.read(now_us)}
        cost_us = self._cpu_us() - before_us
        self.cpu_us += cost_us
        read.reads += 1
        weight = max(COST_WEIGHT, 1 / read.reads)
        read.cost_us += weight * (cost_us - read.cost_us)
        interval_us = self._interval_us(read)
        read.due_us = now_us + int(interval_us * (0.5 + read.reads * GOLDEN % 1.0))
        bridge_us = read.bridge_us(interval_us)
        readings = []
        for rail in read.meter.rails:
            reading = got.get(rail.name) or failed(rail, now_us, "the meter gave no reading for it")
            readings.append(reading)
            read.totals[rail.name].take(reading, bridge_us, busy_cores)
        return readings

    @property
    def counted_wholes(self) -> set[str]:
        """Names of the ways to the whole input whose sensors all count its joules by themselves:
        also while nothing reads them."""
        counters = {
            (r.meter.name, rail.name)
            for r in self._reads
            if r.meter.span_us is not None and r.meter.provenance is not Provenance.MODELLED
            for rail in r.meter.rails
            if "input" in rail.feeds
        }
        return {whole.name for whole in self.wholes if set(whole.keys) <= counters}

    def booked(self, us: float) -> None:
        """Add CPU time that the caller spent booking the last readings."""
        self._bookings += 1
        self._booking_us += max(COST_WEIGHT, 1 / self._bookings) * (us - self._booking_us)

    def _interval_us(self, read: _SampledMeter) -> int:
        return read.interval_us(self._share_max, self._booking_us)

    def close(self) -> None:
        """Close the meters."""
        for read in self._reads:
            read.meter.close()

    @property
    def totals(self) -> dict[Key, RailEnergy]:
        """Joules of each rail since its first reading."""
        found = {}
        for read in self._reads:
            for name, total in read.totals.items():
                energy = total.energy()
                if energy is not None:
                    found[read.meter.name, name] = energy
        return found

    def energies(self, since: Mapping[Key, RailEnergy]) -> dict[Key, RailEnergy]:
        """Joules of each rail since `totals` had the value `since`."""
        return {key: difference(now, since.get(key)) for key, now in self.totals.items()}

    def input_energy(self, since: Mapping[Key, RailEnergy]) -> RailEnergy | None:
        """Joules of the whole input since `totals` had the value `since`, by the meter with the
        least gap; None without one."""
        return input_energy(self.wholes, self.energies(since))

    def lag_us(self, name: str) -> int:
        """Upper bound of the delay after which the joules of a whole (by its name in `wholes`)
        reflect only the current power: a reading is a mean over up to its interval and up to an
        interval old, and readings are up to one and a half intervals apart."""
        meters = {meter for whole in self.wholes if whole.name == name for meter, _ in whole.keys}
        lags = (
            2 * r.meter.interval_us + self._interval_us(r) * 3 // 2
            for r in self._reads
            if r.meter.name in meters
        )
        return max(lags, default=0)

    @property
    def watts(self) -> dict[Key, float | None]:
        """Power of each rail by its last reading (`Total.watts`)."""
        return {
            (read.meter.name, name): total.watts
            for read in self._reads
            for name, total in read.totals.items()
        }

    def problems(self) -> dict[Key, str]:
        """Rails whose last reading failed, with reasons."""
        found = {}
        for read in self._reads:
            for name, total in read.totals.items():
                if total.problem:
                    found[read.meter.name, name] = total.problem
        return found

    def schedules(self) -> list[Schedule]:
        """Schedule of each meter with its cost."""
        found = []
        for read in self._reads:
            interval_us = self._interval_us(read)
            wanted_us, cost_us = read.meter.interval_us, read.cost_us + self._booking_us
            share = cost_us / interval_us
            name = read.meter.name
            found.append(Schedule(name, wanted_us, interval_us, cost_us, share, read.reads))
        return found


def _total(meter: Meter, rail_name: str) -> Total:
    rail = next(rail for rail in meter.rails if rail.name == rail_name)
    counts, step_w = meter.span_us is not None, meter.steps_w.get(rail_name, 0.0)
    return Total(rail, meter.provenance, counts, step_w)
