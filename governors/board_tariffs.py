"""Tariffs of boards: prices by the power model or by a calibration.  Sans-IO.

`ModelTariff` uses the board's power model.  `MeasuredTariff` replaces its race watts by those that
`edged calibrate` measured on CPU and GPU, scaled to other numbers of cores.  Terms without a figure
in the profile are zero here too; the model names them.

Assumption: during a race all cores are awake and the memory runs at the highest allowed clock;
after it the memory is at its lowest.  The memory clock follows votes of CPU and GPU that no public
source documents in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from governors.curve import CalibrationCurve
from governors.power import BoardLoad, PowerModel
from governors.profile import BoardProfile, IdleState
from governors.suspend import SuspendCost
from governors.tariff import Gating, RadioPrice, Sleep, Tariff


class ModelTariff:
    """Prices by a board's power model."""

    def __init__(
        self,
        model: PowerModel,
        sleeps: tuple[Sleep, ...] = (),
        memory_hz: int | None = None,
        idle_hz: int | None = None,
        radio: RadioPrice | None = None,
    ) -> None:
        """`sleeps`: sleep states that may be requested; `memory_hz`: memory clock in a race, by
        default the highest; `idle_hz`: CPU clock between races, by default the lowest; `radio`:
        prices of the uplink, by default the profile's."""
        self.model, self.sleeps = model, sleeps
        p = model.profile
        self.memory_hz = memory_hz or (p.memory.table_hz[-1] if p.memory.table_hz else 0)
        idle = model.idle_load()
        if idle_hz is not None:
            idle = replace(idle, cluster_hz=(idle_hz,) * len(p.clusters))
        self.idle_load = idle
        self.idle_watts = model.input_watts(idle)
        self.wake_j = model.input_watts(replace(idle, wakeups_per_s=1.0)) - self.idle_watts
        moved = model.input_watts(replace(idle, memory_gbytes_per_s=1.0))
        self.byte_j = (moved - self.idle_watts) / 1e9
        up = p.uplink
        self.radio = radio or RadioPrice(
            (up.fixed_joules or 0.0) + (up.tail_joules or 0.0), up.joules_per_byte or 0.0
        )
        self.awake_watts = model.input_watts(replace(idle, awake_share=1.0)) - self.idle_watts
        self.states = _states(p.idle_states, self.awake_watts, self.wake_j)
        self.gating = _gating(model)
        self._watts: dict[tuple[str, int, float, int | None, int | None], float] = {}
        beside_hz = p.clusters[0].floor_hz
        self.cycle_j = (self.race_watts("cpu", beside_hz, 1.0) - self.idle_watts) / beside_hz

    def race_watts(
        self, device: str, hz: int, cores: float, memory_hz: int | None = None,
        cpu_hz: int | None = None,
    ) -> float:  # fmt: skip
        """Input watts with `cores` busy at a clock, spread over the clusters by their size."""
        key = (device, hz, cores, memory_hz, cpu_hz)
        if key not in self._watts:
            load = self.race_load(device, hz, cores, cpu_hz)
            if memory_hz is not None:
                load = replace(load, memory_hz=min(memory_hz, load.memory_hz))
            self._watts[key] = self.model.input_watts(load)
        return self._watts[key]

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """Modelled watts of idle cores at `high_hz` above those at `low_hz`."""
        high, low = (
            replace(self.idle_load, cluster_hz=(hz,) * len(self.idle_load.cluster_hz))
            for hz in (high_hz, low_hz)
        )
        return self.model.input_watts(high) - self.model.input_watts(low)

    def race_load(self, device: str, hz: int, cores: float, cpu_hz: int | None = None) -> BoardLoad:
        """Load of a race without memory traffic.  With a GPU, the CPU cores wait at `cpu_hz`."""
        p, idle = self.model.profile, self.idle_load
        part = min(1.0, cores / p.core_count)
        busy = tuple(part * len(c.cores) for c in p.clusters)
        awake = replace(idle, awake_share=1.0, memory_hz=self.memory_hz, busy_cores=busy)
        if device == "gpu":
            busy_gpu = replace(awake, gpu_hz=hz, gpu_busy=1.0, gpu_awake=1.0)
            return busy_gpu if cpu_hz is None else replace(busy_gpu, cluster_hz=_clocks(p, cpu_hz))
        return replace(awake, cluster_hz=_clocks(p, hz))


@dataclass(frozen=True)
class Measured:
    """Calibration of one processor over its clocks."""

    curve: CalibrationCurve
    cores: float
    """Cores busy during the calibration; with a GPU, those that waited for it."""

    def watts(self, hz: int) -> float:
        """Watts above idle at a clock: measured, else by the fitted law."""
        watts = next((p.watts for p in self.curve.points if p.hz == hz), None)
        total = self.curve.fitted(hz).watts if watts is None else watts
        return total - self.curve.idle_watts


