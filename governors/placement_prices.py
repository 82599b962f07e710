"""Prices of placement: the joules by which kernels and processors are compared.  Sans-IO.

A kernel is a part of a beat.  Each candidate replaces the running kernel in the beat's cost, and
the cost model plans the whole beat around it: wait, clocks, sleeps and uploads.  So the prices
compare the best that each candidate can reach over the whole input power.

Under a policy that plans nothing, beats wait for the full tolerance, and clocks are those in force:
pinned, or chosen by the kernel's governor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from governors.base import HANDS_OFF
from governors.cost import SHARES, CostModel
from governors.policies.base import Act, Observation
from governors.policies.running import Running
from governors.tariff import Tariff
from governors.work import Dial, RaceCost

CORES_MIN = 0.05
"""Least number of busy cores in a GPU race: one thread waits for the GPU."""
REST = 0.25
"""After a part is removed, GPU time below this share of the part is an interpolation error; more
belongs to another part."""


@dataclass(frozen=True, slots=True)
class KernelPart:
    """Time of one kernel in a beat, around `units` units."""

    device: str
    """cpu, or the family's name for a GPU."""
    units: int
    us: float
    cpu_us: float
    """CPU time of all threads in it."""
    each_us: float = 0.0
    """Time per additional unit."""
    hz: int = 0
    """For a GPU: its clock during the measurement; 0: unknown."""
    stalled: float = 1.0
    """For a GPU: the share of `each_us` that its clock does not shorten."""

    @property
    def processor(self) -> str:
        """cpu or gpu."""
        return "cpu" if self.device == "cpu" else "gpu"

    def at_us(self, units: float) -> float:
        """Time with `units` units."""
        return max(0.0, self.us + self.each_us * (units - self.units))


def with_part(cost: RaceCost, part: KernelPart, hz: int, sign: int = 1) -> RaceCost:
    """A beat's cost with one more part, or without it (`sign` -1). CPU times were measured at `hz`.
    No figure falls below zero.  With a part on a GPU the rest of the beat is the CPU's
    (`RaceCost.host`), at its own clock."""
    if part.processor == "gpu":
        return _with_gpu(cost if cost.host or sign < 0 else _hosted(cost), part, sign)
    if cost.host is not None:
        return replace(cost, host=with_part(cost.host, part, hz, sign))
    cores = max(1.0, _cores(cost, part, cost.us(part.units, hz), sign))
    fixed_us, each_us = sign * part.at_us(0), sign * part.each_us
    return replace(
        cost,
        cycles=max(0.0, cost.cycles + fixed_us * hz / 1e6),
        cycles_per_unit=max(0.0, cost.cycles_per_unit + each_us * hz / 1e6),
        cores=cores,
    )


def _with_gpu(cost: RaceCost, part: KernelPart, sign: int) -> RaceCost:
    """The fixed part of a GPU's time is launches, which its clock does not shorten.  Where the
    clock of the measurement is unknown, no part of the time is taken to depend on it."""
    hz, stalled = (part.hz, part.stalled) if part.hz else (10**9, 1.0)
    us = cost.us(part.units, hz)
    fixed_us, each_us = sign * part.at_us(0), sign * part.each_us
    left = replace(
        cost,
        cycles_per_unit=max(0.0, cost.cycles_per_unit + (1 - stalled) * each_us * hz / 1e6),
        stall_us=max(0.0, cost.stall_us + fixed_us),
        stall_us_per_unit=max(0.0, cost.stall_us_per_unit + stalled * each_us),
        cores=max(CORES_MIN, _cores(cost, part, us, sign)),
    )
    if left.host is None or sign > 0 or left.us(part.units, hz) > REST * part.us:
        return left
    return replace(
        left.host, bytes_per_unit=cost.bytes_per_unit, beside_cycles=cost.beside_cycles,
        commit_cycles=cost.commit_cycles,
    )  # fmt: skip


def _hosted(cost: RaceCost) -> RaceCost:
    """An empty GPU cost whose host is the previous CPU cost."""
    host = replace(cost, bytes_per_unit=0.0, beside_cycles=0.0, commit_cycles=0.0)
    return replace(
        cost, cycles=0.0, cycles_per_unit=0.0, stall_us=0.0, stall_us_per_unit=0.0, cores=0.0,
        host=host,
    )  # fmt: skip


def _cores(cost: RaceCost, part: KernelPart, us: float, sign: int) -> float:
    """Mean number of busy cores with or without the part."""
    return (cost.cores * us + sign * part.cpu_us) / max(1.0, us + sign * part.us)


class PlacementPrices:
    """Implements `edged.placement.placement.Prices` for a board, real or simulated."""

    def __init__(
        self, tariff: Tariff, cpu_hz: int, running: Running, look: Callable[[], Observation]
    ) -> None:
        """`cpu_hz`: the clock at which kernels were measured; `look`: returns the current
        observation, with dials whether or not edged owns them."""
        self._tariff, self._cpu_hz = tariff, cpu_hz
        self._model = CostModel(tariff)
        self._running, self._look = running, look

    def beat_j(self, part: KernelPart, instead: KernelPart | None) -> float | None:
        """Joules above idle of a beat with kernel `part` in place of the running kernel `instead`
        (None: unknown). None where a figure is missing or no plan is in time."""
        observed = self._look()
        (cost,) = observed.work.costs.values()
        if instead is not None and part != instead:
            cost = with_part(cost, instead, self._cpu_hz, -1)
        if part != instead:
            cost = with_part(cost, part, self._cpu_hz)
        gpu = part.processor == "gpu" or cost.host is not None
        work = replace(observed.work, costs={"gpu" if gpu else "cpu": cost})
        plans = self._running.policy.plans and self._running.policy.name != HANDS_OFF
        dials = observed.dials if plans else tuple(self._standing(dial) for dial in observed.dials)
        shares = SHARES if plans else (1.0,)
        plan = self._model.plan(work, dials, observed.write_j, observed.write_us, shares)
        if not plan.in_time or not plan.priced or work.units_per_s <= 0:
            return None
        return (plan.watts - self._tariff.idle_watts) * part.units / work.units_per_s

    def work_j(self, cpu_us: float) -> float:
        """Joules above idle of CPU time on one core."""
        busy_w = self._tariff.race_watts("cpu", self._cpu_hz, 1.0) - self._tariff.idle_watts
        return busy_w * cpu_us / 1e6

    def _standing(self, dial: Dial) -> Dial:
        """The dial as the running policy leaves it: read-only, at its pinned clock if it has
        one."""
        pinned = self._running.standing.get(dial.name)
        if pinned is None or pinned.act is not Act.PIN:
            return replace(dial, writable=False)
        return replace(dial, min_hz=pinned.hz, max_hz=pinned.hz, writable=False)
