"""Race options: a device and its clocks, with time and energy of a race.  Sans-IO.

At a set clock, time and joules are affine in the units.  Where no clock is set, a race meets the
clocks that the kernel's governor chooses (`governors.schedutil`), which depend on the length and
spacing of past races.  A beat of n units at r units per second comes every n / r, so its time and
joules are those of the governor settled at that period.  They are computed at PERIODS of the
tolerance and interpolated.

A race on a GPU has a CPU part before and after it, without a set clock as above, and the GPU part
between: the GPU is busy, and one core waits for it at the clock that the CPU has reached.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from governors.schedutil import Schedutil, Utilisation
from governors.tariff import Floats, Tariff
from governors.work import Dial, RaceCost, Work

PERIODS = (0.04, 0.1, 0.25, 0.5, 1.0)
"""Shares of the tolerance at which a race without a set clock is computed."""
SETTLE = 6
"""Periods after which the kernel's governor is taken as settled."""
SPINS = 0.5
"""Busy share of the waiting core from which on the kernel's governor counts it as load."""

Points = tuple[tuple[float, float, float], ...]
"""(units, µs of their race, joules above idle), ascending."""


@dataclass(frozen=True, slots=True)
class RaceOption:
    """One device and its clocks for one kind of work."""

    device: str
    hz: int
    """Clock of the device; without a set clock, the mean at the longest period."""
    clocks: tuple[tuple[str, int], ...]
    """Dials to set, with their clocks; empty: no clock is set."""
    above_watts: float
    """Watts above idle; without a set clock, the mean at the longest period."""
    us: float
    us_per_unit: float
    most_j: float
    most_j_per_unit: float
    """Upper bound above idle, at the worst clock that the race can meet; without a set clock, any
    clock within the limits."""
    points: Points = ()
    """Where the CPU's clock is not set; time and joules are then not affine."""
    cpu_writes: float = 1.0
    """Share of the cost of writing all CPU clocks that this option pays."""
    more_writes_j: float = 0.0
    """Joules of writing other clocks, as far as they have a figure."""

    def takes_us(self, units: float) -> float:
        """Duration of a race of `units`."""
        return _on(self.points, 1, units) if self.points else self.us + self.us_per_unit * units

    def device_us(self, units: float) -> float:
        """Time in which the option's device works; for a GPU without the CPU parts."""
        return self.takes_us(units) if self.device == "cpu" else self.us + self.us_per_unit * units

    def joules(self, units: float, write_j: float) -> float:
        """Joules above idle, with writes if it sets a clock."""
        if self.points:
            return _on(self.points, 2, units) + self._writes(write_j)
        return self.above_watts * self.takes_us(units) / 1e6 + self._writes(write_j)

    def most_joules(self, units: float, write_j: float) -> float:
        """Upper bound of the joules above idle, with writes if it sets a clock."""
        return self.most_j + self.most_j_per_unit * units + self._writes(write_j)

    def part(self, units: float, write_j: float, room_j: float) -> float:
        """Share of the units that `room_j` covers at the upper bound."""
        fixed, each = self.most_joules(0, write_j), self.most_j_per_unit * units
        if room_j < fixed:
            return 0.0
        return min(1.0, (room_j - fixed) / each) if each > 0 else 1.0

    def _writes(self, write_j: float) -> float:
        """Joules of setting its clocks; `write_j`: of setting all CPU clocks."""
        return self.cpu_writes * write_j + self.more_writes_j if self.clocks else 0.0


@dataclass(frozen=True, slots=True)
class GpuWait:
    """The GPU part of a race as the CPU's governor sees it."""

    us: float
    cores: float
    """Busy cores while waiting: 1 where the driver spins, 0 where it sleeps."""

    def wait(self, kernel: Schedutil, hz: int, u: Utilisation) -> None:
        """Let it pass at an unchanged CPU clock."""
        if self.cores >= SPINS:
            kernel.held(hz, self.us, u)
        else:
            u.sleep(self.us)


