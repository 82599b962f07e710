"""How many rows a batch should have where a launch costs something: adaptive batching, sans-IO.

A batch of b rows at a rate of r rows/s is full after b / r, and is answered fixed + b * row later;
HELLS Join and ecoJoin let batches grow with the rate, for fewer launches and longer sleep, as far
as the tolerance for latency allows.
"""

from __future__ import annotations

from dataclasses import dataclass

LEARN = 0.2
"""Weight of the latest batch in what a row is thought to cost."""


@dataclass
class Batching:
    """What batches are known to cost, and the largest one that keeps the promise."""

    tolerance_us: float
    """From a batch's first row to its answer."""
    fixed_us: float
    """What a batch costs without rows: launches and synchronisation."""
    row_us: float = 0.0
    """What a row costs; learnt."""

    def observe(self, rows: int, took_us: float) -> None:
        """A batch was answered."""
        if rows > 0:
            seen = max(0.0, took_us - self.fixed_us) / rows
            self.row_us += LEARN * (seen - self.row_us) if self.row_us > 0 else seen

    def rows(self, rate_hz: float, most: int) -> int:
        """Rows of the next batch: as many as come and are answered within the tolerance, 1 to
        `most`.  Where rows come faster than they are answered, as many as are answered in it."""
        left_us = self.tolerance_us - self.fixed_us
        each_us = self.row_us + (1e6 / rate_hz if rate_hz > 0 else self.tolerance_us)
        return max(1, min(most, int(left_us / each_us) if each_us > 0 else most))
