"""The kernel's own governor as a law: which clocks a race meets that is left alone.  Sans-IO.

schedutil, the default of the boards here (hardware.md 1.1), follows the utilisation u of a core
(docs.kernel.org/scheduler/schedutil):

    f = 1.25 · u · f_capacity, the lowest clock of the table at or above it, within the limits
    du/dt = ln 2 / 32 ms · (f / f_capacity − u)     while it runs (PELT, invariant to the clock)
    du/dt = −ln 2 / 32 ms · u                       while it sleeps

and asks for no less than at the end of the last activation (util_est, which falls by a quarter of
the difference an activation).  So a short race after a sleep runs at a low clock, and the clock
doubles only every 128 ms or so.  Its rate limit and other governors are not modelled.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

RATE = math.log(2) / 32_000
"""Per µs."""
HEADROOM = 1.25

Piece = tuple[int, float]
"""A clock (Hz) and how long it was held (µs)."""


@dataclass(slots=True)
class Utilisation:
    """What the governor remembers of the cores."""

    now: float = 0.0
    estimate: float = 0.0

    def copy(self) -> Utilisation:
        """The same, to go on with elsewhere."""
        return Utilisation(self.now, self.estimate)

    def sleep(self, us: float) -> None:
        """The cores sleep."""
        self.now *= math.exp(-RATE * us)


class Schedutil:
    """The governor of one cluster."""

    def __init__(self, choices_hz: Sequence[int], capacity_hz: int) -> None:
        """`choices_hz`: the clocks within the limits, ascending; `capacity_hz`: the highest clock
        of the hardware."""
        self.choices_hz, self.capacity_hz = tuple(choices_hz), capacity_hz

    def race(self, cycles: float, stall_us: float, u: Utilisation) -> list[Piece]:
        """The clocks that a race of so many cycles and so much waiting meets; `u` moves on."""
        pieces: list[Piece] = []
        wanted = HEADROOM * max(u.now, u.estimate) * self.capacity_hz
        at = min(bisect_left(self.choices_hz, wanted), len(self.choices_hz) - 1)
        left = 1.0
        while left > 0:
            hz = self.choices_hz[at]
            whole_us = 1e6 * cycles / hz + stall_us
            spent_us = min(left * whole_us, self._held_us(at, u.now))
            if spent_us > 0:
                pieces.append((hz, spent_us))
                reached = hz / self.capacity_hz
                u.now = reached + (u.now - reached) * math.exp(-RATE * spent_us)
            left = 0.0 if spent_us >= left * whole_us else left - spent_us / whole_us
            at = min(at + 1, len(self.choices_hz) - 1)
        u.estimate = max(u.now, u.estimate + (u.now - u.estimate) / 4)
        return pieces

    def held(self, hz: int, us: float, u: Utilisation) -> None:
        """A race at a clock that is pinned: the utilisation follows it all the same."""
        reached = hz / self.capacity_hz
        u.now = reached + (u.now - reached) * math.exp(-RATE * us)
        u.estimate = max(u.now, u.estimate + (u.now - u.estimate) / 4)

    def _held_us(self, at: int, now: float) -> float:
        """How long a clock is held until the utilisation asks for the next one."""
        if at == len(self.choices_hz) - 1:
            return math.inf
        reached = self.choices_hz[at] / self.capacity_hz
        asks = reached / HEADROOM
        return math.log((reached - now) / (reached - asks)) / RATE if now < asks else 0.0
