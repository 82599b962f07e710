"""The seed's open question: which memtable of RocksDB fits which side of a join.

Epsio ("Optimizing Streaming JOINs", 2025) ends with it: would a hash skip list fit the small side
better than a skip list?  Each side has one or the other, a large side and a small one, in the
member `rocksdb` with a prefix extractor of the 8 bytes of a key's hash.  CPU time is split into
writes and probes of each side.  Needs `rocksdict`.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np

from edged.bench.tables_data import (
    KEY,
    ROWS,
    Row,
    TableChanges,
    Tick,
    inserts,
    part,
)
from edged.data.columns import Batch, Column
from edged.data.workers import Workers
from edged.platform.disk import SystemDisk
from edged.tables.base import NEVER, TableContext
from edged.tables.rocksdb import RocksDB

SKIP_LIST, HASH_SKIP_LIST = MEMTABLES = ("skip list", "hash skip list")
_HASH_BYTES = 8
_BUCKETS, _HEIGHT, _BRANCHING = 1 << 18, 4, 4
_BEAT_ROWS = 10_000
_LATER_BEATS, _LATER_PROBES = 50, 2_000
_MEMORY = 1 << 29
"""Large enough that all rows stay in the memtable, which is what is compared."""


class _WithMemtable(RocksDB):
    """The member with a memtable of this kind."""

    memtable = SKIP_LIST

    def options(self) -> Any:
        """See `RocksDB.options`."""
        options = super().options()
        options.set_prefix_extractor(self._rocks.SliceTransform.create_fixed_prefix(_HASH_BYTES))
        if self.memtable == HASH_SKIP_LIST:
            options.set_allow_concurrent_memtable_write(False)
            options.set_memtable_factory(
                self._rocks.MemtableFactory.hash_skip_list(_BUCKETS, _HEIGHT, _BRANCHING)
            )
        return options


class _WithHashes(_WithMemtable):
    memtable = HASH_SKIP_LIST


class _TimedSide:
    """A side's state and its CPU seconds of writes and probes."""

    def __init__(self, memtable: str, directory: str) -> None:
        kind = _WithHashes if memtable == HASH_SKIP_LIST else _WithMemtable
        context = TableContext(SystemDisk(), directory, Workers(1), _MEMORY, NEVER)
        self._state = kind(ROWS, ("k",), context)
        self.write_s = self.probe_s = 0.0
        self.found = 0

    def write(self, rows: TableChanges) -> None:
        """Apply the rows."""
        start = time.process_time()
        self._state.apply(rows.batch(), rows.weight)
        self.write_s += time.process_time() - start

    def probe(self, keys: np.ndarray[Any, Any]) -> float:
        """Probe by these keys; returns the CPU seconds."""
        start = time.process_time()
        found = self._state.probe(Batch(KEY, keys.size, (Column(keys),)))
        self.found += found.weights.size
        return time.process_time() - start

    def close(self) -> None:
        """Close the state."""
        self._state.close()


def measure_memtables(rows: int, ratio: int, tick: Tick) -> list[Row]:
    """A row for each pair of memtables: the large side has `rows`, the small one `rows / ratio`."""
    rng = np.random.default_rng(ratio)
    keys = max(1, rows // ratio)
    small = inserts(rng.permutation(keys), 1 << 40, rng)
    large = inserts(rng.integers(0, keys, rows), 0, rng)
    found = []
    for of_large in MEMTABLES:
        for of_small in MEMTABLES:
            tick(f"memtables, large side {of_large}, small side {of_small}")
            found.append(_arm(of_large, of_small, large, small))
    return [{**row, "ratio": ratio, "equal": row["pairs"] == rows} for row in found]


def _arm(of_large: str, of_small: str, large: TableChanges, small: TableChanges) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        u, t = _TimedSide(of_large, f"{folder}/u"), _TimedSide(of_small, f"{folder}/t")
        at_small = at_large = 0
        while at_large < large.rows:
            now = min(_BEAT_ROWS // 2, small.rows - at_small)
            of_t = part(small, np.arange(at_small, at_small + now), 1)
            last = min(large.rows, at_large + _BEAT_ROWS - now)
            of_u = part(large, np.arange(at_large, last), 1)
            at_small, at_large = at_small + now, last
            t.probe_s += t.probe(of_u.k)
            u.write(of_u)
            if now:
                u.probe_s += u.probe(of_t.k)
                t.write(of_t)
        pairs = u.found + t.found
        rng, later_u, later_t = np.random.default_rng(0), 0.0, 0.0
        for _ in range(_LATER_BEATS):
            asked = rng.integers(0, small.rows, _LATER_PROBES // 2)
            later_u += u.probe(asked)
            later_t += t.probe(asked)
        u.close()
        t.close()
    return {
        "large": of_large, "small": of_small, "pairs": pairs,
        "cpu_s": u.write_s + u.probe_s + t.write_s + t.probe_s,
        "large_write_s": u.write_s, "large_probe_s": u.probe_s,
        "small_write_s": t.write_s, "small_probe_s": t.probe_s,
        "later_large_s": later_u, "later_small_s": later_t,
    }  # fmt: skip
