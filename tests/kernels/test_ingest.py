"""Rows on their way into a join: the naive twins' records, whatever the keys and the threads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch
from edged.data.schema import TYPES, Field, Schema
from edged.operators._join_window import Arrival, Side
from kernels.cpu import ingest
from tests.eager import team_of
from tests.naive import hash as naive_hash
from tests.naive import partition as naive
from tests.whole import examples

RECORD = np.dtype([("time", "i8"), ("tag", "u4"), ("row", "u4")])
VALUES = {
    "int8": st.integers(-128, 127),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "string": st.text(max_size=20),
}
TIMES = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module", params=[1, 2, 3])
def pool(request):
    """Workers that are all worth having, however few rows there are."""
    with team_of(request.param) as workers:
        yield workers


def schema_of(kinds, nullable):
    keys = [Field(f"k{i}", TYPES[kind], nullable) for i, kind in enumerate(kinds)]
    return Schema.of([*keys, Field("t", TYPES["timestamp"])])


def batch_of(schema, rows):
    """Rows of keys and, at last, a time."""
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema.fields]
    arrays = [
        pa.array(values, pa.int64() if field.name == "t" else field.dtype.arrow).cast(
            field.dtype.arrow
        )
        for field, values in zip(schema.fields, columns, strict=True)
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, list(schema.names)), schema)


def expected(kinds, rows, first):
    """Records and counts by the naive twins; rows with a null key have none."""
    hashes, valid = [], [all(key is not None for key in row[:-1]) for row in rows]
    for *keys, _ in rows:
        found = None
        for kind, key in zip(kinds, keys, strict=True):
            one = naive_hash.hash_value(kind, TYPES[kind].width, key)
            found = one if found is None else naive_hash.hash_combine([found], [one])[0]
        hashes.append(found)
    times = [row[-1] for row in rows]
    return naive.scatter(hashes, valid, times, first), naive.count(hashes, valid)


def values_of(batch):
    """All values as text, in which NaN equals NaN."""
    columns = batch.to_arrow().columns
    return repr([(c.cast(pa.int64()) if c is columns[-1] else c).to_pylist() for c in columns])


def several(kinds, nullable, most=40):
    keys = [st.none() | VALUES[kind] if nullable else VALUES[kind] for kind in kinds]
    return st.lists(st.tuples(*keys, TIMES), max_size=most)


CASES = st.tuples(
    st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=2), st.booleans()
).flatmap(
    lambda case: st.tuples(
        st.just(case),
        st.lists(st.tuples(several(*case), several(*case)), min_size=1, max_size=3),
        st.sampled_from([0, 2**32 - 25]),
    )
)


@settings(max_examples=examples(150), deadline=None)
@given(CASES)
def test_records_and_columns_are_those_of_the_rows_beat_after_beat(pool, case):
    (kinds, nullable), beats, start = case
    check(pool, kinds, nullable, beats, start)


def check(pool, kinds, nullable, beats, start):
    schema = schema_of(kinds, nullable)
    names = schema.names[:-1]
    sides = tuple(Side(schema, schema, names, "t", start) for _ in range(2))
    arrival, so_far = Arrival(sides), [[], []]
    buffers = [np.zeros(2 * 4000, np.int64) for _ in range(2)]
    for beat in beats:
        lends = [lambda rows, k=k: buffers[k] for k in range(2)]
        found = arrival.take([batch_of(schema, rows) for rows in beat], lends, pool)
        for k, (records, rows) in enumerate(zip(found, beat, strict=True)):
            wanted, counts = expected(kinds, rows, start + len(so_far[k]))
            so_far[k] += rows
            assert records.counts.tolist() == counts
            assert records.data.view(RECORD)[: len(wanted)].tolist() == wanted
            kept, all_rows = sides[k].store.view(), batch_of(schema, so_far[k])
            assert values_of(kept) == values_of(all_rows)


@pytest.mark.parametrize("kinds", [["int32"], ["int64"], ["float64"], ["string", "int8"]])
def test_more_rows_than_a_block_and_none_at_all(pool, kinds):
    rng = np.random.default_rng(len(kinds[0]))
    rows = [
        (*(f"{n % 77}" if kind == "string" else int(n) % 101 for kind in kinds), int(t))
        for n, t in zip(rng.integers(0, 2**30, 3 * ingest.BLOCK + 5), range(10**6), strict=False)
    ]
    check(pool, kinds, False, [(rows, rows[: ingest.BLOCK]), ([], rows), ([], [])], 0)
