"""Idle states and wakeups of the cores, and taking whole cores offline.

Always observed: `cpuN/cpuidle/stateM/{name,time,usage,disable}` (docs/hardware.md): µs in a state
and number of entries.  Every entry ends in a wakeup, so the wakeups per second are the entries of
all states per second.  A core that was offline meanwhile, or whose counters went back, is left out
of that interval rather than counted as zero.

Opt-in: `cpuN/online`, of every core except cpu0, which usually has no such file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns

from governors.actuators.base import Switch, WriteCost, finder
from governors.detect import DetectedBoard
from governors.sysfs import CPU, Sysfs


@finder
def cores(sysfs: Sysfs, board: DetectedBoard) -> Iterator[Switch]:
    """`core.N`: 1 online, 0 offline."""
    del board
    for core in _numbered(sysfs, CPU, "cpu"):
        path = f"{CPU}/cpu{core}/online"
        if core > 0 and sysfs.exists(path):
            yield Switch(f"core.{core}", "core", path, ("0", "1"))


@dataclass(frozen=True, slots=True)
class State:
    """Counters of one idle state of one core since boot."""

    name: str
    time_us: int
    usage: int
    disabled: bool


@dataclass(frozen=True, slots=True)
class IdleCounts:
    """Counters of all cores at one time, without unreadable cores."""

    at_us: int
    cores: dict[int, tuple[State, ...]]


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle times and wakeups between two readings."""

    spent_us: int
    cores: tuple[int, ...]
    """Cores included."""
    share: dict[str, float]
    """Idle state -> share of these cores' time, 0 to 1; the rest they were awake."""
    wakeups_per_s: float
    """Of all these cores together."""
    disabled: tuple[str, ...]
    """States that are disabled (as by jetson_clocks) on any of them."""

    @property
    def awake_share(self) -> float:
        """Share of these cores' time outside every idle state."""
        return max(0.0, 1.0 - sum(self.share.values()))


def idle_between(before: IdleCounts, after: IdleCounts) -> Idle | None:
    """The interval between two readings; None where no core is comparable."""
    spent_us = after.at_us - before.at_us
    times: dict[str, int] = {}
    disabled: set[str] = set()
    counted, entries = [], 0
    for core, states in after.cores.items():
        pairs = list(zip(before.cores.get(core, ()), states, strict=False))
        if not pairs or len(pairs) != len(states) or any(not _monotonic(*pair) for pair in pairs):
            continue
        counted.append(core)
        for old, new in pairs:
            times[new.name] = times.get(new.name, 0) + new.time_us - old.time_us
            entries += new.usage - old.usage
            disabled.update({new.name} if new.disabled else ())
    if spent_us <= 0 or not counted:
        return None
    share = {name: min(1.0, us / (spent_us * len(counted))) for name, us in times.items()}
    rate = entries * 1e6 / spent_us
    return Idle(spent_us, tuple(counted), share, rate, tuple(sorted(disabled)))


class IdleStates:
    """Reads a board's idle states; their paths are discovered once."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._names: dict[int, dict[str, str]] = {}
        self.cost = WriteCost()
        """Cost of a reading."""
        for core in _numbered(sysfs, CPU, "cpu"):
            at = f"{CPU}/cpu{core}/cpuidle"
            states = [f"{at}/state{number}" for number in _numbered(sysfs, at, "state")]
            names = {state: sysfs.get(f"{state}/name") or state.rpartition("/")[2]
                     for state in states}  # fmt: skip
            if names:
                self._names[core] = names

    def read(self, now_us: int) -> IdleCounts:
        """Current counters; unreadable cores are left out."""
        started = perf_counter_ns()
        counts: dict[int, tuple[State, ...]] = {}
        for core, names in self._names.items():
            states = [self._state(path, name) for path, name in names.items()]
            complete = tuple(state for state in states if state is not None)
            if len(complete) == len(states):
                counts[core] = complete
        self.cost.note((perf_counter_ns() - started) / 1000)
        return IdleCounts(now_us, counts)

    def _state(self, path: str, name: str) -> State | None:
        time_us, usage = (self._sysfs.get_int(f"{path}/{what}") for what in ("time", "usage"))
        if time_us is None or usage is None:
            return None
        return State(name, time_us, usage, self._sysfs.get(f"{path}/disable") == "1")


def _monotonic(old: State, new: State) -> bool:
    return old.name == new.name and new.time_us >= old.time_us and new.usage >= old.usage


def _numbered(sysfs: Sysfs, directory: str, prefix: str) -> list[int]:
    names = (re.fullmatch(rf"{prefix}(\d+)", name) for name in sysfs.list(directory))
    return sorted(int(name[1]) for name in names if name)
