"""Radix partitioning: stable, complete, and the same however the batch is cut into ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu import partition
from tests.naive import partition as naive
from tests.whole import examples

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORD = np.dtype([("time", "i8"), ("tag", "u4"), ("row", "u4")])


def partitioned(hashes, valid, times, first_row, ranges):
    counts = np.empty((len(ranges), 64), np.int64)
    at = 0 if valid is None else address(valid)
    for k, (a, b) in enumerate(ranges):
        partition.count(hashes, at, a, b, counts[k])
    order = counts.T.ravel()
    cursors = np.ascontiguousarray((np.cumsum(order) - order).reshape(64, len(ranges)).T)
    out = np.zeros(max(1, int(counts.sum())), RECORD)
    for k, (a, b) in enumerate(ranges):
        args = (hashes, at, address(times), first_row, a, b, cursors[k], address(out))
        partition.scatter(*args)
    return out[: int(counts.sum())].tolist(), counts.sum(axis=0).tolist()


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_records_are_those_of_the_naive_twin_for_any_ranges(data):
    rows = data.draw(st.lists(st.tuples(U64, I64, st.booleans()), max_size=60))
    few = data.draw(st.booleans())
    hashes = np.array([h | 7 << 61 if few else h for h, _, _ in rows], np.uint64)
    times = np.array([t for _, t, _ in rows], np.int64)
    nullable = data.draw(st.booleans())
    valid = np.array([v for *_, v in rows], np.uint8) if nullable else None
    first_row = data.draw(st.sampled_from([0, 5, 2**32 - 3, 2**40 + 1]))
    mask = [1] * len(rows) if valid is None else valid.tolist()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    edges = [0, *cuts, len(rows)]
    ranges = list(pairwise(edges))
    records, counts = partitioned(hashes, valid, times, first_row, ranges)
    assert counts == naive.count(hashes.tolist(), mask)
    assert records == naive.scatter(hashes.tolist(), mask, times.tolist(), first_row)


def test_a_batch_in_one_partition_stays_in_arrival_order():
    n = 1000
    hashes = np.full(n, 63 << 58, np.uint64)
    times = np.arange(n)[::-1].copy()
    records, counts = partitioned(hashes, None, times, 0, [(0, 400), (400, n)])
    assert [r[2] for r in records] == list(range(n))
    assert counts[63] == n
