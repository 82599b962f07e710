"""Partitions with which something is wrong: each is held by itself, with a backoff of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edged.uplink.backoff import Backoff
from edged.uplink.send_queue import Partition

BASE_S, CAP_S = 1.0, 300.0
FILE_BASE_S = 0.05
"""A page that cannot be read has most likely just moved."""

Route = tuple[str, int]
"""Stream and partition."""


@dataclass(slots=True)
class _Trouble:
    backoff: Backoff
    problem: str
    detail: str
    expected: int | None = None
    """The number that the centre waits for, where it said so."""


class Troubles:
    """Those of one sender."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._of: dict[Route, _Trouble] = {}

    def __contains__(self, route: Route) -> bool:
        return route in self._of

    def met(
        self, part: Partition, problem: str, detail: str, now_s: float, expected: int | None
    ) -> None:
        """Hold the partition, for longer each time that it meets the same problem."""
        route = (part.stream, part.partition)
        trouble = self._of.get(route)
        if trouble is None or trouble.problem != problem:
            base_s = FILE_BASE_S if problem in ("unreadable", "damaged") else BASE_S
            trouble = _Trouble(Backoff(self._random, base_s, CAP_S), problem, detail)
            self._of[route] = trouble
        trouble.detail, trouble.expected = detail, expected
        part.hold_until_s = now_s + trouble.backoff.failed()

    def over(self, route: Route) -> None:
        """The centre has taken a page of it."""
        self._of.pop(route, None)

    def ends_with(self, route: Route, seq: int) -> bool:
        """Whether a page, or a newer place of it, may be what the partition waits for."""
        trouble = self._of.get(route)
        return trouble is not None and (trouble.problem == "unreadable" or trouble.expected == seq)

    def stuck(self) -> list[dict[str, Any]]:
        """For `status`."""
        return [
            {"stream": s, "partition": p, "problem": t.problem, "detail": t.detail}
            | ({} if t.expected is None else {"expected": t.expected})
            for (s, p), t in self._of.items()
        ]