def race_options(
    tariff: Tariff, work: Work, rate: float, dials: Sequence[Dial], write_us: float
) -> list[RaceOption]:
    """All race options for `work` at `rate` units per second; per device, the option without set
    clocks comes first."""
    found = []
    cpus = [d for d in dials if d.kind == "cpu"]
    one_w = tariff.race_watts("cpu", clocks_within(cpus)[0][0], 1.0) - tariff.idle_watts
    memory = next((d for d in dials if d.kind == "memory"), None)
    caps = [None, *(() if memory is None else ((memory, hz) for hz in memory.choices_hz()[:-1]))]
    for device, cost in work.costs.items():
        mine = [d for d in dials if d.kind == device]
        beside = partial(_beside_host, tariff, work, rate, cpus)
        if device == "cpu":
            found.append(_left_alone(tariff, work, rate, mine))
        else:
            found.append(beside(cost, _unset(tariff, device, cost, mine), None))
        for hz in _clocks(mine):
            set_to = tuple((d.name, c) for d in mine if (c := d.nearest(hz)) is not None)
            for cap in caps:
                slow, also, memory_hz = _capped(cost, cap)
                above = tariff.race_watts(device, hz, cost.cores, memory_hz) - tariff.idle_watts
                cpu_part, more_us = _writing(mine, cap)
                set_us = cpu_part * write_us + more_us
                most = _most(tariff, device, slow, (hz,), set_us, memory_hz)
                fixed, each = slow.us(0, hz) + set_us, slow.us(1, hz) - slow.us(0, hz)
                option = RaceOption(
                    device, hz, set_to + also, above, fixed, each, *most, cpu_writes=cpu_part,
                    more_writes_j=one_w * more_us / 1e6,
                )  # fmt: skip
                found.append(beside(slow, option, memory_hz))
    return found


def waits_us(
    options: Sequence[RaceOption], work: Work, rate: float, shares: Sequence[float]
) -> Floats:
    """Longest periods (µs) at shares x options for which the race ends in time."""
    a = np.array([w.us for w in options])
    b = np.array([w.us_per_unit for w in options]) * rate / 1e6
    room_us = np.array(shares)[:, None] * work.latency_us - work.commit_us
    waits: Floats = (room_us - a) / (1 + b)
    for j, option in enumerate(options):
        if option.points:
            waits[:, j] = [_settle(option, rate, float(room)) for room in room_us[:, 0]]
    return waits


def _settle(option: RaceOption, rate: float, room_us: float) -> float:
    """The longest period that leaves time for the race of the units that arrive in it."""
    low, high = 0.0, room_us
    if option.takes_us(0.0) > room_us:
        return room_us - option.takes_us(0.0)
    for _ in range(14):
        middle = (low + high) / 2
        if middle + option.takes_us(rate * middle / 1e6) <= room_us:
            low = middle
        else:
            high = middle
    return low


def batched(waits: Floats, work: Work) -> tuple[Floats, Floats]:
    """Time between races and commits between them, as the batcher (`edged.beat.batcher`) produces
    them from `waits`. It commits without a race while more than a quarter of the tolerance is left,
    and races at once when buffers fill up."""
    commits = np.array([[_commits(float(w), work) for w in row] for row in waits])
    period = np.minimum(waits, (commits + 1) * work.period_us_max)
    if work.commit_every_us:
        period = np.minimum(period, (commits + 1) * work.commit_every_us)
    return period, commits


def _commits(wait_us: float, work: Work) -> int:
    """Number of commits without a race in a wait."""
    ack_us = work.commit_every_us
    if not ack_us or work.period_us_max <= ack_us:
        return 0
    return max(0, math.ceil((wait_us - work.latency_us / 4) / ack_us) - 1)


def races(
    options: Sequence[RaceOption], rate: float, period_us: Floats, write_j: float
) -> tuple[Floats, Floats]:
    """Times of races, and their joules above idle with writes."""
    units = rate * np.maximum(0.0, period_us) / 1e6
    us, joules = np.empty_like(units), np.empty_like(units)
    for j, option in enumerate(options):
        us[:, j] = [option.takes_us(n) for n in units[:, j]]
        joules[:, j] = [option.joules(n, write_j) for n in units[:, j]]
    return us, joules


def devices_us(options: Sequence[RaceOption], rate: float, period_us: Floats) -> Floats:
    """Time in which each race's device works."""
    units = rate * np.maximum(0.0, period_us) / 1e6
    us = np.empty_like(units)
    for j, option in enumerate(options):
        us[:, j] = [option.device_us(n) for n in units[:, j]]
    return us


def _unset(tariff: Tariff, device: str, cost: RaceCost, dials: Sequence[Dial]) -> RaceOption:
    """A race on a GPU without a set clock: at its highest, which its governor chooses for any load
    that fills it."""
    hz = dials[0].max_hz if dials else 10**9
    above = tariff.race_watts(device, hz, cost.cores) - tariff.idle_watts
    fixed, each = cost.us(0, hz), cost.us(1, hz) - cost.us(0, hz)
    return RaceOption(device, hz, (), above, fixed, each, *_most(tariff, device, cost, (hz,), 0.0))


