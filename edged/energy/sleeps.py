"""Sleeps and switches on request: `allow = offline:0.05, gpu_pm` (configuration: a list).

    offline[:WATTS]   cores are taken offline between races, except the first of each clock domain;
                      WATTS: measured savings.  No profile has this figure; without it the cost
                      model cannot tell whether it pays, so it is never done
    gpu_pm            the GPU may be gated while a policy runs (`power/control` = auto)
    emc               caps on the memory clock; a dial like others (`edged.energy.limits`)
    uclamp            policies request the CPU clock of races by clamps on the daemon's own threads
                      instead of by limits (`edged.energy.clamps`)

Switches are owned like limits: the originals are on disk before the first write and are restored on
every exit.  Entry and exit costs are measured by doing both once when a policy starts (for a GPU
that may be gated: writing `on` returns when it is awake). On a board or kernel without one of them
the daemon runs without it and reports that.  A failed setting is retried after AGAIN_US. Cores that
are never taken offline are measured again now and then, so that one slow measurement does not
disable them for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from edged.energy.clamps import Clamps
from edged.errors import ConfigError
from governors.actuators.base import Switch, WriteCost
from governors.actuators.cpufreq import cpu_list
from governors.actuators.ownership import Ownership
from governors.errors import ActuatorError
from governors.quantities import POWER
from governors.sysfs import CPUFREQ, Sysfs
from governors.tariff import Sleep, Tariff

OFFLINE, GPU_PM, UCLAMP = "offline", "gpu_pm", "uclamp"
GPU_POWER = "gpu.power"
ON, OFF = "1", "0"
GPU_ON, GPU_AUTO = "on", "auto"
_SAVING = replace(POWER, zero=True)
AGAIN_US = 5_000_000
"""Failed settings are retried after this time."""


def parse_allowed(words: Iterable[str]) -> dict[str, float]:
    """Optional settings by name with their savings (W; 0: unknown). Raises ConfigError."""
    found = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            watts = _SAVING.parse_text(text) if text else 0.0
        except ValueError:
            watts = -1.0
        if not 0.0 <= watts < 1e3 or (text and name != OFFLINE):
            advice = f"write e.g. emc, {OFFLINE}:0.05 (W) or {OFFLINE}:50mW"
            raise ConfigError(f"allow: {word!r} is not known; {advice}")
        found[name] = watts
    return found


class Sleeps:
    """Requested sleeps of one board."""

    def __init__(
        self,
        sysfs: Sysfs,
        found: Sequence[Switch],
        allowed: dict[str, float],
        simulated: bool = False,
    ) -> None:
        """`found`: all switches of the board; `simulated`: whether the board is simulated."""
        self.refused: dict[str, str] = {}
        """Requested but impossible, with the reason."""
        self._watts = allowed.get(OFFLINE, 0.0)
        self._cores = _spare(sysfs, found) if OFFLINE in allowed else []
        if OFFLINE in allowed and not self._cores:
            self.refused[OFFLINE] = "no core of this board can be switched off"
        elif OFFLINE in allowed and not self._watts:
            self.refused[OFFLINE] = f"its savings are unknown: write {OFFLINE}:WATTS"
            self._cores = []
        self._gpu = [s for s in found if s.name == GPU_POWER and GPU_PM in allowed]
        if GPU_PM in allowed and not self._gpu:
            self.refused[GPU_PM] = "this board's GPU has no power/control"
        self.clamps = self._clamps(sysfs, simulated) if UCLAMP in allowed else None
        """Clamps on the daemon's own threads, where requested and supported."""
        self.switches = [*self._cores, *self._gpu]
        """Switches that must be owned for the others."""
        self._ours: Ownership | None = None
        self._tariff: Tariff | None = None
        self._refused_us: dict[str, int] = {}
        """Time of the last failure by switch; such switches are not used unless asleep."""
        self._asleep: list[Switch] = []
        self.entered = 0
        self._unused: tuple[int, int, int] = (-1, 0, AGAIN_US)
        """Number of entries at the last pricing, its time, and the time until the next."""
        self.costs: dict[str, tuple[WriteCost, WriteCost]] = {}
        """Measured cost to enter and leave, by switch."""

    @property
    def enter_us(self) -> float:
        """Time to take all usable cores offline, one after another."""
        return sum(self.costs[core.name][0].usual_us for core in self._usable())

    @property
    def leave_us(self) -> float:
        """Time to bring them online again."""
        return sum(self.costs[core.name][1].usual_us for core in self._usable())

    def _clamps(self, sysfs: Sysfs, simulated: bool) -> Clamps | None:
        if simulated:
            self.refused[UCLAMP] = "unknown: no profile says whether the board's kernel supports it"
            return None
        try:
            return Clamps(sysfs)
        except ActuatorError as problem:
            self.refused[UCLAMP] = str(problem)
            return None

    def take(self, ours: Ownership, tariff: Tariff | None) -> None:
        """The switches are owned now: measure their costs and offer them in the tariff."""
        self._ours, self._tariff = ours, tariff
        self._unused = (-1, 0, AGAIN_US)
        self._refused_us.clear()
        for switch in self.switches:
            self._measure(switch, 0)
        self._offer()

    def again(self, at_us: int) -> None:
        """Retry failed settings after AGAIN_US. Measure unused cores again, each time after twice
        the interval."""
        if self._ours is None:
            return
        late = [s for s in self.switches if at_us - self._refused_us.get(s.name, at_us) >= AGAIN_US]
        entered, since_us, pause_us = self._unused
        if entered != self.entered:
            self._unused = (self.entered, at_us, AGAIN_US)
        elif at_us - since_us >= pause_us and not self._asleep:
            self._unused = (entered, at_us, 2 * pause_us)
            late += self._usable()
        if not late:
            return
        for switch in late:
            self._measure(switch, at_us)
        self._asleep = [core for core in self._asleep if core.name in self._refused_us]
        self._offer()

    def enter(self, names: Sequence[str], at_us: int) -> None:
        """Sleep until `leave`."""
        if OFFLINE not in names or self._ours is None or self._asleep:
            return
        self._asleep = [core for core in self._usable() if self._set(core, OFF, at_us)]
        self.entered += bool(self._asleep)

    def leave(self, at_us: int) -> None:
        """A race is about to start.  A core that does not come back is retried later."""
        if self._asleep:
            waking = [core for core in self._asleep if core.name not in self._refused_us]
            woken = {core.name for core in waking if self._set(core, ON, at_us)}
            self._asleep = [core for core in self._asleep if core.name not in woken]

    def released(self) -> None:
        """The switches are no longer owned and have their original values."""
        self._ours, self._asleep = None, []
        if self.clamps is not None:
            self.clamps.release()

    def describe(self) -> dict[str, Any]:
        """For the status."""
        return {
            "switches": [switch.name for switch in self.switches],
            "refused": self.refused, "entered": self.entered,
            "enter_us": round(self.enter_us, 1), "leave_us": round(self.leave_us, 1),
        }  # fmt: skip

    def _usable(self) -> list[Switch]:
        """Cores that may be taken offline now."""
        if self._ours is None:
            return []
        return [core for core in self._cores if core.name not in self._refused_us]

    def _measure(self, switch: Switch, at_us: int) -> None:
        """Enter and leave once: a core is offline for a moment; a GPU is woken and may be gated
        again."""
        self._refused_us.pop(switch.name, None)
        self.refused.pop(switch.name, None)
        steps = (OFF, ON) if switch in self._cores else (GPU_ON, GPU_AUTO)
        for value in steps:
            if not self._set(switch, value, at_us):
                return

    def _offer(self) -> None:
        """Publish the sleep and its price in the tariff."""
        cores = self._usable()
        if self._tariff is None or not self._cores:
            return
        watts, us = self._watts * len(cores) / len(self._cores), self.enter_us + self.leave_us
        sleep = Sleep(OFFLINE, watts, us, self._tariff.awake_watts * us / 1e6)
        self._tariff.sleeps = (sleep,) if cores else ()

    def _set(self, switch: Switch, value: str, at_us: int) -> bool:
        """Set a switch and record the cost; on failure skip it for a while."""
        assert self._ours is not None
        started = perf_counter_ns()
        try:
            if self._ours.set(switch, value) != value:
                raise ActuatorError(f"{switch.name} did not become {value}")
        except ActuatorError as problem:
            self.refused[switch.name], self._refused_us[switch.name] = str(problem), at_us
            return False
        costs = self.costs.setdefault(switch.name, (WriteCost(), WriteCost()))
        costs[value in (ON, GPU_ON)].note((perf_counter_ns() - started) / 1000)
        return True


def _spare(sysfs: Sysfs, found: Sequence[Switch]) -> list[Switch]:
    """Cores that may be taken offline: each clock domain keeps its first core, and thereby its
    limits.  A core of an unknown domain stays online."""
    places = [f"{CPUFREQ}/{policy}" for policy in sysfs.list(CPUFREQ)]
    domains = [cpu_list(sysfs.get(f"{place}/related_cpus") or "") for place in places]
    first_cores = {0, *(domain[0] for domain in domains if domain)}
    named = {core for domain in domains for core in domain}
    numbers = ((int(s.name.rpartition(".")[2]), s) for s in found if s.kind == "core")
    return [s for n, s in numbers if n not in first_cores and (n in named or not domains)]
