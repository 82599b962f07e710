"""Busy cores from /proc/stat, for the detection of frozen sensors and other processes' load.

The first line counts ticks of USER_HZ: user, nice, system, idle, iowait, irq, softirq, steal.
Guest time is part of user (proc_stat(5)).
"""

from __future__ import annotations

import os

from governors.sysfs import Sysfs

STAT = "/proc/stat"
FIELDS = 8
IDLE = (3, 4)


class BusyCores:
    """Mean number of busy cores between calls."""

    def __init__(self, sysfs: Sysfs, ticks_per_s: int | None = None) -> None:
        self._sysfs = sysfs
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        self._last: tuple[int, int] | None = None

    def since_last(self, now_us: int) -> float | None:
        """Busy cores since the previous call; None on the first call and where /proc/stat cannot be
        read."""
        ticks = self._ticks()
        before = self._last
        self._last = None if ticks is None else (now_us, ticks)
        if before is None or ticks is None or now_us <= before[0] or ticks < before[1]:
            return None
        return (ticks - before[1]) / self._ticks_per_s / ((now_us - before[0]) / 1e6)

    def _ticks(self) -> int | None:
        first = (self._sysfs.get(STAT) or "").split("\n", 1)[0].split()
        if first[:1] != ["cpu"] or len(first) <= FIELDS:
            return None
        try:
            return sum(int(t) for i, t in enumerate(first[1 : FIELDS + 1]) if i not in IDLE)
        except ValueError:
            return None
