"""Limits that the tree of a simulated board sets, and the speed of work under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from governors.profile import BoardProfile, Cluster
from governors.schedutil import Schedutil, Utilisation
from governors.simulated import layout
from governors.simulated.kernel import SimulatedSysfs, snap
from governors.simulated.throttle import ThermalThrottle
from governors.sysfs import CPU

Clocks = tuple[int, ...]
"""Hz by cluster."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Everything in the tree that affects the speed of work, read at one moment."""

    online: tuple[int, ...]
    """Online cores by cluster."""
    limits: tuple[tuple[int, int], ...]
    """Range that the kernel's governor of each cluster may choose from, Hz."""
    deep: bool
    """Whether idle cores may enter their deepest state."""
    memory_idle_hz: int
    memory_race_hz: int
    gpu_hz: int
    """Clock of a working GPU: the highest allowed one."""
    gpu_delay_us: float
    """Time that it stays powered; infinite where gating is off."""
    pulses: float = 1.0
    """Share of the clock's pulses that throttling lets through."""


def look(profile: BoardProfile, sysfs: SimulatedSysfs) -> Allowed:
    """Read the tree."""
    gpu_hz, delay_us = _gpu(profile, sysfs)
    idle_hz, race_hz = _memory(profile, sysfs)
    return Allowed(
        tuple(_online(cluster, sysfs) for cluster in profile.clusters),
        tuple(_limits(cluster, sysfs) for cluster in profile.clusters),
        sysfs.peek(f"{CPU}/cpu0/cpuidle/state{len(profile.idle_states) - 1}/disable") == "0",
        idle_hz,
        race_hz,
        gpu_hz,
        delay_us,
    )


def throttled(allowed: Allowed, throttle: ThermalThrottle) -> Allowed:
    """The same under throttling."""
    if not throttle.state:
        return allowed
    top = throttle.ceiling_hz()
    limits = tuple((min(low, top), min(high, top)) for low, high in allowed.limits)
    return replace(allowed, limits=limits, pulses=throttle.share)


@dataclass(frozen=True, slots=True)
class Race:
    """One piece of CPU work."""

    cycles: float
    memory_bytes: float
    cores: float
    """Cores that share the cycles; 0: all online cores."""


def busy_cores(race_cores: float, allowed: Allowed) -> float:
    """Number of cores that take part."""
    return min(race_cores or sum(allowed.online), sum(allowed.online))


def stretches(
    profile: BoardProfile, allowed: Allowed, race: Race, utilisation: Utilisation
) -> list[tuple[Clocks, float]]:
    """Clocks of a race and the time (µs) at each; updates `utilisation`.

    All clusters follow one utilisation, each inside its own limits.  The cycles are spread over
    their online cores.
    """
    total, cores = sum(allowed.online), busy_cores(race.cores, allowed)
    tables = [_choices(c, lim) for c, lim in zip(profile.clusters, allowed.limits, strict=True)]
    capacity_hz = max(cluster.opps[-1].hz for cluster in profile.clusters)
    law = Schedutil(sorted({hz for table in tables for hz in table}), capacity_hz)
    stall_us = stall(profile, allowed, race.memory_bytes)
    cycles = race.cycles / allowed.pulses
    found = []
    for hz, us in law.race(cycles / cores, stall_us, utilisation):
        clocks = tuple(
            snap(table, *limits, hz) for table, limits in zip(tables, allowed.limits, strict=True)
        )
        each = zip(allowed.online, clocks, strict=True)
        rate_hz = sum(n / total * cores * clock for n, clock in each)
        nominal_us = 1e6 * cycles / cores / hz + stall_us
        found.append((clocks, us / nominal_us * (1e6 * cycles / rate_hz + stall_us)))
    return found


def idle_clocks(profile: BoardProfile, allowed: Allowed, utilisation: Utilisation) -> Clocks:
    """Clocks that the governor leaves while nothing runs."""
    asked = 1.25 * utilisation.now
    return tuple(
        snap(_choices(c, limits), *limits, int(asked * c.opps[-1].hz))
        for c, limits in zip(profile.clusters, allowed.limits, strict=True)
    )


def stall(profile: BoardProfile, allowed: Allowed, memory_bytes: float) -> float:
    """Time (µs) of memory traffic at the specified peak, at the memory clock of a race."""
    memory = profile.memory
    if not memory_bytes or memory.peak_gbytes_per_s is None:
        return 0.0
    part = allowed.memory_race_hz / memory.table_hz[-1] if memory.table_hz else 1.0
    return memory_bytes / (memory.peak_gbytes_per_s * part * 1e3)


def _choices(cluster: Cluster, limits: tuple[int, int]) -> Sequence[int]:
    """Clocks inside the limits; where none is, the one that the driver uses."""
    inside = [hz for hz in cluster.choices_hz if limits[0] <= hz <= limits[1]]
    return inside or [snap(cluster.table_hz, *limits, limits[0])]


def _limits(cluster: Cluster, sysfs: SimulatedSysfs) -> tuple[int, int]:
    at = layout.policy_path(cluster)
    if not sysfs.exists(f"{at}/scaling_governor"):  # none of its cores is online
        return cluster.opps[0].hz, cluster.opps[0].hz
    low, high = (sysfs.peek_int(f"{at}/scaling_{n}_freq") * 1000 for n in ("min", "max"))
    governor = sysfs.peek(f"{at}/scaling_governor")
    if governor == "performance":
        return high, high
    if governor == "powersave" and not cluster.continuous:
        return low, low
    if governor == "userspace":
        now = sysfs.peek_int(f"{at}/scaling_cur_freq") * 1000
        return now, now
    return low, high


def _online(cluster: Cluster, sysfs: SimulatedSysfs) -> int:
    paths = [f"{CPU}/cpu{core}/online" for core in cluster.cores]
    return sum(not sysfs.exists(path) or sysfs.peek(path) != "0" for path in paths)


def _memory(profile: BoardProfile, sysfs: SimulatedSysfs) -> tuple[int, int]:
    table = profile.memory.table_hz
    if not table:
        return 0, 0
    if not sysfs.exists(layout.EMC_CAP):
        return table[0], table[-1]
    if sysfs.peek(f"{layout.EMC_RATE}/mrq_rate_locked") == "1":
        locked = sysfs.peek_int(f"{layout.EMC_RATE}/rate")
        return locked, locked
    cap = sysfs.peek_int(layout.EMC_CAP)
    allowed = [hz for hz in table if not cap or hz <= cap] or [table[0]]
    return allowed[0], allowed[-1]


def _gpu(profile: BoardProfile, sysfs: SimulatedSysfs) -> tuple[int, float]:
    if profile.gpu is None:
        return 0, 0.0
    device, node = layout.gpu_paths(profile)
    gated = sysfs.peek(f"{device}/railgate_enable") == "1"
    gated = gated and sysfs.peek(f"{device}/power/control") == "auto"
    delay_us = sysfs.peek_int(f"{device}/railgate_delay") * 1000
    return sysfs.peek_int(f"{node}/max_freq"), delay_us if gated else float("inf")
