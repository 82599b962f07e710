"""What a board charges for races, wakes, bytes and sleeps, for the cost model.  Sans-IO.

`ModelTariff` asks the board's power model; `MeasuredTariff` puts the watts that `edged calibrate`
measured of CPU and GPU in their place, at the number of cores that it measured with.  What the
profile does not price is zero here, as in the model, which names it.

While a race runs all cores are awake and the memory runs at the highest clock that is allowed; when
it is over it is at its lowest.  That is an assumption: the memory clock follows votes of CPU and
GPU that no public source gives in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from governors.curve import CalibrationCurve
from governors.power import BoardLoad, PowerModel
from governors.profile import BoardProfile, IdleState
from governors.tariff import Gating, RadioPrice, Sleep, Tariff


class ModelTariff:
    """By the power model of a board."""

    def __init__(
        self,
        model: PowerModel,
        sleeps: tuple[Sleep, ...] = (),
        memory_hz: int | None = None,
        idle_hz: int | None = None,
        radio: RadioPrice | None = None,
    ) -> None:
        """`sleeps`: what may be asked for; `memory_hz`: the memory clock in a race, by default the
        highest; `idle_hz`: the CPU clock that is left standing between races, by default the
        lowest; `radio`: the uplink's figures, by default the profile's."""
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
        """While `cores` are busy at a clock, spread over the clusters by their size."""
        key = (device, hz, cores, memory_hz, cpu_hz)
        if key not in self._watts:
            load = self.race_load(device, hz, cores, cpu_hz)
            if memory_hz is not None:
                load = replace(load, memory_hz=min(memory_hz, load.memory_hz))
            self._watts[key] = self.model.input_watts(load)
        return self._watts[key]

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """What the model says of idle cores at two clocks."""
        high, low = (
            replace(self.idle_load, cluster_hz=(hz,) * len(self.idle_load.cluster_hz))
            for hz in (high_hz, low_hz)
        )
        return self.model.input_watts(high) - self.model.input_watts(low)

    def race_load(self, device: str, hz: int, cores: float, cpu_hz: int | None = None) -> BoardLoad:
        """The load of a race, without its memory traffic; on a GPU cores wait at `cpu_hz`."""
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
    """What a calibration measured of a processor over its clocks."""

    curve: CalibrationCurve
    cores: float
    """How many were busy meanwhile; beside a GPU, those that wait for it."""

    def watts(self, hz: int) -> float:
        """Above idle: as measured, or by the fitted law."""
        watts = next((p.watts for p in self.curve.points if p.hz == hz), None)
        told = self.curve.fitted(hz).watts if watts is None else watts
        return told - self.curve.idle_watts


class MeasuredTariff:
    """A tariff with the watts of a calibration for races."""

    def __init__(self, base: Tariff, cpu: Measured, gpu: Measured | None = None) -> None:
        """`gpu`: of kernels on a GPU, where those were calibrated too."""
        self._base, self._cpu, self._gpu = base, cpu, gpu
        self.idle_watts = cpu.curve.idle_watts
        self.wake_j, self.byte_j, self.cycle_j = base.wake_j, base.byte_j, base.cycle_j
        self.sleeps, self.radio = base.sleeps, base.radio
        self.awake_watts, self.states, self.gating = base.awake_watts, base.states, base.gating

    def race_watts(
        self, device: str, hz: int, cores: float, memory_hz: int | None = None,
        cpu_hz: int | None = None,
    ) -> float:  # fmt: skip
        """Measured, or by the fitted law; other numbers of cores as the model has them beside those
        that were measured, since memory and what is awake draw as much for one; what a memory cap
        saves as modelled.  A GPU was measured with the cores that wait for it, at the clock that
        they had."""
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
        """Above idle, of what was measured at a clock."""
        mine, theirs = (
            self._base.race_watts("cpu", hz, n) - self._base.idle_watts
            for n in (cores, self._cpu.cores)
        )
        return mine / theirs if theirs > 0 else cores / self._cpu.cores

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """As modelled: it was not measured."""
        return self._base.standing_watts(high_hz, low_hz)


class Unpriced:
    """The tariff of a board without a model, for policies that ask for no price."""

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
        """None is known."""
        return 0.0

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """None is known."""
        return 0.0


def _clocks(profile: BoardProfile, hz: int) -> tuple[int, ...]:
    """Of each cluster; one that does not reach a clock runs at its highest."""
    return tuple(min(max(hz, c.opps[0].hz), c.opps[-1].hz) for c in profile.clusters)


def _states(states: Sequence[IdleState], awake_watts: float, wake_j: float) -> tuple[Sleep, ...]:
    """The deepest idle state, which is what the idle board is in: against the shallowest it saves
    what being awake draws, and takes a wake.  What lies between has no public figure.

    Where the profile does not say how long it takes to leave, that is in the wake's joules only.
    """
    if len(states) < 2 or not awake_watts:
        return ()
    deepest = states[-1]
    return (Sleep(deepest.name, awake_watts, deepest.exit_us or 0.0, wake_j),)


def _gating(model: PowerModel) -> Gating:
    """Of the profile's GPU; nothing where there is none."""
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
