"""The constants of `edged.tables.compaction`, measured: a run more in a probe, a row in a merge.

Both are CPU time of one thread.  The state has ROWS rows of 32 bytes in RUNS runs of one size, 10
rows a key.  A merge of all of them is measured first, and probes of random keys before and after
it: their difference is the price of RUNS - 1 runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from edged.data.columns import Batch, Column
from edged.data.schema import FLOAT64, INT64, Field, Schema
from edged.data.workers import Workers
from edged.platform.disk import SystemDisk
from edged.tables.base import MEMBER, NEVER, TABLES, TableContext, TableState
from edged.tables.costs import MergePricing

ROWS, RUNS, ROWS_A_KEY = 1_000_000, 8, 10
PROBES, ROUNDS = 20_000, 5
MEMORY_BYTES = 1 << 28
SCHEMA = Schema.of(
    (Field("key", INT64), Field("id", INT64), Field("value", FLOAT64), Field("more", INT64))
)


def measure(rows: int = ROWS, probes: int = PROBES) -> MergePricing:
    """The constants of this machine; half a second of CPU time."""
    dice = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="edged-tables-") as folder:
        workers = Workers(1)
        try:
            context = TableContext(SystemDisk(), folder, workers, MEMORY_BYTES, NEVER)
            state = TABLES.load()[MEMBER](SCHEMA, ("key",), context)
            _fill(state, rows, dice)
            many_s = _probe(state, rows, probes, dice)
            merge_s = _timed(state.merge_all)
            one_s = _probe(state, rows, probes, dice)
            state.close()
        finally:
            workers.close()
    probe_ns = 1e9 * (many_s - one_s) / probes / (RUNS - 1)
    return MergePricing(max(1.0, probe_ns), max(1.0, 1e9 * merge_s / rows), True)


def _fill(state: TableState, rows: int, dice: np.random.Generator) -> None:
    part = rows // RUNS
    for first in range(0, part * RUNS, part):
        keys = dice.integers(0, max(1, rows // ROWS_A_KEY), part)
        ids = np.arange(first, first + part)
        columns = Column(keys), Column(ids), Column(ids / 3), Column(ids)
        state.apply(Batch(SCHEMA, part, columns), np.ones(part, np.int32))


def _probe(state: TableState, rows: int, probes: int, dice: np.random.Generator) -> float:
    """CPU seconds of a probe of so many random keys, the least of some."""
    schema, least = Schema.of((SCHEMA.fields[0],)), float("inf")
    for _ in range(ROUNDS):
        keys = Column(dice.integers(0, max(1, rows // ROWS_A_KEY), probes))
        batch = Batch(schema, probes, (keys,))
        least = min(least, _timed(partial(state.probe, batch)))
    return least


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
