"""What a governor is: told before each race and after it, it owns clocks, sleep and placement.

The hooks are called on the beat's thread: they must return within microseconds and never raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the batcher expects of the race that is about to start."""

    bytes_arrived: int
    """Bytes that wait to be ingested, as estimated from the last beats."""
    race_us: int
    """How long the race will take at the clocks of the last beats."""
    deadline_us: int
    """Monotonic time by which the beat's pages must be sealed."""


class Governor(Protocol):
    """Decides how fast, where and how deep; the default is to leave the machine alone."""

    def race(self, forecast: Forecast) -> None:
        """A race is about to start."""

    def idle(self) -> None:
        """The race is over; nothing will run until the next wake."""


class LeaveAlone:
    """The baseline: the kernel's own governor, with the same batching."""

    def race(self, forecast: Forecast) -> None:
        """Do nothing."""

    def idle(self) -> None:
        """Do nothing."""
