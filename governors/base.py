"""What a governor is: told before each race, after its ingest and after it; it steers the rest.

The hooks are called on the beat's thread: where nothing is set they return within microseconds,
and they never raise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of the race that is about to start; times are monotonic µs."""

    at_us: int
    staged: int
    """Units that wait since earlier beats; what has arrived since the last one is not in it."""
    deadline_us: int
    """By which the beat's pages must be sealed, its race and its commit over."""
    latency_us: int
    """The tolerance."""
    commit_us: int
    """Of it, what the commit and the margins take beside the race."""
    period_us_max: float = math.inf
    """From one race to the next, what the senders' buffers leave."""
    commit_every_us: float = 0.0
    """How often is committed at least, with a race or without; 0: with races only."""


@dataclass(slots=True)
class Steer:
    """What the governor wants of the batcher, until it says something else.

    One that changes nothing:
    """

    wait_share: float = 1.0
    """Of the tolerance, what may be spent on waiting."""
    race_us: float = 0.0
    """What the next race will take where that is planned: the wait leaves time for it."""
    not_before_us: int = 0
    """No race before this monotonic time; what arrives waits, and its senders with it."""
    units_max: int | None = None
    """The race that is about to start may take no more; 0: ask again at `not_before_us`."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a beat was."""

    arrived: int
    """Units that it ingested."""
    taken: int
    """Units that it processed."""


class Governor(Protocol):
    """Decides how fast and how deep; the default is to leave the machine alone."""

    def race(self, forecast: Forecast) -> Steer:
        """A race is about to start."""

    def ingested(self) -> None:
        """What had arrived is taken in; now it is processed."""

    def idle(self, done: Done) -> Steer:
        """The race is over; but for the commit nothing will run until the next wake."""


class LeaveAlone:
    """Nothing is watched and nothing is set: the kernel's own governor, with the same batching."""

    def __init__(self) -> None:
        self._steer = Steer()

    def race(self, forecast: Forecast) -> Steer:
        """Change nothing."""
        return self._steer

    def ingested(self) -> None:
        """Do nothing."""

    def idle(self, done: Done) -> Steer:
        """Change nothing."""
        return self._steer
