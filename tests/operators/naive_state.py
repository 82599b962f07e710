"""A table state as a dictionary of rows: what every member must do, slowly and in memory."""

import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa

from edged.data.columns import Batch
from edged.tables.base import Matches, TableState, table_state


def rows_of(batch):
    """Rows as tuples, equal where the rows are: -0.0 is 0.0, NaN is one value."""
    columns = [c.to_pylist() for c in batch.to_arrow().columns]
    return [tuple(_plain(v) for v in row) for row in zip(*columns, strict=True)]


def batch_of(schema, rows):
    """The inverse of `rows_of`."""
    arrays = [
        pa.array([_value(row[i]) for row in rows], f.dtype.arrow) for i, f in enumerate(schema)
    ]
    return Batch.from_arrow(pa.record_batch(arrays, names=list(schema.names)), schema)


def _plain(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def _value(value):
    return math.nan if value == "nan" else value


def _order(row):
    """Nulls first, numbers ascending with NaN last, text by its bytes."""
    found = []
    for value in row:
        if isinstance(value, str) and value != "nan":
            value = value.encode()
        found.append((value is not None, value == "nan", 0 if value in (None, "nan") else value))
    return found


@table_state("naive")
class NaiveState(TableState):
    """See the module's docstring."""

    def __init__(self, schema, key, context):
        super().__init__(schema, key, context)
        context.disk.mkdir(context.directory)
        self.rows = Counter()
        self.told = False

    def _key(self, row):
        return tuple(row[self.schema.index(name)] for name in self.key)

    def apply(self, rows, weights):
        rows_after = self.rows.copy()
        for row, weight in zip(rows_of(rows), weights.tolist(), strict=True):
            if None not in self._key(row):
                rows_after[row] += weight
        if any(abs(w) >= 2**31 for w in rows_after.values()):
            raise OverflowError
        self.rows = Counter({row: w for row, w in rows_after.items() if w})

    def probe(self, keys):
        by_key = {}
        for row in sorted(self.rows, key=_order):
            by_key.setdefault(self._key(row), []).append(row)
        probe, found = [], []
        for i, key in enumerate(rows_of(keys)):
            for row in by_key.get(key, []):
                probe.append(i)
                found.append(row)
        weights = np.array([self.rows[row] for row in found], np.int32)
        return Matches(np.array(probe, np.int64), batch_of(self.schema, found), weights)

    def probing_ends(self):
        self.told = True

    def work(self, budget_rows):
        return False

    def save(self):
        rows = sorted(self.rows.items(), key=lambda item: _order(item[0]))
        text = json.dumps([[*row, weight] for row, weight in rows], default=str).encode()
        return {"rows": np.frombuffer(bytearray(text), np.uint8), "files": np.zeros(0, np.uint8)}

    def load(self, state):
        rows = json.loads(state["rows"].tobytes())
        self.rows = Counter({tuple(row[:-1]): row[-1] for row in rows})

    def sync(self):
        pass

    def keep(self, states):
        pass

    def memory_bytes(self):
        return 100 * len(self.rows)

    def disk_bytes(self):
        return 0

    def counters(self):
        return {"rows": len(self.rows)}

    def close(self):
        pass
