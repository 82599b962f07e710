"""Random tables that change: programs of beats, what they mean, and DuckDB's answer."""

import itertools
import math
import tempfile
from collections import Counter

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.table_terms import DEBEZIUM, INSERT, UPSERT, TableTerms
from edged.data.workers import Workers
from edged.operators import _table_side
from edged.operators.base import OperatorPlace
from edged.platform.disk import SystemDisk
from edged.tables.base import TABLES
from tests.operators.naive_state import batch_of, rows_of

TABLES.load()
MEMBERS = [name for name in ("naive", "runs") if name in TABLES]
MEMORY_BYTES = 1 << 20


def fields(**columns):
    """A schema from `name="type"`, with `?` for a nullable one."""
    made = [Field(n, TYPES[t.removesuffix("?")], t.endswith("?")) for n, t in columns.items()]
    return Schema.of(made)


LEFT = fields(k="string?", n="int64", v="float64?", w="int32")
RIGHT = fields(k="string?", n="int64", x="float64", name="string?", w="int32")

keys = st.sampled_from([None, "", "a", "ab", "ä", "long enough to be no inline string"])
numbers = st.integers(0, 2)
floats = st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.inf])
weights = st.sampled_from([1, 1, 1, 1, 2, -1, -1, -1, -2, 0])
left_rows = st.tuples(keys, numbers, st.none() | floats, weights)
right_rows = st.tuples(keys, numbers, floats, st.none() | st.sampled_from(["x", "y"]), weights)
beats = st.lists(
    st.tuples(st.lists(left_rows, max_size=8), st.lists(right_rows, max_size=8)),
    min_size=1,
    max_size=6,
)


def terms(changes, key=(), missing="count"):
    """The terms of a table."""
    return TableTerms(key, changes, missing=missing)


def link(schema, given):
    """A table's link; the column `w` is its weight where the changes are weights."""
    weighted = given.changes in ("weight:w", DEBEZIUM)
    return Link(schema, "", 0, "w" if weighted else "", given)


def plain(row):
    """A row in which equal values are equal: NaN is a word, and -0.0 is 0.0."""
    return tuple(("nan" if math.isnan(v) else v + 0.0) if isinstance(v, float) else v for v in row)


class Model:
    """A table as a multiset: the columns that an operator keeps, all but the weight.

    `on` are the columns that it is probed by: a row that is null there is not kept, so that no
    delete of it is refused.
    """

    def __init__(self, schema, given, names, on=()):
        self.terms, self.on = given, [list(names).index(name) for name in on]
        self.at = [schema.index(name) for name in names]
        self.key = [schema.index(name) for name in given.key]
        self.rows, self.by_key, self.refused = Counter(), {}, 0

    def apply(self, rows):
        """A beat's rows."""
        if self.terms.by_key:
            self._by_key(rows)
        elif self.terms.changes == UPSERT:
            for row in rows:
                self.by_key[tuple(row[i] for i in self.key)] = plain(row[i] for i in self.at)
            self.rows = Counter(self.by_key.values())
        elif self.terms.changes == INSERT:
            for row in rows:
                key = tuple(row[i] for i in self.key)
                if key and key in self.by_key:
                    self.refused += 1
                    continue
                self.by_key[key] = row
                self.rows[plain(row[i] for i in self.at)] += 1
        else:
            self._weighted(rows)

    def _by_key(self, rows):
        for row in rows:
            key = tuple(row[i] for i in self.key)
            if row[-1] == 1:
                self.by_key[key] = plain(row[i] for i in self.at)
            elif row[-1] != -1 or self.by_key.pop(key, None) is None:
                self.refused += 1
        self.rows = Counter(self.by_key.values())

    def _weighted(self, rows):
        change = Counter()
        for row in rows:
            self.refused += row[-1] == 0
            change[plain(row[i] for i in self.at)] += row[-1]
        for row, weight in change.items():
            self.rows[row] += weight
            if self.terms.missing != "owe" and self.rows[row] < 0:
                if not any(row[i] is None for i in self.on):
                    self.refused -= self.rows[row]
                self.rows[row] = 0
        self.rows = Counter({row: n for row, n in self.rows.items() if n})

    def arrow(self, schema, names):
        """The rows as an Arrow table, each as often as it is there."""
        rows = [tuple(math.nan if v == "nan" else v for v in r) for r in self.rows.elements()]
        columns = {n: [row[i] for row in rows] for i, n in enumerate(names)}
        types = [schema.field(n).dtype.arrow for n in names]
        return pa.table(
            [pa.array(columns[n], t) for n, t in zip(names, types, strict=True)], names=list(names)
        )


def asked(sql, **tables):
    """DuckDB's rows."""
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, table)
        return [plain(row) for row in db.execute(sql).fetchall()]


class Running:
    """An operator over beats; what has come out in `total`, rows without their weight and time."""

    def __init__(self, plan, monkeypatch=None, member="naive", workers=1):
        self.workers = Workers(workers)
        self.directory = tempfile.TemporaryDirectory()
        _table_side.MEMBER = member
        self.operator = plan.build(self.workers)
        place = OperatorPlace(SystemDisk(), self.directory.name, self.workers, MEMORY_BYTES)
        self.operator.place(place)
        self.numbers = itertools.count(1)
        self.plan, self.total, self.out = plan, Counter(), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.operator.close()
        self.workers.close()
        self.directory.cleanup()

    def beat(self, *sides, ended=False, watermark_us=0):
        """Run a beat over rows of each input; the rows that come out."""
        number = next(self.numbers)
        flows = [
            Flow(batch_of(link.schema, rows), WATERMARK_MAX_US if ended else watermark_us, ended)
            for link, rows in zip(self.plan.inputs, sides, strict=True)
        ]
        context = BeatContext(number, 1000 * number, self.workers)
        batch: Batch = self.operator.run(context, flows).batch
        rows = rows_of(batch)
        if "weight" in batch.schema:
            for *row, _, weight in rows:
                self.total[tuple(row)] += weight
            self.total = Counter({row: n for row, n in self.total.items() if n})
        self.out.append(rows)
        return rows
