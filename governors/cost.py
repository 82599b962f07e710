"""One cost model over the whole input: how long to wait, where, how fast, how deep.  Sans-IO.

With r units arriving a second, a way to race (a device and its clocks) that takes `t(n)` for n
units, and a period P from wake to wake, n = r P and the mean power of the whole input is

    idle + [race(n) + writes + wakes + commits + gated GPU + rest(P − t)] / P + memory traffic
         + uplink

The oldest unit of a beat arrives just after the ingest before it and waits for a period and a
race, so that a share s of the tolerance L allows P = s L − commit − t(r P), and a beat may be no
longer than buffers allow (`Work.period_us_max`).  A race is kept under half the tolerance.

At a clock that is set t is affine in n, and so are the joules.  A race that is left alone meets the
clocks that the kernel's governor chooses, which depend on how long the last races were: time and
joules are those of schedutil settled at that period, at a few periods, interpolated between them.

Between races the kernel enters the idle state that pays; a sleep that must be asked for is entered
where what it saves in an idle time exceeds what entering and leaving it costs.  A GPU stays powered
for its railgate delay after a race, and is woken where the next one comes later; where no figure is
known for the wake the plan is a lower bound, and the GPU is taken only where nothing else is in
time.  Results that may wait for an upload window are sent as seldom as the window allows: the
radio's fixed joules and tail are then paid once in so many beats.

The candidates are few (a handful of shares x devices x clocks), so all are tried, on arrays; the
answer is kept until rate, limits or costs change by more than an eighth of an octave.  What races
cost comes from a `Tariff`, which is the board's power model or what a calibration measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from governors.operating_points import (
    Floats,
    RaceOption,
    at_hand,
    batched,
    devices_us,
    races,
    waits_us,
    ways_of,
)
from governors.schedutil import Utilisation
from governors.tariff import Tariff
from governors.work import Dial, RaceCost, Work

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.125)
"""Of the tolerance, that a plan may spend."""
BUCKETS = 8
"""Per octave of the rate: within one, a plan stays."""
PLANS_MAX = 256
PLAN_ERROR = 0.1
"""A plan's watts above idle are off by no more than this part in simulation, where arrivals are
random and buffers do not fill up evenly; so a policy may miss the best way by as much."""
WAKES = 2
"""A beat: by the first arrival after a race, and by the timer."""


@dataclass(frozen=True, slots=True)
class RacePlan:
    """How to go on, and what it would take."""

    share: float
    way: RaceOption
    period_us: float
    race_us: float
    sleeps: tuple[str, ...]
    upload_us: float
    """From one upload to the next."""
    watts: float
    """Mean of the whole input; at least, where the GPU's wake is not known."""
    in_time: bool
    priced: bool = True
    """Whether all of it has a figure."""


@dataclass(frozen=True, slots=True)
class RaceFit:
    """How to run the race at hand."""

    way: RaceOption
    share: float
    """Of the units, what fits."""
    in_time: bool
    joules: float
    """Above idle, of that share."""
    units_max: float
    """What the room is enough for at most: how many wait is known when they are taken in."""


