"""Counters that go on after the part that counted them has ended.

A counter of the status document never falls while the process lives, though its part may end: a job
is replaced or deleted, a source is built again.  What a part had counted is kept by its name, and
added to what a later part of that name counts.  Of the parts that run no more, the ENDED_MAX that
ended last are known; where another one returns, it starts at 0.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Generic, TypeVar

ENDED_MAX = 1024
"""Parts that no longer run whose counters are kept."""

Counts = Mapping[str, int | float]
Key = TypeVar("Key", bound=Hashable)


class LastingCounts(Generic[Key]):
    """What to add to the counters of each part, by the part's key."""

    def __init__(self) -> None:
        self._ahead: dict[Key, dict[str, int | float]] = {}

    def move(
        self, before: Mapping[Key, Counts], after: Mapping[Key, Counts], live: Collection[Key] = ()
    ) -> None:
        """Parts are exchanged: the sums after it are those before it, whatever the new parts have
        counted already.  The parts in `after` and `live` run, all others do not."""
        ended = [key for key in before if key not in after]
        for key in (*ended, *after):
            ahead, was, now = self._ahead.pop(key, {}), before.get(key, {}), after.get(key, {})
            sums = {
                name: ahead.get(name, 0) + was.get(name, 0) - now.get(name, 0)
                for name in {**ahead, **was, **now}
            }
            if kept := {name: count for name, count in sums.items() if count}:
                self._ahead[key] = kept
        past = [key for key in self._ahead if key not in after and key not in live]
        for key in past[: max(0, len(past) - ENDED_MAX)]:
            del self._ahead[key]

    def ahead(self, key: Key) -> Counts:
        """What earlier parts of this key have counted, by the counter's name."""
        return self._ahead.get(key, {})

    def shown(self, key: Key, counters: Mapping[str, Any]) -> dict[str, Any]:
        """The counters of a running part, with those of the earlier ones added."""
        ahead = self._ahead.get(key)
        if not ahead:
            return dict(counters)
        return {name: v + ahead[name] if name in ahead else v for name, v in counters.items()}


def growing(counters: Mapping[str, Any], gauges: Collection[str]) -> dict[str, int | float]:
    """The counters that only grow: the numbers that are no `gauges`."""
    return {
        name: value
        for name, value in counters.items()
        if name not in gauges and isinstance(value, int | float)
    }
