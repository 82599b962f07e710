"""The bucket join's kernels, one by one and by many lanes at once, against their naive twins."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import address
from edged.data.workers import Workers
from edged.joins._tables import Table
from kernels.cpu import bucket, bucket_table
from kernels.cpu.rings import AHEAD
from tests.naive import bucket as naive
from tests.whole import examples

RECORD = np.dtype([("time", "i8"), ("tag", "u4"), ("row", "u4")])
NO_KEYS = np.zeros((0, 5), np.int64)
MIN = -(2**63)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 40), st.sampled_from([0, 1, 2, 3, 2**32 - 1]), st.sampled_from([0, 5, 63])
    ),
    max_size=300,
)


class Batch:
    """Rows (time, tag, partition) as records and as the twin's lists."""

    def __init__(self, rows, first=0):
        self.parts = [[] for _ in range(64)]
        for i, (time, tag, p) in enumerate(rows):
            self.parts[p].append((time, tag, first + i))
        self.array = np.zeros(len(rows) + AHEAD, RECORD)
        self.array[: len(rows)] = [record for part in self.parts for record in part]
        self.records = address(self.array)
        self.edges = np.append(0, np.cumsum([len(part) for part in self.parts]))
        self.rows = len(rows)

    def expiry(self, newest):
        out = np.zeros(self.rows, np.int64)
        least = bucket.prepare(self.records, self.edges, 0, 0, 64, newest, out)
        assert least == (self.array["row"][: self.rows].min() if self.rows else 2**32)
        return out


