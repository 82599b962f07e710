"""Population of a one-to-many join under each compaction rule, and later beats of probes.

The small table has one row a key, the large one `ratio` rows a key.  Beats have as many rows of
both until the small table has all of its rows; `probing_ends` is called on the large side then, as
Epsio's rule needs.  Later beats probe both sides, half each, and change nothing.  `always` is the
best of several fan-outs.  `off_then_merge` merges nothing but all runs at the end of the
population.  The CPU time is the join's alone.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

import numpy as np

from edged.bench.tables_data import (
    PairSums,
    Row,
    TableChanges,
    Tick,
    inserts,
    made_state,
    meet,
    part,
    settle,
)
from edged.tables.base import TableState

ARMS = ("always", "off", "off_then_merge", "seed", "auto")
FANOUTS = (2, 4, 8)
_COMPACT = {"off": "never", "off_then_merge": "never"}


@dataclass(frozen=True)
class PopulationSize:
    """How much is joined."""

    rows: int
    """Rows of the large table."""
    beat_rows: int = 10_000
    later_beats: int = 400
    later_probes: int = 2_000
    memory: int = 1 << 25


def measure_population(
    member: str, size: PopulationSize, ratios: tuple[int, ...], tick: Tick
) -> list[Row]:
    """A row for each arm and ratio."""
    rows = []
    for ratio in ratios:
        small, large = _tables(size, ratio)
        expected = PairSums()
        order = np.argsort(small.k)
        at = order[np.searchsorted(small.k, large.k, sorter=order)]
        expected.add((large.id, large.v), (small.id[at], small.v[at]), np.ones(at.size, np.int64))
        for arm in ARMS:
            tick(f"population, {member}, {ratio}:1, {arm}")
            found = [
                _arm(member, size, small, large, arm, fanout)
                for fanout in (FANOUTS if arm == "always" else (4,))
            ]
            best = min(found, key=lambda row: row["cpu_s"])
            answer = best.pop("answer")
            rows.append({"member": member, "ratio": ratio, "arm": arm, **best,
                         "equal": answer == expected.answer})  # fmt: skip
    return rows


def _tables(size: PopulationSize, ratio: int) -> tuple[TableChanges, TableChanges]:
    rng = np.random.default_rng(ratio)
    keys = max(1, size.rows // ratio)
    small = inserts(rng.permutation(keys), 1 << 40, rng)
    return small, inserts(rng.integers(0, keys, size.rows), 0, rng)


def _arm(
    member: str,
    size: PopulationSize,
    small: TableChanges,
    large: TableChanges,
    arm: str,
    fanout: int,
) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        compact = _COMPACT.get(arm, arm)
        u = made_state(member, f"{folder}/u", size.memory, compact, fanout)
        t = made_state(member, f"{folder}/t", size.memory, compact, fanout)
        sums = PairSums()
        cpu, wall = time.process_time(), time.perf_counter()
        _populate(u, t, small, large, size.beat_rows, sums)
        if arm == "off_then_merge":
            for state in (u, t):
                state.merge_all()
        cpu_s = time.process_time() - cpu - sums.cpu_s
        wall_s = time.perf_counter() - wall
        counts = {name: u.counters()[name] + t.counters()[name]
                  for name in ("merged_rows", "written_bytes", "runs")}  # fmt: skip
        answer = sums.answer
        later_s, slowest_ms = _later(u, t, small, size)
        u.close()
        t.close()
    return {
        "fanout": fanout, "cpu_s": cpu_s, "wall_s": wall_s, "later_cpu_s": later_s,
        "later_beat_ms_max": slowest_ms, **counts, "answer": answer,
    }  # fmt: skip


def _populate(
    u: TableState,
    t: TableState,
    small: TableChanges,
    large: TableChanges,
    beat_rows: int,
    sums: PairSums,
) -> None:
    """All rows of both tables, in beats; U is the large one."""
    at_small = at_large = 0
    while at_large < large.rows:
        now = min(beat_rows // 2, small.rows - at_small)
        of_t = _rows(small, at_small, at_small + now)
        of_u = _rows(large, at_large, at_large + beat_rows - now)
        at_small, at_large = at_small + now, at_large + of_u.rows
        meet(t, of_u, True, sums)
        u.apply(of_u.batch(), of_u.weight)
        if now:
            meet(u, of_t, False, sums)
            t.apply(of_t.batch(), of_t.weight)
            if at_small == small.rows:
                u.probing_ends()
        settle(u, t)


def _rows(changes: TableChanges, start: int, stop: int) -> TableChanges:
    return part(changes, np.arange(start, min(stop, changes.rows)), 1)


def _later(
    u: TableState, t: TableState, small: TableChanges, size: PopulationSize
) -> tuple[float, float]:
    """CPU seconds of the later beats, and the slowest in ms."""
    rng, sums, slowest_s = np.random.default_rng(0), PairSums(), 0.0
    cpu = time.process_time()
    for _ in range(size.later_beats):
        start = time.perf_counter()
        for state, changes_are_u in ((u, False), (t, True)):
            asked = rng.integers(0, small.rows, size.later_probes // 2)
            meet(state, part(small, asked, 1), changes_are_u, sums)
        settle(u, t)
        slowest_s = max(slowest_s, time.perf_counter() - start)
    return time.process_time() - cpu - sums.cpu_s, 1e3 * slowest_s
