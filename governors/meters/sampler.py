"""The sampler: reads each meter when it is due, counts joules, and bounds what that costs.

Nothing polls: whoever owns the loop sleeps until `due_us` and calls `sample`.  Readings must be
made when they are due and not when a beat happens to run: a sensor that is read only in races sees
only races.  For the same reason the times between readings vary, evenly between half an interval
and one and a half (a golden-ratio sequence), so that no rhythm of beats is always met at the same
phase.

Meters that are due within SLACK of their interval are read along, so that one wake serves several.

What a read costs is measured in CPU time of the calling thread, with what the caller books after
it (`booked`).  Where reading a meter at its interval would take more than `share_max` of a core,
its interval is stretched until it does not, and `schedules` says so.  A counter is never stretched
to where it could hide a wrap.  What waking a core costs beside is not in it: readings a second
tell that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from governors.energy import RailEnergy
from governors.meters.base import Meter, Reading, failed
from governors.meters.rails import Key, Whole, input_energy, wholes
from governors.meters.totals import Total, difference

SHARE_MAX = 0.001
"""Of one core."""
BRIDGE_INTERVALS = 3
"""No reading of watts for so many intervals is a gap."""
SLACK = 0.25
COST_WEIGHT = 0.2
"""Of the newest read in the mean of what reads cost."""
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one meter is read."""

    meter: str
    wanted_us: int
    """Its own interval."""
    interval_us: int
    """The mean interval that it is read at; longer than wanted where it costs too much."""
    cost_us: float
    """CPU time of a read and of booking it, on average."""
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
    """Reads `meters`.  One thread."""

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
        """What tells the whole input, the best first."""

    def due_us(self, now_us: int) -> int | None:
        """When to call `sample` next; None where there is nothing to read."""
        return min((now_us if r.due_us is None else r.due_us for r in self._reads), default=None)

    def sample(self, now_us: int, busy_cores: float | None = None) -> list[Reading]:
        """Read what is due.  `busy_cores`: the mean number of cores that were busy since the last
        call, where that is known; without it no sensor is found to be frozen."""
        readings = []
        for read in self._reads:
            slack_us = int(SLACK * self._interval_us(read)) if read.reads else 0
            if read.due_us is None or now_us >= read.due_us - slack_us:
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
            reading = got.get(rail.name) or failed(rail, now_us, "the meter did not answer for it")
            readings.append(reading)
            read.totals[rail.name].take(reading, bridge_us, busy_cores)
        return readings

    def booked(self, us: float) -> None:
        """After `sample`: so much CPU time was taken beside it for what it read."""
        self._bookings += 1
        self._booking_us += max(COST_WEIGHT, 1 / self._bookings) * (us - self._booking_us)

    def _interval_us(self, read: _SampledMeter) -> int:
        return read.interval_us(self._share_max, self._booking_us)

    def close(self) -> None:
        """Release what the meters hold."""
        for read in self._reads:
            read.meter.close()

    @property
    def totals(self) -> dict[Key, RailEnergy]:
        """Each rail's joules since its first reading."""
        found = {}
        for read in self._reads:
            for name, total in read.totals.items():
                energy = total.energy()
                if energy is not None:
                    found[read.meter.name, name] = energy
        return found

    def energies(self, since: Mapping[Key, RailEnergy]) -> dict[Key, RailEnergy]:
        """What each rail took since `totals` were `since`."""
        return {key: difference(now, since.get(key)) for key, now in self.totals.items()}

    def input_energy(self, since: Mapping[Key, RailEnergy]) -> RailEnergy | None:
        """What the whole input took since `totals` were `since`, by the meter with the least gap;
        None where nothing tells it."""
        return input_energy(self.wholes, self.energies(since))

    def lag_us(self, name: str) -> int:
        """After so long, at the latest, the joules of a whole (by its name in `wholes`) are of what
        it draws now and of nothing before: what a sensor says is a mean over up to its interval,
        and up to an interval old, and readings are up to one and a half of theirs apart."""
        meters = {meter for whole in self.wholes if whole.name == name for meter, _ in whole.keys}
        lags = (
            2 * r.meter.interval_us + self._interval_us(r) * 3 // 2
            for r in self._reads
            if r.meter.name in meters
        )
        return max(lags, default=0)

    @property
    def watts(self) -> dict[Key, float | None]:
        """What each rail draws as far as the last reading tells (`Total.watts`)."""
        return {
            (read.meter.name, name): total.watts
            for read in self._reads
            for name, total in read.totals.items()
        }

    def problems(self) -> dict[Key, str]:
        """Rails that do not tell anything now, and why."""
        found = {}
        for read in self._reads:
            for name, total in read.totals.items():
                if total.problem:
                    found[read.meter.name, name] = total.problem
        return found

    def schedules(self) -> list[Schedule]:
        """How each meter is read, and what that costs."""
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
