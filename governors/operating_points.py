"""Ways to race one kind of work: a device and its clocks, what a race takes and draws.  Sans-IO.

At a clock that is set, time and joules are affine in the units.  Left alone, a race meets the
clocks that the kernel's governor chooses (`governors.schedutil`), which follow from how long the
last races were and how long ago: a beat of n units at r units a second comes every n / r, so its
time and its joules are those of the governor settled at that period.  They are worked out at
PERIODS of the tolerance and interpolated between.

A race on a GPU is what the CPU does before and after it, left alone as above, and the GPU's part
between: then the GPU is busy and a core waits for it at the clock that the CPU has reached.
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
"""Of the tolerance, at which a race that is left alone is worked out."""
SETTLE = 6
"""Periods after which the kernel's governor is taken to have settled."""
SPINS = 0.5
"""Of a core that waits for a GPU: where it is busy for more, the kernel's governor sees a load."""

Points = tuple[tuple[float, float, float], ...]
"""Units, the time of their race (µs) and its joules above idle; ascending."""


@dataclass(frozen=True, slots=True)
class RaceOption:
    """A way to race, for one kind of work."""

    device: str
    hz: int
    """Of the device; of a race that is left alone, the mean at the longest period."""
    clocks: tuple[tuple[str, int], ...]
    """What must be set for it; nothing: leave it alone."""
    above_watts: float
    """Above idle; of a race that is left alone, the mean at the longest period."""
    us: float
    us_per_unit: float
    most_j: float
    most_j_per_unit: float
    """Above idle, of a race at the least favourable clock that it may meet: where it is left alone,
    any within the limits."""
    points: Points = ()
    """Where the CPU's clock is left alone: not affine."""
    cpu_writes: float = 1.0
    """Of what setting all CPU clocks takes, what it pays."""
    more_writes_j: float = 0.0
    """For setting other clocks, as far as their own cost is known."""

    def takes_us(self, units: float) -> float:
        """How long a race of `units` takes."""
        return _on(self.points, 1, units) if self.points else self.us + self.us_per_unit * units

    def device_us(self, units: float) -> float:
        """How long the device of the way is at it; of a GPU, without what the CPU does beside."""
        return self.takes_us(units) if self.device == "cpu" else self.us + self.us_per_unit * units

    def joules(self, units: float, write_j: float) -> float:
        """Above idle, with the writes where there are any."""
        if self.points:
            return _on(self.points, 2, units) + self._writes(write_j)
        return self.above_watts * self.takes_us(units) / 1e6 + self._writes(write_j)

    def most_joules(self, units: float, write_j: float) -> float:
        """Above idle at most, with the writes where there are any."""
        return self.most_j + self.most_j_per_unit * units + self._writes(write_j)

    def part(self, units: float, write_j: float, room_j: float) -> float:
        """The share of the units that `room_j` is enough for in any case."""
        fixed, each = self.most_joules(0, write_j), self.most_j_per_unit * units
        if room_j < fixed:
            return 0.0
        return min(1.0, (room_j - fixed) / each) if each > 0 else 1.0

    def _writes(self, write_j: float) -> float:
        """Joules of setting its clocks; `write_j`: of setting all CPU clocks."""
        return self.cpu_writes * write_j + self.more_writes_j if self.clocks else 0.0


@dataclass(frozen=True, slots=True)
class GpuWait:
    """A GPU's part of a race, as the CPU's governor sees it."""

    us: float
    cores: float
    """That wait for it: busy where the driver spins, asleep where it does not."""

    def wait(self, kernel: Schedutil, hz: int, u: Utilisation) -> None:
        """It passes, at a clock of the CPU that does not change."""
        if self.cores >= SPINS:
            kernel.held(hz, self.us, u)
        else:
            u.sleep(self.us)


def ways_of(
    tariff: Tariff, work: Work, rate: float, dials: Sequence[Dial], write_us: float
) -> list[RaceOption]:
    """All ways to race `work` at a rate of units a second; of each device, leaving it alone is the
    first."""
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
                way = RaceOption(
                    device, hz, set_to + also, above, fixed, each, *most, cpu_writes=cpu_part,
                    more_writes_j=one_w * more_us / 1e6,
                )  # fmt: skip
                found.append(beside(slow, way, memory_hz))
    return found


