"""A race's clock asked for by clamping this daemon's own threads: `allow = uclamp`.

Instead of moving the limits of a clock domain, which hold for every process on the board, the
threads that race say which clock they want, and the kernel's governor obeys while they run
(kernel: Documentation/scheduler/sched-util-clamp.rst).  It needs no right, touches nobody else's
work, and ends with the threads, so that there is nothing to restore after a crash.  It is a hint:
whoever else runs on a core may have it faster (max aggregation), so the clock that races met is
read and not assumed.

A clamp is a share of the highest clock, 0 to 1024.  Before Linux 6.8 schedutil adds a quarter to
what was clamped (`map_util_perf`), since then only to what was not ("sched/cpufreq: Rework
schedutil governor performance estimation", commit 9c0b4bb7f630).

What no profile knows is whether a board's kernel has clamps: on a board that is not there they are
unknown, and nothing is clamped.
"""

from __future__ import annotations

import platform
import re
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from governors.actuators.base import WriteCost
from governors.actuators.uclamp import FULL, Clamp, UtilClamp
from governors.errors import ActuatorError
from governors.sysfs import Sysfs

CPUFREQ = "/sys/devices/system/cpu/cpufreq"
SCHEDUTIL = "schedutil"
EXACT_SINCE = (6, 8)
"""Linux from which on a clamp is no more raised by a quarter."""


class Clamps:
    """The clocks that are asked for, by domain; the highest holds for all threads."""

    def __init__(self, sysfs: Sysfs) -> None:
        """Raises ActuatorError where this kernel has no clamps, or its governor ignores them."""
        governors = {
            sysfs.get(f"{CPUFREQ}/{policy}/scaling_governor") for policy in sysfs.list(CPUFREQ)
        }
        if governors != {SCHEDUTIL}:
            found = ", ".join(sorted(str(g) for g in governors)) or "there is none"
            raise ActuatorError(f"uclamp: acts under {SCHEDUTIL} only, not under {found}")
        tops = (sysfs.get_int(f"{CPUFREQ}/{p}/cpuinfo_max_freq") for p in sysfs.list(CPUFREQ))
        self._top_hz = 1000 * max(top or 0 for top in tops)
        self._headroom = 1.0 if _release() >= EXACT_SINCE else 1.25
        self._kernel = UtilClamp()
        self._asked: dict[str, int] = {}
        self._now: Clamp | None = None
        self.tasks: Callable[[], Sequence[int]] = lambda: ()
        """Threads that race beside the calling one."""
        self.entering, self.leaving = WriteCost(), WriteCost()
        """Measured, of all threads together."""

    def ask(self, domain: str, hz: int) -> None:
        """Run the races of a domain at a clock.  Raises ActuatorError."""
        self._asked[domain] = hz
        self._follow()

    def drop(self, domain: str) -> None:
        """A domain asks for nothing any more."""
        if self._asked.pop(domain, None) is not None:
            self._follow()

    def release(self) -> None:
        """Give the threads back what they had."""
        self._asked.clear()
        self._follow()

    def measure(self) -> float:
        """What entering and leaving take together (µs), by clamping to what lets all through."""
        self._enter(Clamp())
        self._leave()
        return self.entering.usual_us + self.leaving.usual_us

    def told(self) -> dict[str, Any]:
        """For people: what was asked for, and what that has taken."""
        return {
            "times": self.entering.count,
            "enter_us": round(self.entering.usual_us, 1),
            "leave_us": round(self.leaving.usual_us, 1),
        }

    def _follow(self) -> None:
        """Clamp to the highest clock that is asked for."""
        if not self._asked:
            if self._now is not None:
                self._leave()
            return
        share = max(self._asked.values()) / self._top_hz / self._headroom
        util = min(FULL, int(FULL * share))
        if self._now != Clamp(util, util):
            self._enter(Clamp(util, util))

    def _enter(self, clamp: Clamp) -> None:
        started = perf_counter_ns()
        for task in (threading.get_native_id(), *self.tasks()):
            self._kernel.clamp(task, clamp)
        self.entering.note((perf_counter_ns() - started) / 1000)
        self._now = clamp

    def _leave(self) -> None:
        started = perf_counter_ns()
        self._kernel.release()
        self.leaving.note((perf_counter_ns() - started) / 1000)
        self._now = None


def _release() -> tuple[int, int]:
    """Linux's version."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)
