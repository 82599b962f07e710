"""Interface between the daemon's beat and a governor.

The beat calls `race` before a race, `ingested` after the ingest and `idle` after the race.  All
three run on the beat's thread.  They never raise, and return within microseconds where the governor
sets nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

HANDS_OFF = "hands_off"
"""Name of the default policy, which sets nothing."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """State of the beat before a race.  Times are monotonic µs."""

    at_us: int
    staged: int
    """Units that wait since earlier beats, without those that arrived since the last beat."""
    deadline_us: int
    """Time by which race and commit must be complete and the beat's pages sealed."""
    latency_us: int
    """The latency tolerance."""
    commit_us: int
    """Part of the tolerance that the commit and the margins take besides the race."""
    period_us_max: float = math.inf
    """Longest time between two races that the senders' buffers allow."""
    commit_every_us: float = 0.0
    """Longest time between two commits, with or without a race; 0: commits come with races only."""


@dataclass(slots=True)
class Steer:
    """Instructions to the batcher, in force until the next hook returns.  The defaults change
    nothing."""

    wait_share: float = 1.0
    """Part of the latency tolerance that may be spent waiting (0 to 1)."""
    race_us: float = 0.0
    """Planned duration of the next race, where planned; the wait leaves this much time."""
    not_before_us: int = 0
    """No race starts before this monotonic time; arriving units wait, and backpressure slows the
    senders."""
    units_max: int | None = None
    """Most units that the starting race may take; 0: no race, call again at `not_before_us`."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a beat."""

    arrived: int
    """Units ingested."""
    taken: int
    """Units processed."""


class Governor(Protocol):
    """Chooses clocks, sleep states and batching."""

    def race(self, forecast: Forecast) -> Steer:
        """A race is about to start."""

    def commit(self, forecast: Forecast) -> None:
        """A beat that only commits is about to start; `idle` follows it, too."""

    def ingested(self) -> None:
        """The ingest is complete; processing starts."""

    def idle(self, done: Done) -> Steer:
        """The race is over; only the commit runs before the next wake."""


class LeaveAlone:
    """Reads nothing and sets nothing: the kernel's own governor with the default batching."""

    def __init__(self) -> None:
        self._steer = Steer()

    def race(self, forecast: Forecast) -> Steer:
        """Change nothing."""
        return self._steer

    def commit(self, forecast: Forecast) -> None:
        """Do nothing."""

    def ingested(self) -> None:
        """Do nothing."""

    def idle(self, done: Done) -> Steer:
        """Change nothing."""
        return self._steer