def waits_us(
    ways: Sequence[RaceOption], work: Work, rate: float, shares: Sequence[float]
) -> Floats:
    """How long a period may be (µs) at each of shares x ways, for its race to end in time."""
    a = np.array([w.us for w in ways])
    b = np.array([w.us_per_unit for w in ways]) * rate / 1e6
    room_us = np.array(shares)[:, None] * work.latency_us - work.commit_us
    waits: Floats = (room_us - a) / (1 + b)
    for j, way in enumerate(ways):
        if way.points:
            waits[:, j] = [_settle(way, rate, float(room)) for room in room_us[:, 0]]
    return waits


def _settle(way: RaceOption, rate: float, room_us: float) -> float:
    """The period that leaves time for the race of what arrives in it."""
    low, high = 0.0, room_us
    if way.takes_us(0.0) > room_us:
        return room_us - way.takes_us(0.0)
    for _ in range(14):
        middle = (low + high) / 2
        if middle + way.takes_us(rate * middle / 1e6) <= room_us:
            low = middle
        else:
            high = middle
    return low


def batched(waits: Floats, work: Work) -> tuple[Floats, Floats]:
    """From one race to the next, and how often is committed between: what the batcher makes of
    waits (`edged.beat.batcher`).  It commits without a race where more than a quarter of the
    tolerance is left for that, and races at once where buffers fill up."""
    commits = np.array([[_commits(float(w), work) for w in row] for row in waits])
    period = np.minimum(waits, (commits + 1) * work.period_us_max)
    if work.commit_every_us:
        period = np.minimum(period, (commits + 1) * work.commit_every_us)
    return period, commits


def _commits(wait_us: float, work: Work) -> int:
    """How often is committed, without a race, in a wait."""
    ack_us = work.commit_every_us
    if not ack_us or work.period_us_max <= ack_us:
        return 0
    return max(0, math.ceil((wait_us - work.latency_us / 4) / ack_us) - 1)


def races(
    ways: Sequence[RaceOption], rate: float, period_us: Floats, write_j: float
) -> tuple[Floats, Floats]:
    """Times of races, and their joules above idle with writes."""
    units = rate * np.maximum(0.0, period_us) / 1e6
    us, joules = np.empty_like(units), np.empty_like(units)
    for j, way in enumerate(ways):
        us[:, j] = [way.takes_us(n) for n in units[:, j]]
        joules[:, j] = [way.joules(n, write_j) for n in units[:, j]]
    return us, joules


def devices_us(ways: Sequence[RaceOption], rate: float, period_us: Floats) -> Floats:
    """Of races, the time in which their device is at it."""
    units = rate * np.maximum(0.0, period_us) / 1e6
    us = np.empty_like(units)
    for j, way in enumerate(ways):
        us[:, j] = [way.device_us(n) for n in units[:, j]]
    return us


def _unset(tariff: Tariff, device: str, cost: RaceCost, dials: Sequence[Dial]) -> RaceOption:
    """A race on a GPU whose clock is left alone: at its highest, which its governor chooses for any
    load that fills it."""
    hz = dials[0].max_hz if dials else 10**9
    above = tariff.race_watts(device, hz, cost.cores) - tariff.idle_watts
    fixed, each = cost.us(0, hz), cost.us(1, hz) - cost.us(0, hz)
    return RaceOption(device, hz, (), above, fixed, each, *_most(tariff, device, cost, (hz,), 0.0))


