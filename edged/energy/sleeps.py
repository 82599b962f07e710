"""Sleeps and switches that must be asked for: `allow = offline:0.05, gpu_pm` (config: a list).

    offline[:WATTS]   cores are switched off between races, all but the first of each clock domain;
                      WATTS: what a person measured that to save.  No profile has a figure of it,
                      and without one nothing says that it pays, so it is never done
    gpu_pm            the GPU may be gated while a policy runs (`power/control` = auto)
    emc               caps on the memory's clock; a dial like others (`edged.energy.limits`)
    uclamp            policies ask for the CPU's clock of races by clamping the daemon's own threads
                      instead of by the limits of all (`edged.energy.clamps`)

What they need is owned like limits: the originals are on the disk before the first write, and come
back on every way out.  What entering and leaving costs is measured by doing it once, when a policy
begins.  A board or kernel that lacks one of them runs without, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edged.energy.clamps import Clamps
from edged.errors import ConfigError
from governors.actuators.base import Switch
from governors.actuators.ownership import Ownership
from governors.cost import Sleep, Tariff
from governors.errors import ActuatorError
from governors.sysfs import Sysfs

OFFLINE, GPU_PM, UCLAMP = "offline", "gpu_pm", "uclamp"
GPU_POWER = "gpu.power"
ON, OFF = "1", "0"


def parse_allowed(words: Iterable[str]) -> dict[str, float]:
    """What may be set that is set only if asked for, and what it saves (W; 0: not known).

    Raises ConfigError.
    """
    found = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            watts = float(text or 0.0)
        except ValueError:
            watts = -1.0
        if not 0.0 <= watts < 1e3 or (text and name != OFFLINE):
            raise ConfigError(f"allow: {word!r} is none; write e.g. emc or {OFFLINE}:0.05 (W)")
        found[name] = watts
    return found


class Sleeps:
    """Those of one board that were asked for."""

    def __init__(
        self,
        sysfs: Sysfs,
        found: Sequence[Switch],
        allowed: dict[str, float],
        simulated: bool = False,
    ) -> None:
        """`found`: all switches that the board has; `simulated`: it is one that is not there."""
        self.refused: dict[str, str] = {}
        """What was asked for and cannot be, and why."""
        self.switches: list[Switch] = []
        """What must be owned for the rest."""
        self._watts = allowed.get(OFFLINE, 0.0)
        self._cores = _spare(sysfs, found) if OFFLINE in allowed else []
        if OFFLINE in allowed and not self._cores:
            self.refused[OFFLINE] = "no core of this board can be switched off"
        elif OFFLINE in allowed and not self._watts:
            self.refused[OFFLINE] = f"what it saves is not known: say {OFFLINE}:WATTS"
            self._cores = []
        gpu = [s for s in found if s.name == GPU_POWER and GPU_PM in allowed]
        if GPU_PM in allowed and not gpu:
            self.refused[GPU_PM] = "this board's GPU has no power/control"
        self.clamps = self._clamps(sysfs, simulated) if UCLAMP in allowed else None
        """Of the daemon's own threads, where that was asked for and the kernel has them."""
        self.switches = [*self._cores, *gpu]
        self._gpu = gpu
        self._ours: Ownership | None = None
        self._asleep: list[Switch] = []
        self.entered = 0
        self.enter_us = self.leave_us = 0.0
        """Measured, of all of it."""

    def _clamps(self, sysfs: Sysfs, simulated: bool) -> Clamps | None:
        if simulated:
            self.refused[UCLAMP] = "unknown: no profile tells whether its board's kernel has it"
            return None
        try:
            return Clamps(sysfs)
        except ActuatorError as problem:
            self.refused[UCLAMP] = str(problem)
            return None

    def take(self, ours: Ownership, tariff: Tariff | None) -> None:
        """They are ours: measure what they cost, and let the tariff offer them."""
        self._ours, usable = ours, []
        for switch in self._cores:
            if switch.name in ours.refused or switch.name in ours.dormant:
                self.refused[switch.name] = ours.refused.get(switch.name, "it is gone")
                continue
            try:
                if ours.set(switch, OFF) != OFF:
                    continue
                ours.set(switch, ON)
                usable.append(switch)
            except ActuatorError as problem:
                self.refused[switch.name] = str(problem)
        self._cores = usable
        self.enter_us = sum(ours.costs[s.name].mean_us for s in usable)
        self.leave_us = sum(ours.leaving[s.name].mean_us for s in usable if s.name in ours.leaving)
        if tariff is not None and usable:
            us = self.enter_us + self.leave_us
            tariff.sleeps = (Sleep(OFFLINE, self._watts, us, tariff.awake_watts * us / 1e6),)
        for switch in self._gpu:
            self._set(switch, "auto")

    def enter(self, names: Sequence[str]) -> None:
        """Until `leave`."""
        if OFFLINE not in names or self._ours is None or self._asleep:
            return
        self._asleep = [switch for switch in self._cores if self._set(switch, OFF)]
        self.entered += bool(self._asleep)

    def leave(self) -> None:
        """A race is about to start."""
        asleep, self._asleep = self._asleep, []
        for switch in asleep:
            self._set(switch, ON)

    def released(self) -> None:
        """They are not ours any more, and as they were before."""
        self._ours, self._asleep = None, []
        if self.clamps is not None:
            self.clamps.release()

    def describe(self) -> dict[str, Any]:
        """For people."""
        return {
            "switches": [switch.name for switch in self.switches],
            "refused": self.refused, "entered": self.entered,
            "enter_us": round(self.enter_us, 1), "leave_us": round(self.leave_us, 1),
        }  # fmt: skip

    def _set(self, switch: Switch, value: str) -> bool:
        """Set it, or leave it alone from now on."""
        assert self._ours is not None
        try:
            self._ours.set(switch, value)
        except ActuatorError as problem:
            self.refused[switch.name] = str(problem)
            self._cores = [core for core in self._cores if core.name != switch.name]
            return False
        return True


def _spare(sysfs: Sysfs, found: Sequence[Switch]) -> list[Switch]:
    """The cores that may be switched off: each clock domain keeps its first one, and its limits."""
    first = {0}
    for policy in sysfs.list("/sys/devices/system/cpu/cpufreq"):
        related = sysfs.get(f"/sys/devices/system/cpu/cpufreq/{policy}/related_cpus") or ""
        first |= {min(int(core) for core in related.split())} if related.split() else set()
    cores = [s for s in found if s.kind == "core"]
    return [s for s in cores if int(s.name.rpartition(".")[2]) not in first]
