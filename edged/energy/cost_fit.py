"""What a race costs, learnt from races: `cycles + cycles per row x rows`, and waiting per row.

Least squares over the races so far, the older the lighter (MEMORY), around the law that
`edged.simulate.work` measured once, which counts as PRIOR races: a job whose beats are all of one
size tells only their sum.  No coefficient is below zero.

A `RaceCost` is a key of the cost model's plans, so it stays the same object until what it says of
typical races is off by more than TOLERANCE.
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
"""Of the newest race in means."""


class RaceLaw:
    """Learns from (rows, cycles of the longest thread) of races."""

    def __init__(self, scale: float, stall_us_per_row: float, bytes_per_row: float) -> None:
        """`scale`: cycles of this board's cores for one of those that the prior was measured on."""
        self._stall_us, self._bytes = stall_us_per_row, bytes_per_row
        self._sums = [0.0] * 5
        """Of weights, rows, rows², cycles, rows x cycles."""
        self._prior = (scale * RACE_CYCLES, scale * ROW_CYCLES)
        for rows in (0.0, PRIOR_ROWS):
            self._add(PRIOR, rows, self._prior[0] + self._prior[1] * rows)
        self._rows, self._cores, self._beside = PRIOR_ROWS, 1.0, scale * BESIDE_CYCLES
        self._commit = scale * COMMIT_CYCLES
        self._cost = self._fitted()

    def note(self, rows: int, cycles: float, cores: float) -> None:
        """A race of so many rows."""
        self._sums = [MEMORY * x for x in self._sums]
        self._add(1.0, float(rows), cycles)
        self._rows += WEIGHT * (rows - self._rows)
        self._cores += WEIGHT * (cores - self._cores)

    def note_beside(self, cycles: float, commits: int = 0) -> None:
        """What was done beside a race, wakes included, and how many beats in that time have only
        committed: each takes what the race's own commit and acks take, and its ingest."""
        each = max(0.0, cycles - commits * self._commit) / (1 + commits)
        self._beside += WEIGHT * (each - self._beside)

    def cost(self) -> RaceCost:
        """The law, the same object as long as it holds."""
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
    """Cycles of a board's cores for one of this machine's, by the width of their front ends (see
    `edged.simulate.work`); 1 where the cores are not known."""
    core = profile.clusters[0].core.partition(" (")[0] if profile is not None else ""
    return HOST_WIDTH / CORES.get(core, HOST_WIDTH)


def row_bytes(plans: Sequence[JobPlan]) -> float:
    """Memory traffic of a row: its bytes as often as they cross the bus; a column of variable size
    counts with 16 bytes."""
    widths = [
        sum(f.dtype.width or 16 for f in stream.schema)
        for plan in plans
        for stream in plan.streams.values()
    ]
    return MOVES * sum(widths) / max(1, len(widths))