class Pair:
    """A table and its twin."""

    def __init__(self, bits=0, lanes=1):
        self.table, self.twin, self.lanes = Table(20 * (64 << bits), lanes), {}, lanes
        self.bits = int(self.table.row[bucket_table.TABLE.bits])
        self.newest, self.naive_newest, self.rows = np.full(64, MIN), [MIN] * 64, 0

    def build(self, rows, workers=None):
        batch = Batch(rows, self.rows)
        self.rows += len(rows)
        expiry = batch.expiry(self.newest)
        expected = naive.prepare(batch.parts, self.naive_newest)
        assert expiry.tolist() == expected
        self.table.reserve(batch.rows, self.lanes)
        share = partial(bucket.build, self.table.row, batch.records, batch.edges, expiry)
        edges = [batch.rows * k // self.lanes for k in range(self.lanes + 1)]
        calls = [partial(share, edges[k], edges[k + 1], k) for k in range(self.lanes)]
        _ = workers.run(calls) if workers else [call() for call in calls]
        naive.build(self.twin, batch.parts, expected, self.bits)

    def check(self):
        """The same entries in the same buckets, and every chunk in one place."""
        found, used = decode(self.table)
        assert found == {b: sorted(e) for b, e in self.twin.items() if e}
        free = self.table._free[: int(self.table.row[bucket_table.TABLE.free_count])].tolist()
        spares = [c for c in self.table._spares.tolist() if c]
        chunks = used + free + spares
        assert len(set(chunks)) == len(chunks) == self.table._chunks

    def mark(self, buckets):
        for b in buckets:
            self.table._marks[b >> 6] |= np.uint64(1) << np.uint64(b & 63)

    def marked(self):
        words = self.table._marks.tolist()
        return {64 * w + i for w, word in enumerate(words) for i in range(64) if word >> i & 1}


def peek(at):
    """The int64 at an address."""
    return ctypes.c_int64.from_address(at).value


def decode(table):
    """Each bucket's entries, sorted, and all chunks in use."""
    buckets, used = {}, []
    for b, chunk in enumerate(table._heads.tolist()):
        depths = []
        while chunk:
            used.append(chunk)
            depths.append(peek(chunk + bucket_table.CHUNK.depth))
            raw = (ctypes.c_uint8 * bucket_table.CHUNK_BYTES).from_address(chunk)
            data = np.frombuffer(raw, np.uint8)
            fill = min(64, peek(chunk + bucket_table.CHUNK.fill))
            arrays = [
                data[at : at + 64 * width].view(dtype)[:fill].tolist()
                for at, width, dtype in (
                    (bucket_table.CHUNK.expiries, 8, np.int64),
                    (bucket_table.CHUNK.times, 8, np.int64),
                    (bucket_table.CHUNK.tags, 4, np.uint32),
                    (bucket_table.CHUNK.rows, 4, np.uint32),
                )
            ]
            buckets.setdefault(b, []).extend(zip(*arrays, strict=True))
            chunk = peek(chunk + bucket_table.CHUNK.next)
        assert depths == list(range(len(depths), 0, -1))
    return {b: sorted(entries) for b, entries in buckets.items() if entries}, used


@settings(max_examples=examples(60))
@given(st.lists(ROWS, max_size=4), st.sampled_from([0, 2]))
def test_building_puts_every_record_into_its_bucket(batches, bits):
    pair = Pair(bits)
    for rows in batches:
        pair.build(rows)
    pair.check()
    assert bucket_table.count(pair.table.row, 20) == naive.count(pair.twin, 20)


@pytest.mark.parametrize("lanes", [2, 7])
def test_many_lanes_build_one_bucket_together_and_lose_nothing(lanes):
    pool = Workers(lanes)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pair = Pair(0, lanes)
        for _ in range(2):
            pair.build([(int(t), 7, 3) for t in rng.integers(0, 9, 5000)], pool)
        pair.check()
    pool.close()


@pytest.mark.parametrize("keys", [1, 1000])
def test_lanes_that_race_for_long_lose_nothing(keys):
    lanes, n = 4, 4_000_000
    array = np.zeros(n + AHEAD, RECORD)
    array["tag"], array["row"] = np.arange(n + AHEAD) % keys, np.arange(n + AHEAD)
    edges = np.append(0, np.full(64, n))
    newest, expiry = np.full(64, MIN), np.zeros(n, np.int64)
    bucket.prepare(address(array), edges, 0, 0, 64, newest, expiry)
    table, pool = Table(n, lanes), Workers(lanes)
    table.reserve(n, lanes)
    share = partial(bucket.build, table.row, address(array), edges, expiry)
    pool.run([partial(share, n * k // lanes, n * (k + 1) // lanes, k) for k in range(lanes)])
    pool.close()
    hashes, alive = np.zeros(n, np.uint64), np.zeros(n, np.uint8)
    bucket_table.live(table.row, MIN, 0, hashes, alive)
    assert alive.all()
    assert np.array_equal(hashes, array["tag"][:n])
    assert bucket_table.count(table.row, MIN) == n


@settings(max_examples=examples(80))
@given(st.lists(ROWS, max_size=3), st.lists(st.integers(0, 63)), st.integers(0, 45))
def test_cleaning_takes_invalid_entries_out_of_marked_buckets_alone(batches, marks, bound):
    pair = Pair()
    for rows in batches:
        pair.build(rows)
    marked = {0, *marks} | pair.marked()
    pair.mark(marked)
    for _ in range(2):
        gone = bucket_table.clean(pair.table.row, bound, 0, pair.table.marked())
        assert gone == naive.clean(pair.twin, marked, bound)
        assert pair.marked() == set()
        pair.check()
        pair.build(batches[0] if batches else [])
        marked = pair.marked()


@settings(max_examples=examples(80))
@given(
    ROWS,
    ROWS,
    st.integers(0, 45),
    st.integers(0, 30),
    st.integers(0, 1),
    st.integers(0, 60),
    st.sampled_from([0, 3, 2**32]),
)
def test_probing_finds_partners_newest_first_and_marks_what_is_stale(
    held, probing, bound, dead, swapped, room, new
):
    pair = Pair()
    pair.build(held)
    before_marks = pair.marked()
    batch = Batch(probing)
    job = np.array([3, 9, 0, 0, dead, dead, bound, bound, new, new], np.int64)
    back, ahead = (9, 3) if swapped else (3, 9)
    expected, marked = naive.probe(
        pair.twin, batch.parts, pair.bits, back, ahead, dead, bound, new, bucket.INVALID_MAX
    )
    out, counts, progress = (
        np.zeros((2, room), np.int64),
        np.zeros(64, np.int64),
        np.zeros(2, np.int64),
    )
    while not bucket.probe(
        pair.table.row, batch.records, batch.edges, swapped, job, NO_KEYS, progress, batch.rows,
        *out, counts,
    ):  # fmt: skip
        larger = np.zeros((2, 2 * out.shape[1] + 1), np.int64)
        larger[:, : out.shape[1]] = out
        out = larger
    assert counts.tolist() == [len(part) for part in expected]
    found = out[:, : int(progress[bucket.PROGRESS.pairs])].T.tolist()
    assert [tuple(p) for p in found] == [p for part in expected for p in part]
    assert pair.marked() == marked | before_marks


def test_many_partners_out_of_order_are_sorted():
    pair = Pair(lanes=3)
    for rows in (500, 40, 25, 24, 2):
        pair.build([(0, 1, 0)] * rows)
    pair.mark({0})
    batch = Batch([(0, 1, 0)])
    out, counts = np.zeros((2, 1000), np.int64), np.zeros(64, np.int64)
    job = np.zeros(len(bucket.JOB), np.int64)
    job[bucket.JOB.left_dead] = job[bucket.JOB.right_dead] = MIN
    assert bucket.probe(
        pair.table.row, batch.records, batch.edges, 0, job, NO_KEYS, np.zeros(2, np.int64), 1,
        *out, counts,
    )  # fmt: skip
    assert out[1, : counts[0]].tolist() == list(range(590, -1, -1))


@settings(max_examples=examples(40))
@given(ROWS, st.integers(0, 45), st.sampled_from([0, 1, 3]))
def test_a_new_table_has_the_valid_entries_in_its_own_buckets(rows, bound, bits):
    pair, new = Pair(1), Pair(bits)
    pair.build(rows)
    new.table.reserve(len(rows), 1)
    assert bucket_table.rebuild(pair.table.row, bound, new.table.row) == naive.count(
        pair.twin, bound
    )
    new.twin = naive.rebuild(pair.twin, pair.bits, new.bits, bound)
    new.check()


@settings(max_examples=examples(40))
@given(ROWS, st.integers(0, 45))
def test_the_live_rows_are_known(rows, bound):
    pair = Pair()
    pair.build(rows)
    hashes, alive = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint8)
    bucket_table.live(pair.table.row, bound, 0, hashes, alive)
    expected = naive.live(pair.twin, pair.bits, bound)
    assert np.flatnonzero(alive).tolist() == sorted(expected)
    assert all(int(hashes[r]) == p << 58 | tag for r, (p, tag) in expected.items())


def test_a_bucket_that_nobody_probes_is_marked_when_it_deepens():
    pair = Pair()
    pair.build([(0, 1, 0)] * 64)
    assert pair.marked() == set()
    pair.build([(1, 1, 0)])
    assert pair.marked() == {0}
    assert bucket_table.clean(pair.table.row, 1, 0, pair.table.marked()) == 64


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=64, max_size=64),
        min_size=4,
        max_size=4,
    )
)
@settings(max_examples=examples(20))
def test_segments_are_written_where_the_prefix_sum_says(segments):
    lanes = [segments[:2], segments[2:]]
    expected = naive.write(lanes)
    counts = np.array([[[len(s) for s in which] for which in lane] for lane in lanes])
    flat = counts.transpose(2, 1, 0).ravel()
    starts = (flat.cumsum() - flat).reshape(64, 2, 2)
    out = np.zeros(len(expected), np.int64)
    for i, lane in enumerate(lanes):
        for which in (0, 1):
            source = np.array([x for s in lane[which] for x in s], np.int64)
            targets = np.ascontiguousarray(starts[:, which, i])
            bucket.write(source, counts[i, which], targets, out)
    assert out.tolist() == expected


def test_chunks_are_aligned_and_their_parts_do_not_overlap():
    assert bucket_table.CHUNK_BYTES % 64 == 0
    assert (
        bucket_table.CHUNK.times - bucket_table.CHUNK.expiries
        == bucket_table.CHUNK.tags - bucket_table.CHUNK.times
        == 8 * bucket_table.SLOTS
    )
    assert (
        bucket_table.CHUNK_BYTES - bucket_table.CHUNK.rows
        == bucket_table.CHUNK.rows - bucket_table.CHUNK.tags
        == 4 * bucket_table.SLOTS
    )
    assert Table(1000, 3)._free[0] % 64 == 0
