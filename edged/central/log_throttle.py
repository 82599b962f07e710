"""What devices' pages had, in the collector's log: each kind of each device now and then.

A device that waits (`full`, `quota`, a gap) sends again and again, and a fleet of them would fill
the log with one line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edged.central.admission import CONFLICT, Problem

EVERY_S = 60.0
KNOWN_MAX = 4096
_LOG = logging.getLogger(__name__)


class Complaints:
    """Of one collector, on one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """By device and problem: when a line was written last, and how many were not since."""

    def tell(self, device: str, problem: Problem) -> None:
        """Write a line, once in EVERY_S for a device and a kind of problem; it says how many there
        were since the last one."""
        key, now_s = (device, problem.problem), self._now_s()
        last_s, times = self._told.get(key, (now_s - EVERY_S, 0))
        if now_s - last_s < EVERY_S:
            self._told[key] = (last_s, times + 1)
            return
        if len(self._told) >= KNOWN_MAX:
            self._told.clear()
        self._told[key] = (now_s, 0)
        level = logging.ERROR if problem.problem == CONFLICT else logging.WARNING
        more = f" ({times} more since the last line)" if times else ""
        fields = {"event": f"page.{problem.problem}", "device": device}
        fields |= {} if problem.stream is None else {"stream": problem.stream}
        _LOG.log(level, "%s: %s: %s%s", device, problem.problem, problem.detail, more,
                 extra={"fields": fields})  # fmt: skip
