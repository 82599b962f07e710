"""Time at each clock, counted by the kernel or sampled.

    /sys/devices/system/cpu/cpufreq/policyN/stats/time_in_state    `kHz ticks` a line, ticks of
        10 ms (kernel: Documentation/cpu-freq/cpufreq-stats.rst; needs CONFIG_CPU_FREQ_STAT)
    /sys/class/devfreq/NODE/trans_stat                             a table, its last column ms
        (kernel: Documentation/ABI/testing/sysfs-class-devfreq)

Counters that go back (a reloaded driver, a policy that was offline) restart from their new value.
Without counters the current clock is sampled and stands for the time since the previous sample:
`seen` instead of `counted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from governors.actuators.base import Knob
from governors.sysfs import Sysfs

TICK_US = 10_000
_ROW = re.compile(r"^\s*\*?\s*(\d{1,19})\s*:(.*)$", re.MULTILINE)
_TICKS = re.compile(r"^\s*(\d{1,19})\s+(\d{1,19})\s*$", re.MULTILINE)
COUNTED, SAMPLED = "counted", "seen"


def parse_time_in_state(text: str) -> dict[int, int]:
    """Clock in Hz -> µs; garbled lines are skipped."""
    return {1000 * int(khz): TICK_US * int(ticks) for khz, ticks in _TICKS.findall(text)}


def parse_trans_stat(text: str) -> dict[int, int]:
    """Clock in Hz -> µs; garbled lines are skipped."""
    found = {}
    for hz, rest in _ROW.findall(text):
        last = rest.split()[-1:]
        if last and re.fullmatch(r"[0-9]{1,19}", last[0]):
            found[int(hz)] = 1000 * int(last[0])
    return found


@dataclass(slots=True)
class _Watched:
    knob: Knob
    counters: str
    """The kernel's file; empty where there is none."""
    last: dict[int, int] = field(default_factory=dict)
    at_us: int = 0
    spent_us: dict[int, int] = field(default_factory=dict)


class Residency:
    """Time at each clock of a board's knobs since construction."""

    def __init__(self, sysfs: Sysfs, knobs: Iterable[Knob], now_us: int) -> None:
        self._sysfs = sysfs
        self._watched = [_Watched(knob, self._file(knob), at_us=now_us) for knob in knobs]
        for watched in self._watched:
            watched.last = self._counted(watched)

    def read(self, now_us: int) -> None:
        """Add the time since the previous call."""
        for watched in self._watched:
            if watched.counters:
                self._count(watched)
            else:
                self._sample(watched, now_us)
            watched.at_us = now_us

    def times(self) -> dict[str, tuple[str, dict[int, int]]]:
        """By knob: `counted` or `seen`, and µs at each Hz."""
        return {
            w.knob.name: (COUNTED if w.counters else SAMPLED, dict(sorted(w.spent_us.items())))
            for w in self._watched
        }

    def _file(self, knob: Knob) -> str:
        directory = knob.max_path.rpartition("/")[0]
        if not directory.startswith("/"):
            return ""
        for name in ("stats/time_in_state", "trans_stat"):
            path = f"{directory}/{name}"
            if self._sysfs.get(path):
                return path
        return ""

    def _counted(self, watched: _Watched) -> dict[int, int]:
        text = self._sysfs.get(watched.counters) if watched.counters else None
        if text is None:
            return {}
        cpu = watched.counters.endswith("time_in_state")
        return parse_time_in_state(text) if cpu else parse_trans_stat(text)

    def _count(self, watched: _Watched) -> None:
        now = self._counted(watched)
        for hz, us in now.items():
            new = us - watched.last.get(hz, 0)
            if new > 0:
                watched.spent_us[hz] = watched.spent_us.get(hz, 0) + new
        watched.last = now or watched.last

    def _sample(self, watched: _Watched, now_us: int) -> None:
        path = watched.knob.current_path
        value = self._sysfs.get_int(path) if path.startswith("/") else None
        if value is not None and now_us > watched.at_us:
            hz = value * watched.knob.unit_hz
            watched.spent_us[hz] = watched.spent_us.get(hz, 0) + now_us - watched.at_us
