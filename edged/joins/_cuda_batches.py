"""Adaptive batching: the rows of a batch where a launch has a fixed cost.  Sans-IO.

A batch of b rows at a rate of r rows/s is full after b / r, and is answered fixed + b * row later.
HELLS Join and ecoJoin let batches grow with the rate, for fewer launches and longer sleep, as far
as the latency tolerance allows.
"""

from __future__ import annotations

from dataclasses import dataclass

LEARN = 0.2
"""Weight of the latest batch in the time of a row."""


@dataclass
class Batching:
    """The learnt cost of batches, and the largest batch that keeps the tolerance."""

    tolerance_us: float
    """Time from a batch's first row to its answer."""
    fixed_us: float
    """Time of a batch without rows: launches and synchronisation."""
    row_us: float = 0.0
    """Time of a row, learnt."""

    def observe(self, rows: int, took_us: float) -> None:
        """Learn from a batch that was answered."""
        if rows > 0:
            seen = max(0.0, took_us - self.fixed_us) / rows
            self.row_us += LEARN * (seen - self.row_us) if self.row_us > 0 else seen

    def rows(self, rate_hz: float, most: int) -> int:
        """Rows of the next batch, 1 to `most`: as many as arrive and are answered within the
        tolerance. Where rows arrive faster than they are answered, as many as are answered within
        it."""
        left_us = self.tolerance_us - self.fixed_us
        each_us = self.row_us + (1e6 / rate_hz if rate_hz > 0 else self.tolerance_us)
        return max(1, min(most, int(left_us / each_us) if each_us > 0 else most))
