"""What beats did under `hands_off`, in sums: booked when somebody reads, not at every beat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HandsOffTotals:
    """Since the last booking."""

    races: int = 0
    beats: int = 0
    """With rows."""
    commits: int = 0
    """That have only committed."""
    us: int = 0
    """Wall time of ingest and race."""
    ingest_us: int = 0
    """Of it, before the race."""
    sampled_us: int = 0
    """The same of some races,"""
    sampled_ns: int = 0
    """and the CPU time of all threads in them."""
    arrived: int = 0
    taken: int = 0
    """Rows."""
