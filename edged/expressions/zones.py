"""Time zones: each zone's offsets from UTC as a table that a kernel searches.

The tz database is the one that Python's `zoneinfo` finds: the system's, else the package `tzdata`.
The table is made when the job is checked and is part of its kernel's literals, so that a running
job does not change with the database.

A table is int64 in pairs (moment in µs, offset in µs from then on), ascending, from 1800 to 2500.
Later times have the offsets of 400 years earlier: the calendar repeats after 400 years.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST = (datetime(1800, 1, 1, tzinfo=timezone.utc) - _EPOCH) // timedelta(seconds=1)
_LAST = (datetime(2500, 1, 1, tzinfo=timezone.utc) - _EPOCH) // timedelta(seconds=1)
_DAY = 86_400


@functools.cache
def _names() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones()}


@functools.cache
def table(name: str) -> bytes:
    """The table of a zone, by its name in any case.  Raises ValueError where there is none."""
    known = _names().get(name.lower())
    if known is None:
        raise ValueError(f"there is no time zone '{name}'; write a name such as 'Europe/Berlin'")
    zone = ZoneInfo(known)

    def offset(second: int) -> int:
        found = datetime.fromtimestamp(second, zone).utcoffset()
        return 0 if found is None else found // timedelta(seconds=1)

    before = offset(_FIRST)
    rows = [(-(2**62), before * 1_000_000)]
    for start in range(_FIRST, _LAST, _DAY):
        after = offset(start + _DAY)
        if after != before:
            rows.append((_change(offset, start, start + _DAY) * 1_000_000, after * 1_000_000))
            before = after
    return np.array(rows, np.int64).tobytes()


def _change(offset: Callable[[int], int], low: int, high: int) -> int:
    """The first second in (low, high] with the offset of `high`."""
    last = offset(high)
    while high - low > 1:
        middle = (low + high) // 2
        if offset(middle) == last:
            high = middle
        else:
            low = middle
    return high
