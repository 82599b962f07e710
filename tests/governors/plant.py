"""A device for policies to drive: pieces of constant power in a row, nothing forgotten.

It is written without the cost model: what a race takes follows from its clock by the work's own law
and the board's power model, joules are summed piece by piece, and the means over windows are taken
from those pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from governors.board_tariffs import ModelTariff
from governors.cost import CostModel
from governors.energy import Provenance
from governors.policies.base import Act, Battery, ClockSetting, Decision, Observation
from governors.policies.running import Running
from governors.power import PowerModel
from governors.profile_reader import load
from governors.work import Dial, RaceCost, Work

MODELS = {name: PowerModel(load(name)) for name in ("jetson-nano", "orin-nano")}
TARIFFS = {name: ModelTariff(model) for name, model in MODELS.items()}
COST = RaceCost(cycles=4e5, cycles_per_unit=300.0, stall_us_per_unit=0.05, cores=4.0)


def dials(
    board: str, low: float = 0.0, high: float = 1e12, writable: bool = True
) -> tuple[Dial, ...]:
    """The CPU clocks of a board within limits."""
    found = []
    for c in MODELS[board].profile.clusters:
        inside = [hz for hz in c.table_hz if low <= hz <= high] or [c.table_hz[-1]]
        found.append(Dial(c.name, "cpu", c.table_hz, inside[0], inside[-1], writable))
    return tuple(found)


@dataclass
class Plant:
    """One board with one stream of work."""

    board: str
    policy: str
    settings: Mapping[str, object]
    latency_us: int = 1_000_000
    cost: RaceCost = COST
    at_us: int = 0
    joules: float = 0.0
    waiting: float = 0.0
    done: float = 0.0
    write_j: float = 1e-5
    gain: float = 1.0
    """How much more than modelled the board really takes in races."""
    known: float = 1.0
    """Of what waits, the part that the policy knows of before a race."""
    left_share: float = 0.0
    """Where within the limits the kernel's governor runs a race that is left alone."""
    others_cores: float = 0.0
    battery_j: float | None = None
    day_us: int = 0
    dials: tuple[Dial, ...] = ()
    times: list[int] = field(default_factory=lambda: [0])
    energies: list[float] = field(default_factory=lambda: [0.0])
    decisions: list[Decision] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        self.tariff = TARIFFS[self.board]
        self.running = Running(self.policy, self.settings, CostModel(self.tariff))
        self.dials = self.dials or dials(self.board)

    def seen(self, rate: float, raced: float | None = None) -> Observation:
        """What the policy is told."""
        battery = (
            None if self.battery_j is None else Battery(max(0.0, self.battery_j - self.joules))
        )
        work = Work(self.known * self.waiting, rate, {"cpu": self.cost}, self.latency_us)
        return Observation(
            self.at_us, work, self.at_us + self.latency_us // 2, self.joules,
            Provenance.SIMULATED, self.dials, self.others_cores, battery,
            self.day_us + self.at_us, 0.0, self.write_j, raced=raced,
        )  # fmt: skip

    def spend(self, us: float, watts: float, joules: float = 0.0) -> None:
        """A piece of constant power, with `joules` at its start."""
        if joules:
            self.joules += joules
            self.times.append(self.at_us)
            self.energies.append(self.joules)
        self.at_us += round(us)
        self.joules += watts * round(us) / 1e6
        self.times.append(self.at_us)
        self.energies.append(self.joules)

    def beat(self, arrivals: float, us: float) -> Decision:
        """Wait `us` while `arrivals` come, then race what the policy takes."""
        self.spend(us, self.tariff.idle_watts)
        self.waiting += arrivals
        decision = self.running.race(self.seen(1e6 * arrivals / us))
        self.decisions.append(decision)
        share = decision.admit_share
        units = self.waiting if share >= 1.0 else share * self.known * self.waiting
        units = min(units, decision.units_max)
        if units > 0:
            hz = self._clock(decision.clocks)
            race_us = self.cost.us(units, hz)
            idle = self.tariff.idle_watts
            watts = self.tariff.race_watts("cpu", hz, self.cost.cores)
            written = self.write_j if decision.clocks else 0.0
            self.spend(race_us, idle + (watts - idle) * self.gain, self.tariff.wake_j + written)
            self.late += race_us > self.latency_us / 2 + 1
            self.waiting -= units
            self.done += units
        after = self.running.idle(self.seen(1e6 * arrivals / us, units))
        self.decisions.append(after)
        return decision

    def energy_at(self, at_us: float) -> float:
        """Joules from the start until a time."""
        i = bisect_right(self.times, at_us)
        if i == len(self.times):
            return self.energies[-1]
        t0, t1 = self.times[i - 1], self.times[i]
        e0, e1 = self.energies[i - 1], self.energies[i]
        return e0 + (e1 - e0) * (at_us - t0) / (t1 - t0)

    def worst_mean(self, window_us: int, before_watts: float) -> float:
        """The highest mean over any window, watts; time before the start counts as given."""

        def energy(at: float) -> float:
            return before_watts * at / 1e6 if at <= 0 else self.energy_at(at)

        ends = list(self.times) + [t + window_us for t in self.times]
        last = self.times[-1]
        return max(1e6 * (energy(t) - energy(t - window_us)) / window_us for t in ends if t <= last)

    def _clock(self, clocks: Mapping[str, ClockSetting]) -> int:
        pinned = [s.hz for s in clocks.values() if s.act is Act.PIN]
        standing = [s.hz for s in self.running.standing.values() if s.act is Act.PIN]
        dial = self.dials[0]
        choices = [hz for hz in dial.table_hz if dial.min_hz <= hz <= dial.max_hz]
        return (pinned or standing or [choices[round(self.left_share * (len(choices) - 1))]])[0]