def _left_alone(tariff: Tariff, work: Work, rate: float, dials: Sequence[Dial]) -> RaceOption:
    """A race on the CPU under the kernel's governor."""
    cost = work.costs["cpu"]
    choices, capacity = clocks_within(dials)
    kernel = Schedutil(choices, capacity)
    watts = {hz: tariff.race_watts("cpu", hz, cost.cores) - tariff.idle_watts for hz in choices}
    low = choices[0]
    points: list[tuple[float, float, float]] = []
    cycles_us = 0.0
    for share in PERIODS:
        period_us = share * work.latency_us
        units = max(rate, 1.0) * period_us / 1e6
        commits = _commits(period_us, work)
        us, cycles_us, joules, _ = _settled(kernel, cost, units, period_us, commits, watts)
        points.append((units, us, joules))
    _, us, joules = points[-1]
    most = _most(tariff, "cpu", cost, choices, 0.0)
    hz = round(cycles_us / us) if us else low
    return RaceOption(
        "cpu", hz, (), 1e6 * joules / us if us else 0.0, us, 0.0, *most, tuple(points)
    )


def _beside_host(
    tariff: Tariff, work: Work, rate: float, dials: Sequence[Dial], cost: RaceCost,
    option: RaceOption, memory_hz: int | None,
) -> RaceOption:  # fmt: skip
    """A GPU option with the CPU part of the race, at the clocks of the kernel's governor."""
    host = cost.host
    if host is None:
        return option
    choices, capacity = clocks_within(dials)
    kernel = Schedutil(choices, capacity)
    watts = {hz: tariff.race_watts("cpu", hz, host.cores) - tariff.idle_watts for hz in choices}
    points = []
    for share in PERIODS:
        period_us = share * work.latency_us
        units = max(rate, 1.0) * period_us / 1e6
        away = GpuWait(option.takes_us(units), cost.cores)
        commits = _commits(period_us, work)
        us, _, joules, hz = _settled(kernel, host, units, period_us, commits, watts, away)
        busy = tariff.race_watts(option.device, option.hz, cost.cores, memory_hz, hz)
        joules += (busy - tariff.idle_watts) * away.us / 1e6
        points.append((units, us + away.us, joules))
    fixed, each = _most(tariff, "cpu", host, choices, 0.0)
    busy = tariff.race_watts(option.device, option.hz, cost.cores, memory_hz, choices[-1])
    more = busy - tariff.race_watts(option.device, option.hz, cost.cores, memory_hz)
    return replace(
        option, points=tuple(points), most_j=option.most_j + fixed + more * option.us / 1e6,
        most_j_per_unit=option.most_j_per_unit + each + more * option.us_per_unit / 1e6,
    )  # fmt: skip


def at_hand(
    option: RaceOption, tariff: Tariff, work: Work, dials: Sequence[Dial], u: Utilisation
) -> RaceOption:
    """The CPU option without set clocks, for the utilisation that the kernel's governor has now."""
    cost, units = work.costs["cpu"], max(work.units, 1.0)
    kernel = Schedutil(*clocks_within([d for d in dials if d.kind == "cpu"]))
    pieces = kernel.race(
        cost.cycles + cost.cycles_per_unit * units,
        cost.stall_us + cost.stall_us_per_unit * units, u.copy(),
    )  # fmt: skip
    joules = sum(
        (tariff.race_watts("cpu", hz, cost.cores) - tariff.idle_watts) * us for hz, us in pieces
    )
    return replace(option, points=((units, sum(us for _, us in pieces), joules / 1e6),))


def _settled(
    kernel: Schedutil, cost: RaceCost, units: float, period_us: float, commits: int,
    watts: dict[int, float], away: GpuWait | None = None,
) -> tuple[float, float, float, int]:  # fmt: skip
    """Time, clock x time, joules above idle and last clock of a CPU race every `period_us`, once
    the governor has settled.  `commits` evenly spaced beats between only commit.  `away`: after
    each race the cores wait for a GPU."""
    u = Utilisation()
    for _ in range(SETTLE):
        pieces = kernel.race(
            cost.cycles + cost.cycles_per_unit * units,
            cost.stall_us + cost.stall_us_per_unit * units, u,
        )  # fmt: skip
        us = sum(p[1] for p in pieces)
        last_hz = pieces[-1][0] if pieces else kernel.choices_hz[0]
        if away is not None:
            away.wait(kernel, last_hz, u)
        rest_us = max(0.0, period_us - us - (away.us if away else 0.0)) / (commits + 1)
        for _ in range(commits):
            u.sleep(rest_us)
            kernel.race(cost.commit_cycles, 0.0, u)
        u.sleep(rest_us)
    return (
        us,
        sum(hz * t for hz, t in pieces),
        sum(watts[hz] * t for hz, t in pieces) / 1e6,
        last_hz,
    )


