"""One cost model over the whole input: how long to wait, where, how fast, how deep.  Sans-IO.

With r units arriving a second, a way to race (a device and its clocks) that takes `t = a + b n` for
n units, and a period P from wake to wake, n = r P and the mean power of the whole input is

    idle + [(race − idle) t + wake + writes] / P − what the sleeps save + memory traffic + uplink

The oldest unit of a beat arrives just after the ingest before it and waits for a period and a
race, so that a share s of the tolerance L allows P = (s L − commit − a) / (1 + b r).  A race is
kept under half the tolerance.

A sleep that must be asked for is entered where what it saves in an idle time exceeds what entering
and leaving it costs.  Results that may wait for an upload window are sent every k-th beat, as
seldom as the window allows: the radio's fixed joules and tail are then paid once in k P.

The candidates are few (a handful of shares x devices x clocks), so all are tried, on arrays; the
answer is kept until rate, limits or costs change by more than an eighth of an octave.  What races
cost comes from a `Tariff`, which is the board's power model or what a calibration measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from governors.schedutil import Schedutil, Utilisation

if TYPE_CHECKING:
    from governors.policies.base import Cost, Dial, Work

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.125)
"""Of the tolerance, that a plan may spend."""
BUCKETS = 8
"""Per octave of the rate: within one, a plan stays."""
PLANS_MAX = 256
SETTLE = 4
"""Periods after which the kernel's governor is taken to have settled."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A sleep that must be asked for, as it was measured."""

    name: str
    watts: float
    """Saved while it lasts."""
    us: float
    """To enter and to leave."""
    joules: float
    """To enter and to leave."""

    def saves(self, idle_us: float) -> float:
        """Joules saved in an idle time; negative where it does not pay."""
        return self.watts * max(0.0, idle_us - self.us) / 1e6 - self.joules


@dataclass(frozen=True, slots=True)
class Radio:
    """What the uplink costs."""

    joules: float
    """Per upload: connecting, and the tail after the last byte."""
    joules_per_byte: float


