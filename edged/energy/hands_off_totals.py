"""Sums over beats under `hands_off`, booked when a client reads the figures rather than at every
beat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HandsOffTotals:
    """Sums since the last booking."""

    races: int = 0
    beats: int = 0
    """Beats with rows."""
    commits: int = 0
    """Beats that only committed."""
    us: int = 0
    """Wall time of ingest and race."""
    ingest_us: int = 0
    """Part of it before the race."""
    sampled_us: int = 0
    """Wall time of sampled races."""
    sampled_ns: int = 0
    """CPU time of all threads in sampled races."""
    arrived: int = 0
    taken: int = 0
    """Rows."""
