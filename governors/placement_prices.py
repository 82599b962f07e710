"""What placing a kernel costs: the prices by which kernels and processors are compared.  Sans-IO.

A kernel is a part of a beat.  Each candidate is put in the place of the one that runs, and the cost
model plans the whole beat around it: how long to wait, at which clocks, in which sleeps, with which
uploads.  So the least of these prices is the least that kernel, processor, batch size, clocks,
sleep and uplink can come to together, over the whole input power.

Under a policy that plans none of that, beats wait as long as they may and clocks are those that
stand: pinned, or what the kernel's governor makes of such beats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from governors.cost import SHARES, CostModel
from governors.policies.base import Act, Observation
from governors.policies.running import Running
from governors.tariff import Tariff
from governors.work import Dial, RaceCost

HANDS_OFF = "hands_off"
CORES_MIN = 0.05
"""Of a core, that a race keeps busy at least: somebody waits for the GPU."""
REST = 0.25
"""Of a part that was taken away, what may be left of the GPU's time by interpolation alone; more is
another part's."""


@dataclass(frozen=True, slots=True)
class KernelPart:
    """What a kernel takes of a beat, around so many units."""

    device: str
    """cpu, or what its family calls a GPU."""
    units: int
    us: float
    cpu_us: float
    """CPU time of all threads in it."""
    each_us: float = 0.0
    """What one more unit adds."""
    hz: int = 0
    """Of a GPU: its clock when that was measured; 0: not known."""
    stalled: float = 1.0
    """Of a GPU: the share of `each_us` that its clock does not shorten."""

    @property
    def processor(self) -> str:
        """cpu or gpu."""
        return "cpu" if self.device == "cpu" else "gpu"

    def at_us(self, units: float) -> float:
        """How long it takes with so many."""
        return max(0.0, self.us + self.each_us * (units - self.units))


def with_part(cost: RaceCost, part: KernelPart, hz: int, sign: int = 1) -> RaceCost:
    """A beat's cost with a part more, or with `sign` -1 without one that is in it; on the CPU the
    part's time was measured at `hz`.  Nothing falls below zero.

    With a part on a GPU the rest of the beat is the CPU's (`RaceCost.host`), at its own clock.
    """
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
    """What a beat takes without units is launches, which the GPU's clock does not shorten; where
    the clock that it had is not known, none is taken to shorten anything."""
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
    """Nothing on the GPU yet, and what was on the CPU beside it."""
    host = replace(cost, bytes_per_unit=0.0, beside_cycles=0.0, commit_cycles=0.0)
    return replace(
        cost, cycles=0.0, cycles_per_unit=0.0, stall_us=0.0, stall_us_per_unit=0.0, cores=0.0,
        host=host,
    )  # fmt: skip


def _cores(cost: RaceCost, part: KernelPart, us: float, sign: int) -> float:
    """Busy on average, with the part or without it, of a cost that takes `us`."""
    return (cost.cores * us + sign * part.cpu_us) / max(1.0, us + sign * part.us)


class PlacementPrices:
    """`edged.placement.placement.Prices` of a board, in a daemon as in the simulator."""

    def __init__(
        self, tariff: Tariff, cpu_hz: int, running: Running, look: Callable[[], Observation]
    ) -> None:
        """`cpu_hz`: the clock that kernels were measured at; `look`: what is seen now, with the
        dials whether they are owned or not."""
        self._tariff, self._cpu_hz = tariff, cpu_hz
        self._model = CostModel(tariff)
        self._running, self._look = running, look

    def beat_j(self, part: KernelPart, instead: KernelPart | None) -> float | None:
        """Joules above idle of a beat with a kernel `instead` of the one that runs (None: that one
        is not known); None where a part of it has no figure, or where no plan is in time."""
        seen = self._look()
        (cost,) = seen.work.costs.values()
        if instead is not None and part != instead:
            cost = with_part(cost, instead, self._cpu_hz, -1)
        if part != instead:
            cost = with_part(cost, part, self._cpu_hz)
        gpu = part.processor == "gpu" or cost.host is not None
        work = replace(seen.work, costs={"gpu" if gpu else "cpu": cost})
        plans = self._running.policy.plans and self._running.policy.name != HANDS_OFF
        dials = seen.dials if plans else tuple(self._standing(dial) for dial in seen.dials)
        shares = SHARES if plans else (1.0,)
        plan = self._model.plan(work, dials, seen.write_j, seen.write_us, shares)
        if not plan.in_time or not plan.priced or work.units_per_s <= 0:
            return None
        return (plan.watts - self._tariff.idle_watts) * part.units / work.units_per_s

    def work_j(self, cpu_us: float) -> float:
        """Joules above idle of CPU time on one core."""
        busy_w = self._tariff.race_watts("cpu", self._cpu_hz, 1.0) - self._tariff.idle_watts
        return busy_w * cpu_us / 1e6

    def _standing(self, dial: Dial) -> Dial:
        """A dial that nobody will turn."""
        pinned = self._running.standing.get(dial.name)
        if pinned is None or pinned.act is not Act.PIN:
            return replace(dial, writable=False)
        return replace(dial, min_hz=pinned.hz, max_hz=pinned.hz, writable=False)
