"""Cost model: mean input power by wait, race and sleep, and the plan with the least.  Sans-IO.

With r units arriving per second, a race that takes `t(n)` for n units, and a period P between
wakes, n = r P and the mean power of the whole input is

    idle + [race(n) + writes + wakes + commits + gated GPU + rest(P − t)] / P + memory traffic
         + uplink

**Period.** The oldest unit of a beat arrives just after the previous ingest and waits for one
period and one race.  So a share s of the tolerance L allows P = s L − commit − t(r P). Buffers
limit the period too (`Work.period_us_max`). A race takes at most half the tolerance.

**Time and joules.** At a set clock both are affine in n.  Where no clock is set, the kernel's
governor chooses clocks by the length of past races; time and joules are then those of schedutil
settled at that period, computed at a few periods and interpolated.

**Sleep.** Between races the kernel enters the idle state that pays.  A sleep on request is planned
where it saves more in an idle period than entering and leaving cost.  A GPU stays powered for its
railgate delay after a race and is woken where the next race comes later.  Where the wake has no
figure, the plan is a lower bound, and the GPU is chosen only if nothing else is in time.

**Uplink.** Results that may wait for an upload window are sent as rarely as the window allows, so
that the radio's fixed joules and tail are shared by several beats.

There are few candidates (shares x devices x clocks), so the search is exhaustive, on arrays.  A
plan is cached until rate, limits or costs change by more than an eighth of an octave.  Prices come
from a `Tariff`: the board's power model, or a calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from governors.operating_points import (
    RaceOption,
    at_hand,
    batched,
    beside_joules,
    devices_us,
    race_options,
    races,
    waits_us,
)
from governors.schedutil import Utilisation
from governors.tariff import Floats, Tariff
from governors.work import Dial, RaceCost, Work

SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.125)
"""Shares of the tolerance that a plan may spend on waiting."""
BUCKETS = 8
"""Rate buckets per octave; a plan is reused within a bucket."""
PLANS_MAX = 256
PLAN_ERROR = 0.1
"""Largest relative error of a plan's watts above idle in simulation, where arrivals are random and
buffers fill unevenly.  A policy may miss the best candidate by as much."""
WAKES = 2
"""Wakes per beat: the first arrival after a race, and the timer."""


@dataclass(frozen=True, slots=True)
class RacePlan:
    """The chosen share, clocks, period and sleeps, with their price."""

    share: float
    option: RaceOption
    period_us: float
    race_us: float
    sleeps: tuple[str, ...]
    upload_us: float
    """Time between two uploads."""
    watts: float
    """Mean power of the whole input; a lower bound where the GPU's wake has no figure."""
    in_time: bool
    priced: bool = True
    """Whether every part has a figure."""


@dataclass(frozen=True, slots=True)
class RaceFit:
    """The choice for the race at hand."""

    option: RaceOption
    share: float
    """Share of the waiting units that the budget covers."""
    in_time: bool
    joules: float
    """Above idle, of that share."""
    units_max: float
    """Most units that the budget covers; the number that really waits is known only after the
    ingest."""


