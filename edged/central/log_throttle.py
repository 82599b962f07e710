"""Rate-limited log of page problems: one line per device and kind of problem in EVERY_S.

A device that waits (`full`, `quota`, a gap) repeats its request, and a fleet of them would fill the
log with one line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edged.central.admission import CONFLICT, PageProblem

EVERY_S = 60.0
KNOWN_MAX = 4096
_LOG = logging.getLogger(__name__)


class ProblemLog:
    """The problem log of one collector; for one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._written: dict[tuple[str, str], tuple[float, int]] = {}
        """By device and problem: the time of the last line, and the number suppressed since."""

    def write(self, device: str, problem: PageProblem) -> None:
        """Log a problem, at most once in EVERY_S per device and kind; the line includes the number
        suppressed since the last one."""
        key, now_s = (device, problem.problem), self._now_s()
        last_s, times = self._written.get(key, (now_s - EVERY_S, 0))
        if now_s - last_s < EVERY_S:
            self._written[key] = (last_s, times + 1)
            return
        if len(self._written) >= KNOWN_MAX:
            self._written.clear()
        self._written[key] = (now_s, 0)
        level = logging.ERROR if problem.problem == CONFLICT else logging.WARNING
        more = f" ({times} more since the last line)" if times else ""
        fields = {"event": f"page.{problem.problem}", "device": device}
        fields |= {} if problem.stream is None else {"stream": problem.stream}
        _LOG.log(level, "%s: %s: %s%s", device, problem.problem, problem.detail, more,
                 extra={"fields": fields})  # fmt: skip
