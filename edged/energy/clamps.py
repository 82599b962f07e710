"""Clock requests by utilisation clamps on the daemon's own threads: `allow = uclamp`.

Limits of a clock domain apply to every process on the board.  With clamps, the racing threads
request a clock instead, and the kernel's governor follows while they run (kernel:
Documentation/scheduler/sched-util-clamp.rst). This needs no privilege, does not affect other
processes and ends with the threads, so nothing has to be restored after a crash.  It is a hint
only: another task on the core may raise the clock (max aggregation), so the clock of races is read
rather than assumed.

A clamp is a share of the highest clock, 0 to 1024. Before Linux 6.8 schedutil adds a quarter to the
clamped value (`map_util_perf`); since 6.8 it adds that to unclamped values only ("sched/cpufreq:
Rework schedutil governor performance estimation", commit 9c0b4bb7f630).

No profile says whether a board's kernel supports clamps, so on a simulated board nothing is
clamped.
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
from governors.sysfs import CPUFREQ, Sysfs

SCHEDUTIL = "schedutil"
EXACT_SINCE = (6, 8)
"""Linux version since which a clamp is not raised by a quarter."""


class Clamps:
    """Requested clocks by domain; the highest applies to all threads."""

    def __init__(self, sysfs: Sysfs) -> None:
        """Raises ActuatorError where the kernel has no clamps or its governor ignores them."""
        governors = {
            sysfs.get(f"{CPUFREQ}/{policy}/scaling_governor") for policy in sysfs.list(CPUFREQ)
        }
        if governors != {SCHEDUTIL}:
            found = ", ".join(sorted(str(g) for g in governors)) or "there is none"
            raise ActuatorError(f"uclamp: works under {SCHEDUTIL} only, not under {found}")
        tops = (sysfs.get_int(f"{CPUFREQ}/{p}/cpuinfo_max_freq") for p in sysfs.list(CPUFREQ))
        self._top_hz = 1000 * max(top or 0 for top in tops)
        self._headroom = 1.0 if _release() >= EXACT_SINCE else 1.25
        self._kernel = UtilClamp()
        self._requested: dict[str, int] = {}
        self._now: Clamp | None = None
        self.tasks: Callable[[], Sequence[int]] = lambda: ()
        """Racing threads besides the calling one."""
        self.entering, self.leaving = WriteCost(), WriteCost()
        """Measured cost, of all threads together."""

    def request(self, domain: str, hz: int) -> None:
        """Run a domain's races at a clock.  Raises ActuatorError."""
        self._requested[domain] = hz
        self._update()

    def drop(self, domain: str) -> None:
        """Withdraw a domain's request."""
        if self._requested.pop(domain, None) is not None:
            self._update()

    def release(self) -> None:
        """Restore the threads' previous clamps."""
        self._requested.clear()
        self._update()

    def measure(self) -> float:
        """Cost of clamping and releasing together (µs), measured with a clamp that permits every
        clock."""
        self._enter(Clamp())
        self._leave()
        return self.entering.usual_us + self.leaving.usual_us

    def as_dict(self) -> dict[str, Any]:
        """Number and cost of clamps, for the status."""
        return {
            "times": self.entering.count,
            "enter_us": round(self.entering.usual_us, 1),
            "leave_us": round(self.leaving.usual_us, 1),
        }

    def _update(self) -> None:
        """Clamp to the highest requested clock."""
        if not self._requested:
            if self._now is not None:
                self._leave()
            return
        share = max(self._requested.values()) / self._top_hz / self._headroom
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
    """Version of the running kernel."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)
