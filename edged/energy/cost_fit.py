"""Cost of races, fitted to past races: `cycles + cycles per row x rows`, and stalls per row.

Least squares over past races with exponentially decaying weights (MEMORY), around the constants of
`edged.simulate.work`, which count as PRIOR races.  The prior is needed since beats of one size
determine only the sum.  No coefficient is negative.

A `RaceCost` is part of the cache key of the cost model's plans, so `cost` returns the same object
until the fit deviates by more than TOLERANCE on typical races.
"""

from __future__ import annotations

from collections.abc import Sequence

from edged.job.plan import JobPlan
from edged.simulate.work import (
    BESIDE_CYCLES,
    COMMIT_CYCLES,
    CORES,
    HOST_WIDTH,
    MOVES,
    RACE_CYCLES,
    ROW_CYCLES,
)
from governors.profile import BoardProfile
from governors.work import RaceCost

MEMORY = 0.97
PRIOR = 2.0
PRIOR_ROWS = 20_000.0
TOLERANCE = 0.1
WEIGHT = 0.1
"""Weight of the newest race in means."""


class RaceLaw:
    """Fit over (rows, cycles of the longest thread) of races."""

    def __init__(self, scale: float, stall_us_per_row: float, bytes_per_row: float) -> None:
        """`scale`: cycles of this board's cores per cycle of the machine on which the prior was
        measured."""
        self._stall_us, self._bytes = stall_us_per_row, bytes_per_row
        self._sums = [0.0] * 5
        """Sums of weights, rows, rows², cycles, rows x cycles."""
        self._prior = (scale * RACE_CYCLES, scale * ROW_CYCLES)
        for rows in (0.0, PRIOR_ROWS):
            self._add(PRIOR, rows, self._prior[0] + self._prior[1] * rows)
        self._rows, self._cores, self._beside = PRIOR_ROWS, 1.0, scale * BESIDE_CYCLES
        self._commit = scale * COMMIT_CYCLES
        self._cost = self._fitted()

    def note(self, rows: int, cycles: float, cores: float) -> None:
        """Add a race."""
        self._sums = [MEMORY * x for x in self._sums]
        self._add(1.0, float(rows), cycles)
        self._rows += WEIGHT * (rows - self._rows)
        self._cores += WEIGHT * (cores - self._cores)

    def note_beside(self, cycles: float, commits: int = 0) -> None:
        """Add the cycles outside a race, wakes included.  `commits` beats in that time only
        committed: each costs as much as the race's own commit and acks, plus its ingest."""
        each = max(0.0, cycles - commits * self._commit) / (1 + commits)
        self._beside += WEIGHT * (each - self._beside)

    def cost(self) -> RaceCost:
        """The fitted cost; the same object while it holds."""
        new, old = self._fitted(), self._cost
        for rows in (0.0, self._rows):
            if abs(new.us(rows, 10**9) - old.us(rows, 10**9)) > TOLERANCE * old.us(rows, 10**9):
                self._cost = new
        if abs(new.cores - old.cores) > 0.25 or abs(new.beside_cycles - old.beside_cycles) > (
            TOLERANCE * old.beside_cycles
        ):
            self._cost = new
        return self._cost

    def _add(self, weight: float, rows: float, cycles: float) -> None:
        terms = (1.0, rows, rows * rows, cycles, rows * cycles)
        self._sums = [s + weight * t for s, t in zip(self._sums, terms, strict=True)]

    def _fitted(self) -> RaceCost:
        n, x, xx, y, xy = self._sums
        spread = n * xx - x * x
        each = max(0.0, (n * xy - x * y) / spread) if spread > 0 else self._prior[1]
        fixed = (y - each * x) / n
        if fixed < 0:
            fixed, each = 0.0, xy / xx
        return RaceCost(
            fixed, each, 0.0, self._stall_us, self._cores, self._bytes, self._beside,
            self._commit,
        )  # fmt: skip


def width_scale(profile: BoardProfile | None) -> float:
    """Cycles of a board's cores per cycle of this machine, by the width of their front ends
    (`edged.simulate.work`); 1 for unknown cores."""
    core = profile.clusters[0].core.partition(" (")[0] if profile is not None else ""
    return HOST_WIDTH / CORES.get(core, HOST_WIDTH)


def row_bytes(plans: Sequence[JobPlan]) -> float:
    """Memory traffic per row: its bytes times the number of transfers over the bus; a column of
    variable size counts as 16 bytes."""
    widths = [
        sum(f.dtype.width or 16 for f in stream.schema)
        for plan in plans
        for stream in plan.streams.values()
    ]
    return MOVES * sum(widths) / max(1, len(widths))
