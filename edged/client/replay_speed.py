"""Replay of recorded rows at a multiple of real time.  Pure functions; times in microseconds.

A pace is a factor: 0 is full speed, 1 real time, 60 sixty times real time.
"""

from __future__ import annotations

import math

PACE_MAX = 1e9


def parse_pace(text: str) -> float:
    """The factor of `full`, `real_time` or `60x`.  Raises ValueError."""
    named = {"full": 0.0, "real_time": 1.0}
    if text in named:
        return named[text]
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not 0 < factor <= PACE_MAX:
        raise ValueError(f"{text!r} is not a pace: full, real_time or a factor such as 60x")
    return factor


def due_us(event_us: int, first_event_us: int, began_us: int, factor: float) -> int:
    """Due time of a row of time `event_us`, on the clock that read `began_us` at the first row."""
    if factor == 0:
        return began_us
    return began_us + math.ceil((event_us - first_event_us) / factor)