class CostModel:
    """Prices plans and races with one tariff."""

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self._plans: dict[object, RacePlan] = {}
        self._options: dict[object, tuple[RaceOption, ...]] = {}
        self._rate = 0.0

    def plan(
        self,
        work: Work,
        dials: Sequence[Dial],
        write_j: float = 0.0,
        write_us: float = 0.0,
        shares: Sequence[float] = SHARES,
    ) -> RacePlan:
        """The plan with the least mean power, among those in time if any is."""
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

    def options(
        self, work: Work, dials: Sequence[Dial], write_us: float = 0.0
    ) -> tuple[RaceOption, ...]:
        """All race options for this kind of work, the one without set clocks first."""
        rate = self._steady(work.units_per_s)
        key = (
            rate, work.latency_us, _octaves(work.commit_every_us),
            work.period_us_max <= work.commit_every_us, _costs_key(work.costs), tuple(dials),
            round(write_us),
        )  # fmt: skip
        found = self._options.get(key)
        if found is None:
            if len(self._options) >= PLANS_MAX:
                self._options.clear()
            found = self._options[key] = tuple(
                race_options(self.tariff, work, rate, dials, write_us)
            )
        return found

    def options_now(
        self, work: Work, dials: Sequence[Dial], write_us: float, used: Utilisation | None
    ) -> tuple[RaceOption, ...]:
        """The options for the race at hand.  `used`: the kernel governor's utilisation; None: taken
        as settled at races of this kind."""
        options = self.options(work, dials, write_us)
        if used is None or options[0].device != "cpu":
            return options
        return (at_hand(options[0], self.tariff, work, dials, used), *options[1:])

    def fit(
        self,
        options: Sequence[RaceOption],
        work: Work,
        left_us: float,
        room_j: float,
        write_j: float,
    ) -> RaceFit:
        """The choice for the race at hand: the option with the least energy among those that are in
        time and whose upper bound fits into `room_j` above idle.

        Where none in time fits, the option that covers the most units; where none is in time, the
        fastest, as far as the budget covers it.
        """
        units = work.units
        in_time = [w for w in options if w.takes_us(units) <= left_us]
        priced = [w for w in in_time if self._gpu_known(w, work)]
        choice = priced or in_time or [min(options, key=lambda w: w.takes_us(units))]
        fits = [w for w in choice if w.most_joules(units, write_j) + self._gpu_j(w, work) <= room_j]
        if fits:
            best, share = min(fits, key=lambda w: self._race_j(w, work, write_j)), 1.0
        else:
            rooms = {w: room_j - self._gpu_j(w, work) for w in choice}
            best = max(choice, key=lambda w: w.part(units, write_j, rooms[w]))
            share = best.part(units, write_j, rooms[best])
        most = share * units if share < 1.0 else units + self._more(best, work, write_j, room_j)
        return RaceFit(best, share, bool(in_time), best.joules(share * units, write_j), most)

    def commit_fit(
        self, work: Work, dials: Sequence[Dial], write_j: float, write_us: float
    ) -> RaceFit:
        """The choice for a beat that only commits, on the CPU: the option with the least energy,
        that of the work beside the beat included, which runs at its clocks.

        Such beats come every `work.commit_every_us`, which must not be 0.
        """
        cycles = max(cost.commit_cycles for cost in work.costs.values())
        beside = max(cost.beside_cycles for cost in work.costs.values())
        every_us = int(work.commit_every_us)
        alone = replace(
            work, units=work.units_per_s * every_us / 1e6, costs={"cpu": RaceCost(cycles, 0.0)},
            latency_us=every_us,
        )  # fmt: skip

        def joules(w: RaceOption) -> float:
            raced_j = self._race_j(w, alone, write_j)
            return raced_j + beside_joules(self.tariff, dials, beside, w)

        best = min(self.options(alone, dials, write_us), key=joules)
        return self.fit((best,), alone, math.inf, math.inf, write_j)

    def overhead_j(self, work: Work) -> float:
        """Joules above idle of a beat besides its race: wakes, memory traffic, an upload, and the
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
        """Joules above idle of a race of all waiting units besides its cores: the commit with its
        acks, and memory traffic."""
        costs = work.costs.values()
        moved = max(c.bytes_per_unit for c in costs) * work.units * self.tariff.byte_j
        return max(self._beside_j(c) for c in costs) + moved

    def rest_j(self, idle_us: Floats) -> Floats:
        """Joules above idle of idle periods between races; negative where a sleep on request saves
        power."""
        t = self.tariff
        kernel = np.zeros_like(idle_us)
        for state in t.states:
            kernel = np.maximum(kernel, state.saves(idle_us))
        joules = t.awake_watts * np.maximum(0.0, idle_us) / 1e6 - kernel
        for sleep in t.sleeps:
            joules = joules - np.maximum(0.0, sleep.saves(idle_us))
        return joules

    def _more(self, option: RaceOption, work: Work, write_j: float, room_j: float) -> float:
        """Units beyond those that wait that the rest of the budget covers."""
        left_j = room_j - option.most_joules(work.units, write_j) - self._gpu_j(option, work)
        each_j = (
            option.most_j_per_unit + work.costs[option.device].bytes_per_unit * self.tariff.byte_j
        )
        return left_j / each_j if each_j > 0 else math.inf

    def _race_j(self, option: RaceOption, work: Work, write_j: float) -> float:
        return option.joules(work.units, write_j) + self._gpu_j(option, work)

    def _gpu_j(self, option: RaceOption, work: Work) -> float:
        """Joules of the GPU besides the race at hand, at the rate of the arrivals."""
        if option.device != "gpu":
            return 0.0
        busy_us, period_us = np.array(option.device_us(work.units)), np.array(_pace_us(work))
        return float(self.tariff.gating.joules(busy_us, period_us))

    def _gpu_known(self, option: RaceOption, work: Work) -> bool:
        if option.device != "gpu":
            return True
        busy_us, period_us = np.array(option.device_us(work.units)), np.array(_pace_us(work))
        return bool(self.tariff.gating.known(busy_us, period_us))

    def _beside_j(self, cost: RaceCost) -> float:
        """Upper bound of the joules above idle of one core's work after a race: at the lowest
        clock, where a core is awake for longest."""
        return cost.beside_cycles * self.tariff.cycle_j

    def _commit_only_j(self, cost: RaceCost) -> float:
        """Joules above idle of a beat that only commits."""
        cycles = cost.commit_cycles + cost.beside_cycles
        return WAKES * self.tariff.wake_j + cycles * self.tariff.cycle_j

    def _steady(self, units_per_s: float) -> float:
        """The rate that plans are made for: the centre of a bucket, kept until the observed rate
        leaves it by more than a bucket's width (hysteresis)."""
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
        options = self.options(work, dials, write_us)
        period, commits = batched(waits_us(options, work, rate, shares), work)
        race, raced_j = races(options, rate, period, write_j)
        in_time = (period > 0) & (race <= period) & (race <= work.latency_us / 2)
        period = np.where(period > 0, period, np.maximum(race, 1.0))
        busy = devices_us(options, rate, period)
        cycles = [work.costs[w.device].beside_cycles for w in options]
        beside = np.array(
            [beside_joules(self.tariff, dials, c, w) for c, w in zip(cycles, options, strict=True)]
        )
        joules = raced_j + beside + self._fixed_j(options, period, race, busy)
        if work.commit_every_us:
            commit = self.commit_fit(work, dials, write_j, write_us)
            commit_j = WAKES * self.tariff.wake_j + commit.joules
            commit_j += beside_joules(self.tariff, dials, max(cycles), commit.option)
            joules = joules + commits * commit_j
        upload = np.where(
            work.upload_within_us > period, work.upload_within_us // period * period, period
        )
        mean = (
            self.tariff.idle_watts + 1e6 * joules / period + self._steady_watts(options, work, rate)
        )
        if work.upload_bytes_per_s:
            mean = mean + 1e6 * self.tariff.radio.joules / upload
        known = in_time & self._known(options, period, busy)
        usable = known if known.any() else in_time
        if usable.any():
            at = int(np.argmin(np.where(usable, mean, np.inf)))
        else:
            at = int(np.argmin(race))
        i, j = divmod(at, len(options))
        rests_us = float(period[i, j] - race[i, j])
        return RacePlan(
            shares[i], options[j], float(period[i, j]), float(race[i, j]),
            tuple(s.name for s in self.tariff.sleeps if s.saves(np.array(rests_us)) > 0),
            float(upload[i, j]), float(mean[i, j]), bool(in_time[i, j]), bool(known[i, j]),
        )  # fmt: skip

    def _fixed_j(
        self,
        options: Sequence[RaceOption],
        period_us: Floats,
        race_us: Floats,
        busy_us: Floats,
    ) -> Floats:
        """Joules of a period besides its race and the commit: wakes, rest, a GPU that stays
        powered."""
        t = self.tariff
        on_gpu = np.array([w.device == "gpu" for w in options])
        gated = np.where(on_gpu, t.gating.joules(busy_us, period_us), 0.0)
        return (WAKES - 1) * t.wake_j + gated + self.rest_j(period_us - race_us)

    def _known(
        self, options: Sequence[RaceOption], period_us: Floats, busy_us: Floats
    ) -> npt.NDArray[np.bool_]:
        """Where every part of the GPU's energy has a figure."""
        on_gpu = np.array([w.device == "gpu" for w in options])
        return ~on_gpu | self.tariff.gating.known(busy_us, period_us)

    def _steady_watts(self, options: Sequence[RaceOption], work: Work, rate: float) -> Floats:
        """Watts that do not depend on the period: memory traffic and uplink bytes."""
        t = self.tariff
        each = np.array([work.costs[w.device].bytes_per_unit for w in options], np.float64)
        return each * rate * t.byte_j + t.radio.joules_per_byte * work.upload_bytes_per_s


def _pace_us(work: Work) -> float:
    """The time in which the waiting units arrived."""
    return 1e6 * work.units / work.units_per_s if work.units_per_s > 0 else math.inf


def _octaves(x: float) -> float:
    """A cache key: values closer than a sixteenth of an octave share it."""
    return round(BUCKETS * math.log2(1 + x)) if math.isfinite(x) else x


def _costs_key(costs: Mapping[str, RaceCost]) -> tuple[object, ...]:
    return tuple(costs.items())
