"""The page kernels write what plain Python writes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.hashing import hash_columns
from edged.data.schema import TYPES
from kernels.cpu.pages import BLOCK, partition_rows
from tests.naive import pages as naive
from tests.pages import shapes
from tests.whole import examples

FIXED = tuple(name for name, t in TYPES.items() if not t.variable)
HASH = st.integers(0, 2**64 - 1)


def body(page):
    """A sealed page's body, uncompressed."""
    h = naive.header(page)
    return naive.unlz4(page[224:], h["raw_bytes"] - 224) if h["flags"] & 1 else page[224:]


def deal(hashes, partitions):
    """The kernel's answer in the twin's form."""
    edges, order = np.empty(partitions + 1, np.int64), np.empty(len(hashes), np.int64)
    partition_rows(np.array(hashes, np.uint64), partitions, edges, order)
    return [order[a:b].tolist() for a, b in pairwise(edges)]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(HASH | st.just(1 << 40), max_size=300), st.integers(1, 70))
def test_partition_rows_sorts_stably_by_partition(hashes, partitions):
    assert deal(hashes, partitions) == naive.partition_rows(hashes, partitions)


def test_all_rows_of_one_key_go_to_one_partition():
    dealt = deal([7 << 32] * 1000, 4)
    assert [len(p) for p in dealt] == [0, 0, 0, 1000]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_fill_dense_writes_the_bytes_of_the_spec(data):
    schema = data.draw(shapes.schemas(FIXED))
    rows = data.draw(shapes.rows(schema)) * data.draw(st.sampled_from([1, BLOCK // 4]))
    stream = shapes.stream_of(schema, capacity=4096)
    pages = shapes.write_all(stream, [shapes.batch_of(schema, rows)])
    expected = naive.fill_dense(shapes.plain(schema), rows, 4096)
    assert [body(p.data) for p in pages] == (expected if rows else [])


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_fill_slotted_writes_the_bytes_of_the_spec(data):
    schema = data.draw(shapes.schemas().filter(lambda s: not s.fixed_width))
    rows = data.draw(shapes.rows(schema)) * data.draw(st.sampled_from([1, BLOCK // 4]))
    batch = shapes.batch_of(schema, rows)
    by = data.draw(st.sampled_from([(), ("time",), schema.names]))
    hashes = hash_columns(batch, by).tolist() if by else [0] * len(rows)
    stream = shapes.stream_of(schema, capacity=4096, partition_by=by)
    pages = shapes.write_all(stream, [batch])
    expected = naive.fill_slotted(shapes.plain(schema), rows, hashes, 4096)
    assert [body(p.data) for p in pages] == (expected if rows else [])