class Tariff(Protocol):
    """What a board charges, whole input."""

    idle_watts: float
    wake_j: float
    """For one wakeup."""
    byte_j: float
    """For a byte of memory traffic."""
    cycle_j: float
    """Above idle, for a cycle of one core beside the wait, at the clock of an idle board."""
    sleeps: tuple[Sleep, ...]
    radio: Radio

    def race_watts(self, device: str, hz: int, cores: float, memory_hz: int | None = None) -> float:
        """While `cores` of it are busy at a clock, without memory traffic; `memory_hz`: where the
        memory clock is capped."""

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """What idle cores save at the lower of two maxima; none where they are clock-gated."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to race, for one kind of work."""

    device: str
    hz: int
    """Of the device; of a race that is left alone, the mean."""
    clocks: tuple[tuple[str, int], ...]
    """What must be set for it; nothing: leave it alone."""
    watts: float
    us: float
    us_per_unit: float
    most_j: float
    most_j_per_unit: float
    """Above idle, of a race at the least favourable clock that it may meet: where it is left alone,
    any within the limits."""

    def takes_us(self, units: float) -> float:
        """How long a race of `units` takes."""
        return self.us + self.us_per_unit * units

    def joules(self, units: float, idle_watts: float, write_j: float) -> float:
        """Above idle, with the writes where there are any."""
        more = (self.watts - idle_watts) * self.takes_us(units) / 1e6
        return more + (write_j if self.clocks else 0.0)

    def most_joules(self, units: float, write_j: float) -> float:
        """Above idle at most, with the writes where there are any."""
        return self.most_j + self.most_j_per_unit * units + (write_j if self.clocks else 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to go on, and what it would take."""

    share: float
    way: Way
    period_us: float
    race_us: float
    sleeps: tuple[str, ...]
    upload_beats: int
    """An upload every so many beats."""
    watts: float
    """Mean of the whole input."""
    in_time: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """How to run the race at hand."""

    way: Way
    share: float
    """Of the units, what fits."""
    in_time: bool
    joules: float
    """Above idle, of that share."""


class CostModel:
    """Prices plans and races with one tariff."""

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self._plans: dict[object, Plan] = {}
        self._ways: dict[object, tuple[Way, ...]] = {}
        self._rate = 0.0

    def plan(
        self,
        work: Work,
        dials: Sequence[Dial],
        write_j: float = 0.0,
        write_us: float = 0.0,
        shares: Sequence[float] = SHARES,
    ) -> Plan:
        """The plan with the least mean power, of those that are in time where there are any."""
        rate = self._steady(work.units_per_s)
        upload = round(math.log2(1 + work.upload_bytes_per_s))
        key = (
            rate, upload, work.latency_us, work.upload_within_us, round(work.commit_us, -3),
            _costs_key(work.costs), tuple(dials), round(1e6 * write_j), tuple(shares),
        )  # fmt: skip
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            found = self._plans[key] = self._search(work, rate, dials, write_j, write_us, shares)
        return found

    def ways(self, work: Work, dials: Sequence[Dial], write_us: float = 0.0) -> tuple[Way, ...]:
        """All ways to race this kind of work, leaving it alone first."""
        rate = self._steady(work.units_per_s)
        key = (rate, work.latency_us, _costs_key(work.costs), tuple(dials), round(write_us))
        found = self._ways.get(key)
        if found is None:
            if len(self._ways) >= PLANS_MAX:
                self._ways.clear()
            found = self._ways[key] = tuple(self._all(work, rate, dials, write_us))
        return found

    def fit(
        self, ways: Sequence[Way], units: float, left_us: float, room_j: float, write_j: float
    ) -> Fit:
        """The race at hand: the way with the least energy among those that are in time and that
        `room_j` above idle is enough for at most.

        Where it is enough for none of those in time, the one that gets most units done of them;
        where none is in time, the fastest, as far as the room goes.
        """
        idle = self.tariff.idle_watts
        in_time = [w for w in ways if w.takes_us(units) <= left_us]
        choice = in_time or [min(ways, key=lambda w: w.takes_us(units))]
        fits = [w for w in choice if w.most_joules(units, write_j) <= room_j]
        if fits:
            best, share = min(fits, key=lambda w: w.joules(units, idle, write_j)), 1.0
        else:
            best = max(choice, key=lambda w: _part(w, units, write_j, room_j))
            share = _part(best, units, write_j, room_j)
        return Fit(best, share, bool(in_time), best.joules(share * units, idle, write_j))

    def overhead_j(self, work: Work) -> float:
        """What a beat takes above idle beside its race: the wake, memory traffic, an upload."""
        t = self.tariff
        beside = max(self._beside_j(c) for c in work.costs.values())
        moved = max(c.bytes_per_unit for c in work.costs.values()) * work.units * t.byte_j
        sent_j = t.radio.joules + t.radio.joules_per_byte * work.upload_bytes_per_s * (
            max(work.latency_us, work.upload_within_us) / 1e6
        )
        return t.wake_j + beside + moved + (sent_j if work.upload_bytes_per_s else 0.0)

    def _beside_j(self, cost: Cost) -> float:
        """Above idle, of the work of one core beside the wait."""
        return cost.beside_cycles * self.tariff.cycle_j

    def _steady(self, units_per_s: float) -> float:
        """The rate that plans are made for: it follows a bucket's width behind the observed one."""
        if units_per_s <= 0:
            return 0.0
        bucket = BUCKETS * math.log2(units_per_s)
        if abs(bucket - self._rate) > 1.0:
            self._rate = float(round(bucket))
        return float(2.0 ** (self._rate / BUCKETS))

    def _search(
        self, work: Work, rate: float, dials: Sequence[Dial], write_j: float, write_us: float,
        shares: Sequence[float],
    ) -> Plan:  # fmt: skip
        ways, t = self.ways(work, dials, write_us), self.tariff
        a = np.array([w.us for w in ways])
        b = np.array([w.us_per_unit for w in ways]) * rate / 1e6
        watts = np.array([w.watts for w in ways])
        fixed_j = np.array([write_j if w.clocks else 0.0 for w in ways]) + t.wake_j
        fixed_j += np.array([self._beside_j(work.costs[w.device]) for w in ways])
        byte_w = t.byte_j * rate * np.array([work.costs[w.device].bytes_per_unit for w in ways])
        share = np.array(shares)[:, None]
        period = (share * work.latency_us - work.commit_us - a) / (1 + b)
        race = a + b * period
        in_time = (period > 0) & (race <= period) & (race <= work.latency_us / 2)
        period = np.where(period > 0, period, np.maximum(race, 1.0))
        joules = (watts - t.idle_watts) * race / 1e6 + fixed_j
        beats = np.maximum(1, work.upload_within_us // period) if work.upload_within_us else 1.0
        if work.upload_bytes_per_s:
            joules = joules + t.radio.joules / beats
        idle_us = period - race
        for sleep in t.sleeps:
            joules = joules - np.maximum(
                0.0, sleep.watts * np.maximum(0.0, idle_us - sleep.us) / 1e6 - sleep.joules
            )
        mean = t.idle_watts + 1e6 * joules / period + byte_w
        mean = mean + t.radio.joules_per_byte * work.upload_bytes_per_s
        if in_time.any():
            at = int(np.argmin(np.where(in_time, mean, np.inf)))
        else:
            at = int(np.argmin(np.broadcast_to(race, mean.shape)))
        i, j = divmod(at, len(ways))
        rests = float(idle_us[i, j])
        return Plan(
            shares[i], ways[j], float(period[i, j]), float(race[i, j]),
            tuple(s.name for s in t.sleeps if s.saves(rests) > 0),
            int(np.broadcast_to(beats, mean.shape)[i, j]), float(mean[i, j]), bool(in_time[i, j]),
        )  # fmt: skip

    def _all(self, work: Work, rate: float, dials: Sequence[Dial], write_us: float) -> list[Way]:
        found = []
        memory = next((d for d in dials if d.kind == "memory"), None)
        caps = [
            None,
            *(() if memory is None else ((memory, hz) for hz in memory.choices_hz()[:-1])),
        ]
        for device, cost in work.costs.items():
            mine = [d for d in dials if d.kind == device]
            if device == "cpu":
                found.append(self._left_alone(work, cost, rate, mine))
            for hz in _clocks(mine):
                set_to = tuple((d.name, c) for d in mine if (c := d.nearest(hz)) is not None)
                for cap in caps:
                    slow, also, memory_hz = _capped(cost, cap)
                    watts = self.tariff.race_watts(device, hz, cost.cores, memory_hz)
                    most = self._most(device, slow, (hz,), write_us, memory_hz)
                    way = _way(device, hz, set_to + also, watts, slow, write_us, most)
                    found.append(way)
        return found

    def _left_alone(self, work: Work, cost: Cost, rate: float, dials: Sequence[Dial]) -> Way:
        """A race under the kernel's governor, settled at the longest period."""
        choices, capacity = _within(dials)
        kernel, u = Schedutil(choices, capacity), Utilisation()
        units = max(1.0, rate * work.latency_us / 1e6)
        cycles = cost.cycles + cost.cycles_per_unit * units
        stall_us = cost.stall_us + cost.stall_us_per_unit * units
        for _ in range(SETTLE):
            pieces = kernel.race(cycles, stall_us, u)
            us = sum(p[1] for p in pieces)
            u.sleep(max(0.0, work.latency_us - us))
        joules = sum(self.tariff.race_watts("cpu", hz, cost.cores) * us for hz, us in pieces)
        hz = round(sum(hz * us for hz, us in pieces) / us)
        return _way("cpu", hz, (), joules / us, cost, 0.0, self._most("cpu", cost, choices, 0.0))

    def _most(
        self, device: str, cost: Cost, choices: Sequence[int], write_us: float,
        memory_hz: int | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Joules above idle of a race and of each unit, at the worst of some clocks for each."""
        fixed, each = 0.0, 0.0
        for hz in choices:
            watts = self.tariff.race_watts(device, hz, cost.cores, memory_hz)
            above = watts - self.tariff.idle_watts
            us = cost.us(0, hz) + write_us
            fixed = max(fixed, above * us / 1e6)
            each = max(each, above * (cost.us(1, hz) + write_us - us) / 1e6)
        return fixed, each


def _way(
    device: str, hz: int, clocks: tuple[tuple[str, int], ...], watts: float, cost: Cost,
    write_us: float, most: tuple[float, float],
) -> Way:  # fmt: skip
    each = 1e6 * cost.cycles_per_unit / hz + cost.stall_us_per_unit
    return Way(device, hz, clocks, watts, cost.us(0, hz) + write_us, each, *most)


def _capped(
    cost: Cost, cap: tuple[Dial, int] | None
) -> tuple[Cost, tuple[tuple[str, int], ...], int | None]:
    """The work with a capped memory clock, what must be set for it, and the clock.

    All waiting is taken to stretch as the clock falls, which is the most that it can.
    """
    if cap is None:
        return cost, (), None
    dial, hz = cap
    k = dial.max_hz / hz
    slow = replace(cost, stall_us=cost.stall_us * k, stall_us_per_unit=cost.stall_us_per_unit * k)
    return slow, ((dial.name, hz),), hz


def _clocks(dials: Sequence[Dial]) -> tuple[int, ...]:
    """Clocks worth trying for dials of one kind that are set together: those of the first, as far
    as all may be set."""
    if not dials or not all(d.choices_hz() for d in dials):
        return ()
    return max(dials, key=lambda d: len(d.choices_hz())).choices_hz()


def _within(dials: Sequence[Dial]) -> tuple[tuple[int, ...], int]:
    """Clocks that the kernel may use, writable or not, and the highest of the hardware; where no
    clock is known, 1 GHz stands for all of them."""
    if not dials:
        return (10**9,), 10**9
    d = dials[0]
    steps = [round(d.min_hz * (d.max_hz / d.min_hz) ** (i / 16)) for i in range(17)]
    table = d.table_hz or tuple(dict.fromkeys(steps))
    inside = tuple(hz for hz in table if d.min_hz <= hz <= d.max_hz) or (d.max_hz,)
    return inside, max(table[-1], inside[-1])


def _part(way: Way, units: float, write_j: float, room_j: float) -> float:
    """The share of the units that `room_j` is enough for in any case."""
    fixed = way.most_joules(0, write_j)
    each = way.most_j_per_unit * units
    if room_j < fixed:
        return 0.0
    return min(1.0, (room_j - fixed) / each) if each > 0 else 1.0


def _costs_key(costs: Mapping[str, Cost]) -> tuple[object, ...]:
    return tuple(costs.items())
