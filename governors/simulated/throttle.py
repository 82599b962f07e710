"""Throttling of a simulated board: what its kernel, firmware or hardware does when the chip is hot.

    step_wise        at each look: one clock lower where the temperature is at least the trip point
                     and rises, one clock higher where it is below and falls (Linux,
                     drivers/thermal/gov_step_wise.c)
    pulse_skipping   a share of the pulses at once, until the temperature is below the trip point
                     less the hysteresis (NVIDIA's soctherm)
    progressive      the highest clock falls in proportion from `celsius` to `full_celsius`
                     (Raspberry Pi)

The profile has the figures and their sources (`governors.profile.ThrottleFigures`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from governors.profile import ThrottleFigures


class ThermalThrottle:
    """The state of throttling, updated at each look."""

    def __init__(self, figures: ThrottleFigures, table_hz: Sequence[int]) -> None:
        """`table_hz`: clocks of the CPU, ascending."""
        self._figures, self._table, self.kind = figures, tuple(table_hz), figures.kind
        self.state = 0
        """As a cooling device's `cur_state`: steps below the highest clock; with pulse_skipping 0
        or 1."""
        self.most = 1 if figures.kind == "pulse_skipping" else len(self._table) - 1
        self.events = 0
        """Times that throttling has begun."""
        self.look_us = 1e3 * figures.look_ms
        self._last_celsius = -math.inf

    @property
    def share(self) -> float:
        """Share of the pulses that reach the cores."""
        skips = self._figures.kind == "pulse_skipping" and self.state
        return self._figures.clock_share if skips else 1.0

    def ceiling_hz(self) -> int:
        """The highest clock."""
        steps = 0 if self._figures.kind == "pulse_skipping" else self.state
        return self._table[len(self._table) - 1 - steps]

    def look(self, celsius: float) -> bool:
        """Look at the temperature; returns whether the state has changed."""
        before, now = self.state, getattr(self, f"_{self._figures.kind}")(celsius)
        self.state = min(max(now, 0), self.most)
        self.events += self.state > 0 and before == 0
        self._last_celsius = celsius
        return self.state != before

    def _step_wise(self, celsius: float) -> int:
        if celsius >= self._figures.celsius:
            return self.state + (celsius > self._last_celsius)
        return self.state - (celsius < self._last_celsius)

    def _pulse_skipping(self, celsius: float) -> int:
        least = self._figures.celsius
        return int(celsius >= (least - self._figures.hysteresis_celsius if self.state else least))

    def _progressive(self, celsius: float) -> int:
        first, full = self._figures.celsius, self._figures.full_celsius
        return math.ceil(self.most * (celsius - first) / max(full - first, 1e-9))
