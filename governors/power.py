"""Power model of a board: watts at given clocks, sleep states and work.  Sans-IO.

For every rail

    P(rail) = idle(rail) + sum over terms on it and on the rails that are a part of it

      term             the figure is multiplied by                                      unit
      awake            share of time in which a core is not in its deepest idle state   W
      step             the same, where the fastest CPU clock is at least step_hz        W
      core_dynamic     sum over clusters of busy cores x GHz x V^2                      W/(GHz V2)
      core_busy        busy cores                                                       W
      gpu_awake        share of time in which the GPU is powered: work, railgate delay  W
      gpu_dynamic      share of time in which it works x GHz                            W/GHz
      gpu_wake         wakes of a gated GPU per second                                  J
      memory_clock     GHz of the memory clock above its lowest                         W/GHz
      memory_traffic   GB/s moved                                                       W/(GB/s)
      wake             wakeups of idle cores per second                                 J

P(input) is the sum of the rails that make the input, and the uplink.  V is in volts where the
voltages of the operating points are public; elsewhere it is relative to the highest clock and has
the shape that the profile assumes.  Figures and errors are the profile's.  A term without a public
figure is left out and named by `unpriced`. Errors are taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from governors.profile import BoardProfile, Cluster, Volts


@dataclass(frozen=True, slots=True)
class BoardLoad:
    """Load of a board, as means over some time."""

    cluster_hz: tuple[int, ...]
    """Clock of each cluster while its cores are busy."""
    busy_cores: tuple[float, ...]
    """Mean number of busy cores of each cluster."""
    awake_share: float
    """Share of time in which at least one core is outside its deepest idle state.  The model raises
    it to the share in which a core is busy."""
    wakeups_per_s: float
    gpu_hz: int
    gpu_busy: float
    """Share of time in which the GPU works, 0 to 1."""
    gpu_awake: float
    """Share of time in which it is powered.  The model raises it to `gpu_busy`."""
    memory_hz: int
    memory_gbytes_per_s: float
    uplink_watts: float = 0.0
    gpu_wakeups_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Influence:
    """Range of the input power over all clocks and sleep states that may be set, W."""

    idle_min: float
    """No load: lowest clocks, all asleep, GPU gated."""
    idle_max: float
    """No load: highest clocks, held awake, GPU powered (as after `jetson_clocks`)."""
    full_min: float
    """Every core busy at the lowest clocks."""
    full_max: float
    """Every core busy at the highest clocks."""
    idle_processors: float
    """Part of the idle power on rails of CPU and GPU, the only part that clocks and sleep states
    change.  0 where no such rail is known."""

    @property
    def idle_watts(self) -> float:
        """Part of the idle power that depends on settings."""
        return self.idle_max - self.idle_min

    @property
    def full_watts(self) -> float:
        """Part of the full-load power that depends on settings."""
        return self.full_max - self.full_min


def volts(cluster: Cluster, hz: float, shape: Volts | None) -> float:
    """Voltage at a clock: volts where the table has them, else relative to the highest clock.
    Interpolated between two points; clamped to the nearest point outside."""
    known = [(opp.hz, opp.volts) for opp in cluster.opps if opp.volts is not None]
    if not known:
        assert shape is not None, "a profile without voltages has a shape (checked when read)"
        x = hz / cluster.opps[-1].hz
        rise = (x - shape.knee) / (1 - shape.knee)
        return min(1.0, shape.floor + (1 - shape.floor) * max(0.0, rise))
    below = max((p for p in known if p[0] <= hz), default=known[0])
    above = min((p for p in known if p[0] >= hz), default=known[-1])
    if above[0] == below[0]:
        return below[1]
    return below[1] + (above[1] - below[1]) * (hz - below[0]) / (above[0] - below[0])


class PowerModel:
    """Power model of one board."""

    def __init__(self, profile: BoardProfile) -> None:
        self.profile = profile
        self._idle = {t.rail: t.figure for t in profile.figures("idle")}
        self._terms = [t for t in profile.terms if t.name != "idle"]
        self._wholes = {rail.name: _wholes(profile, rail.name) for rail in profile.rails}

    def amounts(self, load: BoardLoad) -> dict[str, float]:
        """The factor of each term's figure."""
        p = self.profile
        dynamic = busy_share = 0.0
        for cluster, hz, busy in zip(p.clusters, load.cluster_hz, load.busy_cores, strict=True):
            dynamic += busy * hz / 1e9 * volts(cluster, hz, p.volts) ** 2
            busy_share = max(busy_share, busy / len(cluster.cores))
        awake = min(1.0, max(load.awake_share, busy_share))
        fast = p.step_hz is not None and max(load.cluster_hz) >= p.step_hz
        lowest = p.memory.table_hz[0] if p.memory.table_hz else load.memory_hz
        return {
            "awake": awake,
            "step": awake if fast else 0.0,
            "core_dynamic": dynamic,
            "core_busy": sum(load.busy_cores),
            "gpu_awake": max(float(load.gpu_awake), load.gpu_busy),
            "gpu_dynamic": load.gpu_busy * load.gpu_hz / 1e9,
            "gpu_wake": load.gpu_wakeups_per_s,
            "memory_clock": max(0, load.memory_hz - lowest) / 1e9,
            "memory_traffic": load.memory_gbytes_per_s,
            "wake": load.wakeups_per_s,
        }

    def watts(self, load: BoardLoad) -> dict[str, float]:
        """Power of every rail whose idle power is known, W.

        The uplink is on the carrier board: `input_watts` includes it, no rail does.
        """
        amounts = self.amounts(load)
        watts = {rail: f.value for rail, f in self._idle.items() if f.value is not None}
        for term in self._terms:
            if term.figure.value is None:
                continue
            for rail in self._wholes[term.rail]:
                if rail in watts:
                    watts[rail] += term.figure.value * amounts[term.name]
        return watts

    def input_watts(self, load: BoardLoad) -> float:
        """Power of the board as far as `profile.input` covers it, W."""
        watts = self.watts(load)
        return sum(watts.get(rail, 0.0) for rail in self.profile.input) + load.uplink_watts

    def idle_watts(self) -> float:
        """Input power without load at the lowest clocks, W."""
        return self.input_watts(self.idle_load())

    def error_watts(self, load: BoardLoad) -> float:
        """One standard deviation of `input_watts`, W."""
        amounts = {**self.amounts(load), "idle": 1.0}
        variance = (self.profile.residual.error or 0.0) ** 2 * amounts["awake"]
        for term in self.profile.terms:
            counts = term.name != "idle" or term.rail in self.profile.input
            if counts and term.figure.error is not None:
                variance += (term.figure.error * amounts[term.name]) ** 2
        return math.sqrt(variance)

    def unpriced(self, load: BoardLoad) -> list[str]:
        """Terms of this load for which the board has no figure."""
        amounts = self.amounts(load)
        known = {t.name for t in self._terms if t.figure.value is not None}
        asked = {t.name for t in self._terms} - known
        asked |= {"memory_traffic", "gpu_dynamic", "gpu_awake", "gpu_wake", "wake"} - known
        missing = [name for name in amounts if name in asked and amounts[name] > 0]
        idle = (self._idle.get(rail) for rail in self.profile.input)
        return missing + ["idle"] * any(f is None or f.value is None for f in idle)

    def idle_load(self, highest: bool = False) -> BoardLoad:
        """No load: everything at its lowest and asleep, or at its highest and held awake."""
        p, at = self.profile, -1 if highest else 0
        return BoardLoad(
            cluster_hz=tuple(cluster.opps[at].hz for cluster in p.clusters),
            busy_cores=(0.0,) * len(p.clusters),
            awake_share=1.0 if highest else 0.0,
            wakeups_per_s=0.0,
            gpu_hz=p.gpu.opps[at].hz if p.gpu else 0,
            gpu_busy=0.0,
            gpu_awake=1.0 if highest and p.gpu else 0.0,
            memory_hz=p.memory.table_hz[at] if p.memory.table_hz else 0,
            memory_gbytes_per_s=0.0,
        )

    def full_load(self, hz: Mapping[int, int] | None = None, highest: bool = False) -> BoardLoad:
        """Every core busy at the lowest or the highest clocks; `hz` overrides clusters by index.
        The GPU does no work; it is powered only with `highest`."""
        load = self.idle_load(highest)
        clocks = tuple((hz or {}).get(i, clock) for i, clock in enumerate(load.cluster_hz))
        busy = tuple(float(len(cluster.cores)) for cluster in self.profile.clusters)
        return replace(load, cluster_hz=clocks, busy_cores=busy, awake_share=1.0)

    def influence(self, limits: Mapping[str, tuple[int, int]] | None = None) -> Influence:
        """Range of the input power that settings reach, idle and at full load.

        `limits`: ranges (Hz) of the knobs `cpu.policy0`, `gpu` and `emc`; by default those of the
        hardware.
        """
        loads = [
            self._within(load, limits or {})
            for load in (
                self.idle_load(), self.idle_load(highest=True),
                self.full_load(), self.full_load(highest=True),
            )
        ]  # fmt: skip
        idle = self.watts(loads[0])
        acted_on = {r.name for r in self.profile.rails if {"cpu", "gpu"} & {*r.feeds}}
        tops = [n for n in acted_on & idle.keys() if not acted_on & {*self._wholes[n][1:]}]
        idle_min, idle_max, full_min, full_max = map(self.input_watts, loads)
        acted = sum(idle[name] for name in tops)
        return Influence(idle_min, idle_max, full_min, full_max, acted)

    def _within(self, load: BoardLoad, limits: Mapping[str, tuple[int, int]]) -> BoardLoad:
        def clip(name: str, hz: int) -> int:
            low, high = limits.get(name, (hz, hz))
            return min(max(hz, low), high)

        names = [cluster.name for cluster in self.profile.clusters]
        return replace(
            load,
            cluster_hz=tuple(map(clip, names, load.cluster_hz)),
            gpu_hz=clip("gpu", load.gpu_hz),
            memory_hz=clip("emc", load.memory_hz),
        )

    def core_watts(self, cluster: int, hz: int, busy: float = 1.0) -> float:
        """Input power above idle of `busy` cores of one cluster, everything else asleep, W."""
        idle = self.idle_load()
        clocks = tuple(hz if i == cluster else low for i, low in enumerate(idle.cluster_hz))
        cores = tuple(busy if i == cluster else 0.0 for i in range(len(clocks)))
        load = replace(idle, cluster_hz=clocks, busy_cores=cores, awake_share=min(1.0, busy))
        return self.input_watts(load) - self.idle_watts()

    def optimum_hz(self, cluster: int, busy: float, whole_input: bool = False) -> int:
        """The clock with the least energy per cycle of `busy` cores.  Energy counts above idle,
        since the board idles after the work; with `whole_input` as if the board were switched off
        then."""
        base = self.idle_watts() if whole_input else 0.0
        return min(
            self.profile.clusters[cluster].choices_hz,
            key=lambda hz: (self.core_watts(cluster, hz, busy) + base) / hz,
        )


def _wholes(profile: BoardProfile, rail: str) -> list[str]:
    """The rail and every rail that includes it."""
    found, at = [], rail
    while at not in found:
        found.append(at)
        at = profile.rail(at).part_of or at
    return found
