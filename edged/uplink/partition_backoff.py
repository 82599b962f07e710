"""Per-partition backoff: a partition with a problem is held back alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edged.platform.backoff import Backoff
from edged.uplink.send_queue import Partition

BASE_S, CAP_S = 1.0, 300.0
FILE_BASE_S = 0.05
"""An unreadable page has most likely just moved."""

Route = tuple[str, int]
"""Stream and partition."""


@dataclass(slots=True)
class _Held:
    backoff: Backoff
    problem: str
    detail: str
    expected: int | None = None
    """The sequence number that the centre expects, if it said so."""


class PartitionBackoffs:
    """The partitions of one sender that are held back."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._of: dict[Route, _Held] = {}

    def __contains__(self, route: Route) -> bool:
        return route in self._of

    def hold(
        self, part: Partition, problem: str, detail: str, now_s: float, expected: int | None
    ) -> None:
        """Hold the partition; each repetition of the same problem holds it longer."""
        route = (part.stream, part.partition)
        held = self._of.get(route)
        if held is None or held.problem != problem:
            base_s = FILE_BASE_S if problem in ("unreadable", "damaged") else BASE_S
            held = _Held(Backoff(self._random, base_s, CAP_S, CAP_S), problem, detail)
            self._of[route] = held
        held.detail, held.expected = detail, expected
        part.hold_until_s = now_s + held.backoff.failed()

    def expected(self, route: Route) -> int | None:
        """The sequence number that the centre expects of a partition, if it said so."""
        held = self._of.get(route)
        return None if held is None else held.expected

    def release(self, route: Route) -> None:
        """Release the partition: the centre has accepted one of its pages."""
        self._of.pop(route, None)

    def forget_unreadable(self, route: Route) -> bool:
        """End the hold of a partition whose page could not be read; False: it has another hold."""
        held = self._of.get(route)
        if held is None or held.problem not in ("unreadable", "damaged"):
            return False
        del self._of[route]
        return True

    def resolved_by(self, route: Route, seq: int) -> bool:
        """Whether this page, or a new location of it, may resolve the partition's problem."""
        held = self._of.get(route)
        return held is not None and (held.problem == "unreadable" or held.expected == seq)

    def stuck(self) -> list[dict[str, Any]]:
        """For `status`."""
        return [
            {"stream": s, "partition": p, "problem": t.problem, "detail": t.detail}
            | ({} if t.expected is None else {"expected": t.expected})
            for (s, p), t in self._of.items()
        ]
