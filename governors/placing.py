"""What placing a kernel costs: the prices by which kernels and processors are compared.  Sans-IO.

A kernel is a part of a beat.  Under a policy that plans, each candidate is put in the place of the
one that runs, and the cost model plans the whole beat around it: how long to wait, at which clocks,
in which sleeps, with which uploads.  So the least of these prices is the least that kernel,
processor, batch size, clocks, sleep and uplink can come to together, over the whole input power.

Where nothing is planned a kernel is priced at the clock that stands, or the highest that the board
allows, at the pace at which beats come (`governors.tariff.BeatPrices`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from governors.cost import CostModel, Tariff
from governors.policies.base import Act, Cost, Observation
from governors.policies.running import Running
from governors.tariff import BeatPrices

HANDS_OFF = "hands_off"
CORES_MIN = 0.05
"""Of a core, that a race keeps busy at least: somebody waits for the GPU."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a kernel takes of a beat, around so many units."""

    device: str
    """cpu, or what its family calls a GPU."""
    units: int
    us: float
    cpu_us: float
    """CPU time of all threads in it."""
    each_us: float = 0.0
    """What one more unit adds."""

    @property
    def processor(self) -> str:
        """cpu or gpu."""
        return "cpu" if self.device == "cpu" else "gpu"

    def at_us(self, units: float) -> float:
        """How long it takes with so many."""
        return max(0.0, self.us + self.each_us * (units - self.units))


def with_part(cost: Cost, part: Part, hz: int, sign: int = 1) -> Cost:
    """A beat's cost with a part more, or with `sign` -1 without one that is in it; on the CPU the
    part's time was measured at `hz`.  Nothing falls below zero."""
    whole_us = cost.us(part.units, hz)
    busy_us = cost.cores * whole_us + sign * part.cpu_us
    cores = max(CORES_MIN, busy_us / max(1.0, whole_us + sign * part.us))
    fixed_us, each_us = sign * part.at_us(0), sign * part.each_us
    if part.processor == "gpu":
        return replace(
            cost,
            stall_us=max(0.0, cost.stall_us + fixed_us),
            stall_us_per_unit=max(0.0, cost.stall_us_per_unit + each_us),
            cores=cores,
        )
    return replace(
        cost,
        cycles=max(0.0, cost.cycles + fixed_us * hz / 1e6),
        cycles_per_unit=max(0.0, cost.cycles_per_unit + each_us * hz / 1e6),
        cores=max(1.0, cores),
    )


class Placing:
    """`edged.placement.Prices` of a board, in a daemon as in the simulator."""

    def __init__(
        self, tariff: Tariff, cpu_hz: int, gpu_hz: int, running: Running,
        look: Callable[[], Observation],
    ) -> None:  # fmt: skip
        """`cpu_hz`: at which kernels were measured, the highest; `look`: what is seen now."""
        self._tariff, self._cpu_hz = tariff, cpu_hz
        self._beats = BeatPrices(tariff, cpu_hz, gpu_hz)
        self._model = CostModel(tariff)
        self._running, self._look = running, look

    def beat_j(self, part: Part, instead: Part | None) -> float | None:
        """Joules above idle of a beat with a kernel `instead` of the one that runs (None: that one
        is not known); None where a part of it has no figure, or where no plan is in time."""
        seen, runs = self._look(), self._running.policy
        if runs.name != HANDS_OFF and runs.plans:
            return self._planned_j(seen, part, instead)
        self._beats.units_per_s = seen.work.units_per_s
        self._beats.cpu_hz = self._pinned_hz() or self._cpu_hz
        slower = self._cpu_hz / self._beats.cpu_hz if part.device == "cpu" else 1.0
        return self._beats.beat_j(part.device, part.us * slower, part.cpu_us * slower, part.units)

    def work_j(self, cpu_us: float) -> float:
        """Joules above idle of CPU time on one core."""
        return (self._tariff.race_watts("cpu", self._cpu_hz, 1.0) - self._tariff.idle_watts) * (
            cpu_us / 1e6
        )

    def _planned_j(self, seen: Observation, part: Part, instead: Part | None) -> float | None:
        (cost,) = seen.work.costs.values()
        if instead is not None:
            cost = with_part(cost, instead, self._cpu_hz, -1)
        cost = with_part(cost, part, self._cpu_hz)
        work = replace(seen.work, costs={part.processor: cost})
        plan = self._model.plan(work, seen.dials, seen.write_j, seen.write_us)
        if not plan.in_time or not plan.priced or work.units_per_s <= 0:
            return None
        return (plan.watts - self._tariff.idle_watts) * part.units / work.units_per_s

    def _pinned_hz(self) -> int:
        standing = self._running.standing.items()
        return next(
            (s.hz for name, s in standing if name.startswith("cpu") and s.act is Act.PIN), 0
        )
