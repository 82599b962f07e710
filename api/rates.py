"""Rates per second of streams and sources, from the counters of two snapshots.

A rate covers about SPAN_S, or the time since the previous request if that is longer, at most OLD_S:
the daemon sends no snapshot for rates alone.  After a restart of the daemon, counters and rates
restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SPAN_S_MIN, SPAN_S, OLD_S = 1.0, 5.0, 60.0

COUNTED = ("rows", "bytes")
"""Counters of a source that have a rate."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class _Counts:
    session: int
    uptime_s: float
    counts: dict[Key, int]


class Rates:
    """Computes rates from every snapshot that arrives."""

    def __init__(self) -> None:
        self._past: deque[_Counts] = deque()
        """Oldest first, at least SPAN_S_MIN apart except for the newest."""

    def take(self, snapshot: dict[str, Any]) -> None:
        """Add the newest snapshot."""
        new = _Counts(snapshot["session"], snapshot["uptime_s"], dict(_counts(snapshot)))
        past = self._past
        if past and past[-1].session != new.session:
            past.clear()
        if past and past[-1].uptime_s >= new.uptime_s:  # a newer snapshot arrived first
            return
        if len(past) > 1 and past[-1].uptime_s - past[-2].uptime_s < SPAN_S_MIN:
            past.pop()
        past.append(new)
        while len(past) > 2 and new.uptime_s - past[1].uptime_s >= SPAN_S:
            past.popleft()
        while new.uptime_s - past[0].uptime_s > OLD_S:
            past.popleft()

    def known(self) -> bool:
        """Whether two snapshots are far enough apart."""
        past = self._past
        return bool(past) and past[-1].uptime_s - past[0].uptime_s >= SPAN_S_MIN

    def per_s(self, *key: str) -> float | None:
        """The rate of the counters under a key; None if unknown."""
        if not self.known():
            return None
        first, last = self._past[0], self._past[-1]
        if key not in first.counts or key not in last.counts:
            return None
        grown = last.counts[key] - first.counts[key]
        return grown / (last.uptime_s - first.uptime_s) if grown >= 0 else None


def _counts(snapshot: dict[str, Any]) -> Iterator[tuple[Key, int]]:
    for name, job in snapshot.get("jobs", {}).items():
        for stream, counters in job.get("streams", {}).items():
            yield ("stream", name, str(job.get("created_us", 0)), stream), int(counters["rows"])
    for source in snapshot.get("sources", []):
        for what in COUNTED:
            yield ("source", str(source["name"]), what), int(source.get(what) or 0)
