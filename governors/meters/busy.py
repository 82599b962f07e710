"""How many cores were busy: beside it a frozen sensor shows, and other processes' share is known.

From the first line of /proc/stat, in ticks of USER_HZ: user, nice, system, idle, iowait, irq,
softirq, steal; guests are counted in user already (proc_stat(5)).
"""

from __future__ import annotations

import os

from governors.sysfs import Sysfs

STAT = "/proc/stat"
FIELDS = 8
IDLE = (3, 4)


class BusyCores:
    """Mean numbers of busy cores from one call to the next."""

    def __init__(self, sysfs: Sysfs, ticks_per_s: int | None = None) -> None:
        self._sysfs = sysfs
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        self._last: tuple[int, int] | None = None

    def since_last(self, now_us: int) -> float | None:
        """Of the time since the last call; None at first, and where it is not known."""
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