def beside_joules(
    tariff: Tariff, dials: Sequence[Dial], cycles: float, option: RaceOption
) -> float:
    """Joules above idle of one core's work after a race, at the clock that the race leaves; after
    one on a GPU, whose clock is another, at the lowest."""
    choices, _ = clocks_within([d for d in dials if d.kind == "cpu"])
    hz = choices[0]
    if option.device == "cpu":
        hz = min(choices, key=lambda choice: abs(choice - option.hz))
    return (tariff.race_watts("cpu", hz, 1.0) - tariff.idle_watts) * cycles / hz


def _most(
    tariff: Tariff, device: str, cost: RaceCost, choices: Sequence[int], write_us: float,
    memory_hz: int | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Joules above idle of a race and of each unit, each at its worst clock."""
    fixed, each = 0.0, 0.0
    for hz in choices:
        above = tariff.race_watts(device, hz, cost.cores, memory_hz) - tariff.idle_watts
        us = cost.us(0, hz) + write_us
        fixed = max(fixed, above * us / 1e6)
        each = max(each, above * (cost.us(1, hz) + write_us - us) / 1e6)
    return fixed, each


def _capped(
    cost: RaceCost, cap: tuple[Dial, int] | None
) -> tuple[RaceCost, tuple[tuple[str, int], ...], int | None]:
    """The work under a memory cap, the dials to set for it, and the capped clock.

    All stall time is taken to grow in proportion as the clock falls, which is an upper bound.
    """
    if cap is None:
        return cost, (), None
    dial, hz = cap
    k = dial.max_hz / hz
    slow = replace(cost, stall_us=cost.stall_us * k, stall_us_per_unit=cost.stall_us_per_unit * k)
    if cost.host is not None:
        slow = replace(slow, host=_capped(cost.host, cap)[0])
    return slow, ((dial.name, hz),), hz


def _writing(dials: Sequence[Dial], cap: tuple[Dial, int] | None) -> tuple[float, float]:
    """Cost of setting these dials and a cap: the share of writing all CPU clocks (1 where the
    dials' own cost is unknown), and additional µs."""
    own_us = [dial.write_us for dial in dials if dial.write_us is not None]
    cap_us = 0.0 if cap is None else cap[0].write_us or 0.0
    return (0.0 if own_us else 1.0), sum(own_us) + cap_us


def _clocks(dials: Sequence[Dial]) -> tuple[int, ...]:
    """Clocks to try for dials of one kind that are set together: the choices of the dial with most
    of them; none unless every dial may be set."""
    if not dials or not all(d.choices_hz() for d in dials):
        return ()
    return max(dials, key=lambda d: len(d.choices_hz())).choices_hz()


def clocks_within(dials: Sequence[Dial]) -> tuple[tuple[int, ...], int]:
    """Clocks that the kernel may use, writable or not, and the highest of the hardware; 1 GHz where
    none is known."""
    if not dials:
        return (10**9,), 10**9
    d = dials[0]
    return _within(d.table_hz, d.min_hz, d.max_hz)


@lru_cache(maxsize=64)
def _within(table_hz: tuple[int, ...], min_hz: int, max_hz: int) -> tuple[tuple[int, ...], int]:
    steps = (round(min_hz * (max_hz / min_hz) ** (i / 16)) for i in range(17))
    table = table_hz or tuple(dict.fromkeys(steps))
    inside = tuple(hz for hz in table if min_hz <= hz <= max_hz) or (max_hz,)
    return inside, max(table[-1], inside[-1])


def _on(points: Points, column: int, units: float) -> float:
    """Linear interpolation between two points; constant before the first, proportional beyond the
    last."""
    if units >= points[-1][0]:
        return points[-1][column] * units / points[-1][0]
    i = bisect_right(points, (units, float("inf"), 0.0))
    if i == 0:
        return points[0][column]
    (x0, y0), (x1, y1) = ((p[0], p[column]) for p in points[i - 1 : i + 1])
    return y0 + (y1 - y0) * (units - x0) / (x1 - x0)
