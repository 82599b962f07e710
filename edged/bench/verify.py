"""The reference join, and the order-free hash that compares two sets of result rows.

A result row is (key, r_value, r_ts, s_value, s_ts). Its hash is a 64-bit mix of its 28 bytes. The
hash of a set is the wrapping sum of its rows' hashes: row order does not matter, repeated rows
count. DuckDB computes the expected rows, slice by slice, from the same input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.bench.load import START_US, Load

SLICE_ROWS = 2_000_000
_Pool: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
_COLUMNS = ("key", "r_value", "r_ts", "s_value", "s_ts")


@dataclass
class RowDigest:
    """A row count, and the wrapping sum of the rows' hashes."""

    rows: int = 0
    hash: int = 0

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        """Add the rows of a table that has the five result columns."""
        self.rows += table.num_rows
        self.hash = (self.hash + int(_hashes(table).sum(dtype=np.uint64))) % (1 << 64)


def expected(load: Load, rows: int, bound_us: int) -> Iterator[RowDigest]:
    """The digest of the join of the first `rows` rows of each stream.

    Yields the digest so far after each slice; the last one is complete.
    """
    db = duckdb.connect()
    db.execute("SET threads = 2")
    digest = RowDigest()
    pools = {stream: load.pool(stream) for stream in "rs"}
    reach = (bound_us + 1) * load.tuples_per_us
    for start in range(0, rows, SLICE_ROWS):
        stop = min(rows, start + SLICE_ROWS)
        db.register("r", _rows(load, pools["r"], start, stop))
        after = min(rows, stop + reach)
        db.register("s", _rows(load, pools["s"], max(0, start - reach), after))
        found = db.sql(
            "SELECT r.key AS key, r.value AS r_value, r.ts AS r_ts, s.value AS s_value, "
            f"s.ts AS s_ts FROM r JOIN s ON r.key = s.key AND abs(s.ts - r.ts) <= {bound_us}"
        )
        digest.add(found.to_arrow_table())
        yield digest


def _rows(load: Load, pool: _Pool, start: int, stop: int) -> pa.Table:
    key, value = pool
    index = np.arange(start, stop, dtype=np.int64)
    at = index % key.size
    ts = START_US + index // load.tuples_per_us
    return pa.table({"key": key[at], "value": value[at], "ts": ts})


def _hashes(table: pa.Table | pa.RecordBatch) -> npt.NDArray[np.uint64]:
    h = np.full(table.num_rows, 0x9E3779B97F4A7C15, np.uint64)
    for name in _COLUMNS:
        column = table.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        bits = column.to_numpy(zero_copy_only=False)
        bits = bits.view(np.uint32 if bits.itemsize == 4 else np.uint64).astype(np.uint64)
        h = (h ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    return h
