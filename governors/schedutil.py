"""Model of the kernel's schedutil governor: the clocks of a race whose clock is not set.  Sans-IO.

schedutil, the default of the supported boards (docs/hardware.md), follows the utilisation u of a
core (docs.kernel.org/scheduler/schedutil):

    f = 1.25 · u · f_capacity, rounded up to the next clock of the table, within the limits
    du/dt = ln 2 / 32 ms · (f / f_capacity − u)     while the core runs (PELT, clock-invariant)
    du/dt = −ln 2 / 32 ms · u                       while it sleeps

It requests at least the utilisation at the end of the previous activation (util_est, which decays
by a quarter of the difference per activation). So a short race after a sleep runs at a low clock,
and the clock doubles only about every 128 ms.  The governor's rate limit and other governors are
not modelled.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

RATE = math.log(2) / 32_000
"""Decay per µs."""
HEADROOM = 1.25

Piece = tuple[int, float]
"""Clock (Hz) and the time that it was held (µs)."""


@dataclass(slots=True)
class Utilisation:
    """The governor's state of the cores."""

    now: float = 0.0
    estimate: float = 0.0

    def copy(self) -> Utilisation:
        """An independent copy."""
        return Utilisation(self.now, self.estimate)

    def sleep(self, us: float) -> None:
        """Decay over `us` of sleep."""
        self.now *= math.exp(-RATE * us)


class Schedutil:
    """The governor of one cluster."""

    def __init__(self, choices_hz: Sequence[int], capacity_hz: int) -> None:
        """`choices_hz`: clocks within the limits, ascending; `capacity_hz`: the highest clock of
        the hardware."""
        self.choices_hz, self.capacity_hz = tuple(choices_hz), capacity_hz

    def race(self, cycles: float, stall_us: float, u: Utilisation) -> list[Piece]:
        """The clocks that a race meets, in order; updates `u`."""
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
        """A race of `us` at a pinned clock; updates `u`, which follows that clock."""
        reached = hz / self.capacity_hz
        u.now = reached + (u.now - reached) * math.exp(-RATE * us)
        u.estimate = max(u.now, u.estimate + (u.now - u.estimate) / 4)

    def _held_us(self, at: int, now: float) -> float:
        """Time (µs) until the utilisation requests the next clock."""
        if at == len(self.choices_hz) - 1:
            return math.inf
        reached = self.choices_hz[at] / self.capacity_hz
        asks = reached / HEADROOM
        return math.log((reached - now) / (reached - asks)) / RATE if now < asks else 0.0