class MeasuredTariff:
    """Prices of a base tariff with a calibration's race watts."""

    def __init__(self, base: Tariff, cpu: Measured, gpu: Measured | None = None) -> None:
        """`gpu`: calibration of GPU kernels, where one exists."""
        self._base, self._cpu, self._gpu = base, cpu, gpu
        self.idle_watts = cpu.curve.idle_watts
        self.wake_j, self.byte_j, self.cycle_j = base.wake_j, base.byte_j, base.cycle_j
        self.sleeps, self.radio = base.sleeps, base.radio
        self.awake_watts, self.states, self.gating = base.awake_watts, base.states, base.gating

    def race_watts(
        self, device: str, hz: int, cores: float, memory_hz: int | None = None,
        cpu_hz: int | None = None,
    ) -> float:  # fmt: skip
        """Watts at a clock: measured, else by the fitted law.

        For another number of cores the measured watts above idle are scaled by the model's ratio,
        since memory and the awake share draw the same for one core.  A memory cap saves what the
        model says.  GPU figures include the waiting cores at the clock of the calibration.
        """
        if memory_hz is not None:
            free, capped = (
                self._base.race_watts(device, hz, cores, m, cpu_hz) for m in (None, memory_hz)
            )
            whole = self.race_watts(device, hz, cores, None, cpu_hz)
            return max(self.idle_watts, whole - (free - capped))
        if device == "cpu":
            return self.idle_watts + self._cpu.watts(hz) * self._share(hz, cores)
        if self._gpu is not None:
            return self.idle_watts + self._gpu.watts(hz)
        above = self._base.race_watts(device, hz, cores, None, cpu_hz) - self._base.idle_watts
        return self.idle_watts + above

    def _share(self, hz: int, cores: float) -> float:
        """Factor from the measured number of cores to `cores`, of watts above idle."""
        mine, theirs = (
            self._base.race_watts("cpu", hz, n) - self._base.idle_watts
            for n in (cores, self._cpu.cores)
        )
        return mine / theirs if theirs > 0 else cores / self._cpu.cores

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """As modelled; a calibration does not measure it."""
        return self._base.standing_watts(high_hz, low_hz)


class Unpriced:
    """Zero prices: the tariff of a board without a model, for policies that need no prices."""

    def __init__(self) -> None:
        self.idle_watts = self.wake_j = self.byte_j = self.cycle_j = 0.0
        self.awake_watts = 0.0
        self.states: tuple[Sleep, ...] = ()
        self.sleeps: tuple[Sleep, ...] = ()
        self.gating, self.radio = Gating(), RadioPrice(0.0, 0.0)

    def race_watts(
        self, device: str, hz: int, cores: float, memory_hz: int | None = None,
        cpu_hz: int | None = None,
    ) -> float:  # fmt: skip
        """Always 0."""
        return 0.0

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """Always 0."""
        return 0.0


def _clocks(profile: BoardProfile, hz: int) -> tuple[int, ...]:
    """The clock of each cluster, limited to its range."""
    return tuple(min(max(hz, c.opps[0].hz), c.opps[-1].hz) for c in profile.clusters)


def _states(states: Sequence[IdleState], awake_watts: float, wake_j: float) -> tuple[Sleep, ...]:
    """The deepest idle state compared with the shallowest: it saves the watts of being awake and
    costs one wake.  States between have no public figure.  Where the profile has no exit time, the
    wake's joules alone stand for it."""
    if len(states) < 2 or not awake_watts:
        return ()
    deepest = states[-1]
    return (Sleep(deepest.name, awake_watts, deepest.exit_us or 0.0, wake_j),)


def _gating(model: PowerModel) -> Gating:
    """Gating of the profile's GPU; zero without a GPU."""
    p = model.profile
    if p.gpu is None:
        return Gating()
    idle = model.idle_load()
    powered = model.input_watts(replace(idle, gpu_awake=1.0)) - model.input_watts(idle)
    wakes = [t.figure.value for t in p.figures("gpu_wake") if t.figure.value is not None]
    priced = all(
        any(t.figure.value is not None for t in p.figures(term))
        for term in ("gpu_dynamic", "gpu_awake")
    )
    delay_us = 1e3 * (p.gpu.railgate_delay_ms or 0.0)
    return Gating(powered, delay_us, sum(wakes) if wakes else None, priced)


def suspend_cost(
    tariff: Tariff | None, profile: BoardProfile | None, watts: float, cores_hz: int
) -> SuspendCost | None:
    """What a suspend of this board draws; `watts`: as configured, 0 for the profile's.  None where
    it is not known.  Entering and leaving are taken to keep one core busy at its highest clock,
    `cores_hz`."""
    known = None if profile is None or profile.suspend is None else profile.suspend.watts
    source = "energy.suspend_watts" if watts else "" if known is None else known.source
    value = watts or (None if known is None else known.value)
    if tariff is None or value is None:
        return None
    busy = tariff.race_watts("cpu", cores_hz, 1.0) if cores_hz else 0.0
    busy = max(tariff.idle_watts, busy)
    cost = SuspendCost(tariff.idle_watts, value, source, busy)
    if profile is None or profile.suspend is None:
        return cost
    enter, leave = profile.suspend.enter_s.value, profile.suspend.leave_s.value
    if enter is None or leave is None:
        return cost
    return replace(cost, transition_us=1e6 * (enter + leave), leave_us=1e6 * leave)
