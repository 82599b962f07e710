"""When runs are merged: pure functions of their sizes and of what probes have paid.

A suffix of the runs, oldest first, is merged into one.  `auto` rents until it has paid the price of
buying (ski rental): each probed key pays PROBE_NS for every run behind another one, and once that
has reached the price of merging a suffix, MERGE_NS a row, the suffix is merged.  A longer suffix
for which EXTEND of its price has been paid goes with it, so that its rows are not merged once more
soon after.  Nothing merges while nothing probes.  docs/tables.md has the bound.  The constants, and
the price of energy by which both are multiplied, are in `edged.tables.costs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.tables.base import ALWAYS, AUTO, NEVER, SEED
from edged.tables.costs import MERGE_NS, PROBE_NS

EXTEND = 0.7
"""Part of its price for which a longer suffix is merged with one that has been paid."""
RUNS_MAX = 96
"""Runs that a state has at most, under any rule."""


@dataclass(frozen=True, slots=True)
class RunDebt:
    """A run as the rules see it."""

    rows: int
    paid_ns: float = 0.0
    """What probes have paid for the runs behind this one since it was made."""


def after_probe(
    runs: Sequence[RunDebt],
    keys: int,
    probe_ns: float = PROBE_NS,
    read_ns: Sequence[float] | npt.NDArray[np.float64] = (),
) -> list[RunDebt]:
    """The runs after a probe of so many keys; `read_ns` is what it waited for
    pages of each run, empty where it did not wait."""
    debts, behind_ns = [], 0.0
    for i in range(len(runs) - 1, -1, -1):
        debts.append(RunDebt(runs[i].rows, runs[i].paid_ns + behind_ns))
        behind_ns += keys * probe_ns + (read_ns[i] if len(read_ns) else 0.0)
    return debts[::-1]


def suffix(
    rule: str,
    runs: Sequence[RunDebt],
    *,
    ended: bool = False,
    fanout: int = 4,
    merge_ns: float = MERGE_NS,
    most: int = RUNS_MAX,
) -> int:
    """How many of the newest runs are to be merged now; 0: none.

    `fanout`: `always` merges so many runs of about one size.  `ended`: probes have become rare,
    which stops the rule `seed`.
    """
    if len(runs) > most:
        return _forced([run.rows for run in runs])
    if rule == AUTO:
        return _paid(runs, merge_ns)
    if rule == ALWAYS or (rule == SEED and not ended):
        return _tiers([run.rows for run in runs], fanout)
    assert rule in (NEVER, SEED)
    return 0


def _paid(runs: Sequence[RunDebt], merge_ns: float) -> int:
    """The longest suffix whose merge probes have paid for, made longer by EXTEND."""
    rows, paid, nearly = 0, False, 0
    for count, run in enumerate(reversed(runs), 1):
        rows += run.rows
        if count > 1 and run.paid_ns >= EXTEND * merge_ns * rows:
            nearly = count
            paid = paid or run.paid_ns >= merge_ns * rows
    return nearly if paid else 0


def _tiers(rows: Sequence[int], fanout: int) -> int:
    """The longest suffix of at least `fanout` runs in which no run has more than `fanout` times
    the rows of those behind it on average."""
    found, behind = 0, 0
    for count, size in enumerate(reversed(rows), 1):
        if count > 1 and size * (count - 1) > fanout * behind:
            break
        behind += size
        if count >= fanout:
            found = count
    return found


def _forced(rows: Sequence[int]) -> int:
    """The shortest suffix of at least an eighth of the runs that has as many rows as the run
    before it: sizes stay geometric, so that a row is merged a logarithmic number of times."""
    behind = 0
    for count, size in enumerate(reversed(rows), 1):
        if count > max(2, len(rows) // 8) and size > behind:
            return count - 1
        behind += size
    return len(rows)