def _left_alone(tariff: Tariff, work: Work, rate: float, dials: Sequence[Dial]) -> RaceOption:
    """A race under the kernel's governor."""
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
    tariff: Tariff, work: Work, rate: float, dials: Sequence[Dial], cost: RaceCost, way: RaceOption,
    memory_hz: int | None,
) -> RaceOption:  # fmt: skip
    """A way on the GPU with the CPU's part of the race, at the clocks of the kernel's governor."""
    host = cost.host
    if host is None:
        return way
    choices, capacity = clocks_within(dials)
    kernel = Schedutil(choices, capacity)
    watts = {hz: tariff.race_watts("cpu", hz, host.cores) - tariff.idle_watts for hz in choices}
    points = []
    for share in PERIODS:
        period_us = share * work.latency_us
        units = max(rate, 1.0) * period_us / 1e6
        away = GpuWait(way.takes_us(units), cost.cores)
        commits = _commits(period_us, work)
        us, _, joules, hz = _settled(kernel, host, units, period_us, commits, watts, away)
        busy = tariff.race_watts(way.device, way.hz, cost.cores, memory_hz, hz)
        joules += (busy - tariff.idle_watts) * away.us / 1e6
        points.append((units, us + away.us, joules))
    fixed, each = _most(tariff, "cpu", host, choices, 0.0)
    busy = tariff.race_watts(way.device, way.hz, cost.cores, memory_hz, choices[-1])
    more = busy - tariff.race_watts(way.device, way.hz, cost.cores, memory_hz)
    return replace(
        way, points=tuple(points), most_j=way.most_j + fixed + more * way.us / 1e6,
        most_j_per_unit=way.most_j_per_unit + each + more * way.us_per_unit / 1e6,
    )  # fmt: skip


def at_hand(
    way: RaceOption, tariff: Tariff, work: Work, dials: Sequence[Dial], u: Utilisation
) -> RaceOption:
    """The race at hand left alone, by what the kernel's governor remembers of those before it."""
    cost, units = work.costs["cpu"], max(work.units, 1.0)
    kernel = Schedutil(*clocks_within([d for d in dials if d.kind == "cpu"]))
    pieces = kernel.race(
        cost.cycles + cost.cycles_per_unit * units,
        cost.stall_us + cost.stall_us_per_unit * units, u.copy(),
    )  # fmt: skip
    joules = sum(
        (tariff.race_watts("cpu", hz, cost.cores) - tariff.idle_watts) * us for hz, us in pieces
    )
    return replace(way, points=((units, sum(us for _, us in pieces), joules / 1e6),))


def _settled(
    kernel: Schedutil, cost: RaceCost, units: float, period_us: float, commits: int,
    watts: dict[int, float], away: GpuWait | None = None,
) -> tuple[float, float, float, int]:  # fmt: skip
    """Time, clock x time, joules above idle and last clock of a race on the CPU that comes every
    `period_us`, with `commits` beats between, evenly, that only commit; after each race the cores
    wait for a GPU where there is an `away`."""
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


def _most(
    tariff: Tariff, device: str, cost: RaceCost, choices: Sequence[int], write_us: float,
    memory_hz: int | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Joules above idle of a race and of each unit, at the worst of some clocks for each."""
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
    """The work with a capped memory clock, what must be set for it, and the clock.

    All waiting is taken to stretch as the clock falls, which is the most that it can.
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
    """What setting these dials and a cap takes: the part of all CPU clocks' (all of it where their
    own cost is not known), and µs beside."""
    own_us = [dial.write_us for dial in dials if dial.write_us is not None]
    cap_us = 0.0 if cap is None else cap[0].write_us or 0.0
    return (0.0 if own_us else 1.0), sum(own_us) + cap_us


def _clocks(dials: Sequence[Dial]) -> tuple[int, ...]:
    """Clocks worth trying for dials of one kind that are set together: those of the first, as far
    as all may be set."""
    if not dials or not all(d.choices_hz() for d in dials):
        return ()
    return max(dials, key=lambda d: len(d.choices_hz())).choices_hz()


def clocks_within(dials: Sequence[Dial]) -> tuple[tuple[int, ...], int]:
    """Clocks that the kernel may use, writable or not, and the highest of the hardware; where no
    clock is known, 1 GHz stands for all of them."""
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
    """Between two points by a straight line; before the first as there, beyond the last in
    proportion."""
    if units >= points[-1][0]:
        return points[-1][column] * units / points[-1][0]
    i = bisect_right(points, (units, float("inf"), 0.0))
    if i == 0:
        return points[0][column]
    (x0, y0), (x1, y1) = ((p[0], p[column]) for p in points[i - 1 : i + 1])
    return y0 + (y1 - y0) * (units - x0) / (x1 - x0)