class CostModel:
    """Prices plans and races with one tariff."""

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self._plans: dict[object, RacePlan] = {}
        self._ways: dict[object, tuple[RaceOption, ...]] = {}
        self._rate = 0.0

    def plan(
        self,
        work: Work,
        dials: Sequence[Dial],
        write_j: float = 0.0,
        write_us: float = 0.0,
        shares: Sequence[float] = SHARES,
    ) -> RacePlan:
        """The plan with the least mean power, of those that are in time where there are any."""
        rate = self._steady(work.units_per_s)
        key = (
            rate, _octaves(work.upload_bytes_per_s), work.latency_us, work.upload_within_us,
            round(work.commit_us, -3), _octaves(work.period_us_max), _octaves(work.commit_every_us),
            _costs_key(work.costs), tuple(dials), round(1e6 * write_j), tuple(shares),
            self.tariff.sleeps,
        )  # fmt: skip
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            found = self._plans[key] = self._search(work, rate, dials, write_j, write_us, shares)
        return found

    def ways(
        self, work: Work, dials: Sequence[Dial], write_us: float = 0.0
    ) -> tuple[RaceOption, ...]:
        """All ways to race this kind of work, leaving it alone first."""
        rate = self._steady(work.units_per_s)
        key = (
            rate, work.latency_us, _octaves(work.commit_every_us),
            work.period_us_max <= work.commit_every_us, _costs_key(work.costs), tuple(dials),
            round(write_us),
        )  # fmt: skip
        found = self._ways.get(key)
        if found is None:
            if len(self._ways) >= PLANS_MAX:
                self._ways.clear()
            found = self._ways[key] = tuple(ways_of(self.tariff, work, rate, dials, write_us))
        return found

    def ways_now(
        self, work: Work, dials: Sequence[Dial], write_us: float, used: Utilisation | None
    ) -> tuple[RaceOption, ...]:
        """The ways for the race at hand; `used`: what the kernel's governor remembers, where that
        is known, else it has settled at races like this one."""
        ways = self.ways(work, dials, write_us)
        if used is None or ways[0].device != "cpu":
            return ways
        return (at_hand(ways[0], self.tariff, work, dials, used), *ways[1:])

    def fit(
        self, ways: Sequence[RaceOption], work: Work, left_us: float, room_j: float, write_j: float
    ) -> RaceFit:
        """The race at hand: the way with the least energy among those that are in time and that
        `room_j` above idle is enough for at most.

        Where it is enough for none of those in time, the one that gets most units done of them;
        where none is in time, the fastest, as far as the room goes.
        """
        units = work.units
        in_time = [w for w in ways if w.takes_us(units) <= left_us]
        priced = [w for w in in_time if self._gpu_known(w, work)]
        choice = priced or in_time or [min(ways, key=lambda w: w.takes_us(units))]
        fits = [w for w in choice if w.most_joules(units, write_j) + self._gpu_j(w, work) <= room_j]
        if fits:
            best, share = min(fits, key=lambda w: self._race_j(w, work, write_j)), 1.0
        else:
            rooms = {w: room_j - self._gpu_j(w, work) for w in choice}
            best = max(choice, key=lambda w: w.part(units, write_j, rooms[w]))
            share = best.part(units, write_j, rooms[best])
        most = share * units if share < 1.0 else units + self._more(best, work, write_j, room_j)
        return RaceFit(best, share, bool(in_time), best.joules(share * units, write_j), most)

    def overhead_j(self, work: Work) -> float:
        """What a beat takes above idle beside its race: wakes, memory traffic, an upload, and the
        beats that only commit until the next race."""
        t = self.tariff
        commits_j = 0.0
        if work.commit_every_us:
            longest = np.array([[float(work.latency_us)]])
            commits_j = float(batched(longest, work)[1].max()) * max(
                self._commit_only_j(c) for c in work.costs.values()
            )
        sent_j = t.radio.joules + t.radio.joules_per_byte * work.upload_bytes_per_s * (
            max(work.latency_us, work.upload_within_us) / 1e6
        )
        sent_j = sent_j if work.upload_bytes_per_s else 0.0
        return WAKES * t.wake_j + self.beside_j(work) + sent_j + commits_j

    def beside_j(self, work: Work) -> float:
        """What the race of all that waits takes above idle beside the cores that run it: the commit
        and its acks, and memory traffic."""
        costs = work.costs.values()
        moved = max(c.bytes_per_unit for c in costs) * work.units * self.tariff.byte_j
        return max(self._beside_j(c) for c in costs) + moved

    def rest_j(self, idle_us: Floats) -> Floats:
        """Above idle, of idle times between two races: negative where a sleep was asked for."""
        t = self.tariff
        kernel = np.zeros_like(idle_us)
        for state in t.states:
            kernel = np.maximum(kernel, state.saves(idle_us))
        joules = t.awake_watts * np.maximum(0.0, idle_us) / 1e6 - kernel
        for sleep in t.sleeps:
            joules = joules - np.maximum(0.0, sleep.saves(idle_us))
        return joules

    def _more(self, way: RaceOption, work: Work, write_j: float, room_j: float) -> float:
        """Units beside those that wait, for what they leave of the room."""
        left_j = room_j - way.most_joules(work.units, write_j) - self._gpu_j(way, work)
        each_j = way.most_j_per_unit + work.costs[way.device].bytes_per_unit * self.tariff.byte_j
        return left_j / each_j if each_j > 0 else math.inf

    def _race_j(self, way: RaceOption, work: Work, write_j: float) -> float:
        return way.joules(work.units, write_j) + self._gpu_j(way, work)

    def _gpu_j(self, way: RaceOption, work: Work) -> float:
        """What a GPU takes beside the race at hand, by the pace of the arrivals."""
        if way.device != "gpu":
            return 0.0
        busy_us, period_us = np.array(way.device_us(work.units)), np.array(_pace_us(work))
        return float(self.tariff.gating.joules(busy_us, period_us))

    def _gpu_known(self, way: RaceOption, work: Work) -> bool:
        if way.device != "gpu":
            return True
        busy_us, period_us = np.array(way.device_us(work.units)), np.array(_pace_us(work))
        return bool(self.tariff.gating.known(busy_us, period_us))

    def _beside_j(self, cost: RaceCost) -> float:
        """Above idle, of the work of one core beside the wait."""
        return cost.beside_cycles * self.tariff.cycle_j

    def _commit_only_j(self, cost: RaceCost) -> float:
        """Above idle, of a beat that only commits."""
        cycles = cost.commit_cycles + cost.beside_cycles
        return WAKES * self.tariff.wake_j + cycles * self.tariff.cycle_j

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
    ) -> RacePlan:  # fmt: skip
        ways = self.ways(work, dials, write_us)
        period, commits = batched(waits_us(ways, work, rate, shares), work)
        race, raced_j = races(ways, rate, period, write_j)
        in_time = (period > 0) & (race <= period) & (race <= work.latency_us / 2)
        period = np.where(period > 0, period, np.maximum(race, 1.0))
        busy = devices_us(ways, rate, period)
        joules = raced_j + self._fixed_j(ways, work, period, race, busy)
        commit_j = np.array([self._commit_only_j(work.costs[w.device]) for w in ways])
        joules = joules + commits * commit_j
        upload = np.where(
            work.upload_within_us > period, work.upload_within_us // period * period, period
        )
        mean = self.tariff.idle_watts + 1e6 * joules / period + self._steady_watts(ways, work, rate)
        if work.upload_bytes_per_s:
            mean = mean + 1e6 * self.tariff.radio.joules / upload
        known = in_time & self._known(ways, period, busy)
        usable = known if known.any() else in_time
        if usable.any():
            at = int(np.argmin(np.where(usable, mean, np.inf)))
        else:
            at = int(np.argmin(race))
        i, j = divmod(at, len(ways))
        rests_us = float(period[i, j] - race[i, j])
        return RacePlan(
            shares[i], ways[j], float(period[i, j]), float(race[i, j]),
            tuple(s.name for s in self.tariff.sleeps if s.saves(np.array(rests_us)) > 0),
            float(upload[i, j]), float(mean[i, j]), bool(in_time[i, j]), bool(known[i, j]),
        )  # fmt: skip

    def _fixed_j(
        self,
        ways: Sequence[RaceOption],
        work: Work,
        period_us: Floats,
        race_us: Floats,
        busy_us: Floats,
    ) -> Floats:
        """Of a period beside its race: wakes, the commit, rest, a GPU that stays powered."""
        t = self.tariff
        beside = np.array([self._beside_j(work.costs[w.device]) for w in ways])
        on_gpu = np.array([w.device == "gpu" for w in ways])
        gated = np.where(on_gpu, t.gating.joules(busy_us, period_us), 0.0)
        return (WAKES - 1) * t.wake_j + beside + gated + self.rest_j(period_us - race_us)

    def _known(
        self, ways: Sequence[RaceOption], period_us: Floats, busy_us: Floats
    ) -> npt.NDArray[np.bool_]:
        """Where all that the GPU takes has a figure."""
        on_gpu = np.array([w.device == "gpu" for w in ways])
        return ~on_gpu | self.tariff.gating.known(busy_us, period_us)

    def _steady_watts(self, ways: Sequence[RaceOption], work: Work, rate: float) -> Floats:
        """What does not depend on the period: memory traffic, and each byte of the uplink."""
        t = self.tariff
        each = np.array([work.costs[w.device].bytes_per_unit for w in ways], np.float64)
        return each * rate * t.byte_j + t.radio.joules_per_byte * work.upload_bytes_per_s


def _pace_us(work: Work) -> float:
    """The period at which what waits has arrived."""
    return 1e6 * work.units / work.units_per_s if work.units_per_s > 0 else math.inf


def _octaves(x: float) -> float:
    """So that what differs by less than a sixteenth of an octave is one key."""
    return round(BUCKETS * math.log2(1 + x)) if math.isfinite(x) else x


def _costs_key(costs: Mapping[str, RaceCost]) -> tuple[object, ...]:
    return tuple(costs.items())
