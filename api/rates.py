"""What streams and sources bring a second, of the counters of two snapshots.

A rate is over about SPAN_S, or over the time since somebody last looked where that is longer, at
most OLD_S: the daemon is asked for nothing that is not wanted.  After a restart counters and rates
begin anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SPAN_S_MIN, SPAN_S, OLD_S = 1.0, 5.0, 60.0

COUNTED = ("rows", "bytes")
"""Of a source."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class _Counts:
    session: int
    uptime_s: float
    counts: dict[Key, int]


class Rates:
    """Takes every snapshot that comes."""

    def __init__(self) -> None:
        self._past: deque[_Counts] = deque()
        """Oldest first, at least SPAN_S_MIN apart but for the newest."""

    def take(self, snapshot: dict[str, Any]) -> None:
        """The newest state."""
        new = _Counts(snapshot["session"], snapshot["uptime_s"], dict(_counts(snapshot)))
        past = self._past
        if past and past[-1].session != new.session:
            past.clear()
        if past and past[-1].uptime_s >= new.uptime_s:  # another one has overtaken it
            return
        if len(past) > 1 and past[-1].uptime_s - past[-2].uptime_s < SPAN_S_MIN:
            past.pop()
        past.append(new)
        while len(past) > 2 and new.uptime_s - past[1].uptime_s >= SPAN_S:
            past.popleft()
        while new.uptime_s - past[0].uptime_s > OLD_S:
            past.popleft()

    def known(self) -> bool:
        """Whether there are two states far enough apart."""
        past = self._past
        return bool(past) and past[-1].uptime_s - past[0].uptime_s >= SPAN_S_MIN

    def per_s(self, *key: str) -> float | None:
        """Of what was counted under a key; None where nobody knows."""
        if not self.known():
            return None
        first, last = self._past[0], self._past[-1]
        if key not in first.counts or key not in last.counts:
            return None
        grown = last.counts[key] - first.counts[key]
        return grown / (last.uptime_s - first.uptime_s) if grown >= 0 else None


def _counts(snapshot: dict[str, Any]) -> Iterator[tuple[Key, int]]:
    for name, job in snapshot.get("jobs", {}).items():
        for stream, told in job.get("streams", {}).items():
            yield ("stream", name, str(job.get("created_us", 0)), stream), int(told["rows"])
    for source in snapshot.get("sources", []):
        for what in COUNTED:
            yield ("source", str(source["name"]), what), int(source.get(what) or 0)
