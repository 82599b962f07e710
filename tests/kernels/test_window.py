"""The window's kernels on their groups; what rows become is tested in `tests.operators`."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu import window as kernels
from kernels.cpu.accumulate import VARIABLE
from tests.naive import window as naive

KEYS = np.array([[0, VARIABLE, kernels.GROUP.keys]], np.int64)
GROUPS = st.lists(
    st.tuples(st.integers(-20, 20), st.binary(max_size=12), st.integers(0, 2**64 - 1)), max_size=30
)


def arrays(groups):
    """Groups with one string key each, and their store."""
    begins, joined = naive.lay_out([g[1] for g in groups])
    rows = np.zeros((len(groups), kernels.GROUP.keys + 3), np.int64)
    for row, begin, (start, value, key_hash) in zip(rows, begins, groups, strict=True):
        row[kernels.GROUP.start], row[kernels.GROUP.keys], row[kernels.GROUP.keys + 1] = (
            start,
            begin,
            len(value),
        )
        row[kernels.GROUP.hash] = np.uint64(key_hash).astype(np.int64)
    return rows, np.frombuffer(bytearray(joined), np.uint8)


def listed(rows, store):
    """(start, string) of every group."""
    return [
        (
            int(r[kernels.GROUP.start]),
            store[r[kernels.GROUP.keys] :][: r[kernels.GROUP.keys + 1]].tobytes(),
        )
        for r in rows
    ]


@given(GROUPS, st.integers(-21, 21))
def test_expire_splits_the_groups_in_order_and_closes_the_gaps(groups, before):
    rows, store = arrays(groups)
    starts, values = [g[0] for g in groups], [g[1] for g in groups]
    found = np.zeros(2, np.int64)
    kernels.count_expired(KEYS, rows, kernels.GROUP.start, before, found)
    assert found.tolist() == naive.count_expired(starts, [len(v) for v in values], before)
    state = np.zeros(len(kernels.STATE), np.int64)
    state[kernels.STATE.groups], state[kernels.STATE.bytes] = len(groups), store.size
    table = np.full(64, -1, np.int32)
    gone, gone_store = np.zeros((found[0], rows.shape[1]), np.int64), np.zeros(found[1], np.uint8)
    start = kernels.GROUP.start
    kernels.expire(KEYS, rows, store, state, table, start, before, gone, gone_store)
    kept = rows[: state[kernels.STATE.groups]]
    stay, go = naive.expire(starts, values, before)
    assert (listed(kept, store), listed(gone, gone_store)) == (stay, go)
    assert state[kernels.STATE.bytes] == sum(len(v) for _, v in stay)
    assert state[kernels.STATE.oldest] == min((s for s, _ in stay), default=kernels.OLDEST_NONE)
    hashes = [int(h) for h in kept[:, kernels.GROUP.hash].astype(np.uint64)]
    assert table.tolist() == naive.rebuild(hashes, [s for s, _ in stay], 64)


@given(GROUPS, st.randoms())
def test_lay_out_puts_strings_into_the_order_of_groups(groups, random):
    rows, store = arrays(groups)
    order = list(range(len(groups)))
    random.shuffle(order)
    rows = np.ascontiguousarray(rows[order])
    to = np.zeros(store.size, np.uint8)
    kernels.lay_out(KEYS, rows, store, to)
    places, joined = naive.lay_out([groups[i][1] for i in order])
    assert to.tobytes() == joined
    assert rows[:, kernels.GROUP.keys].tolist() == places


@given(GROUPS)
def test_strings_become_offsets_and_bytes(groups):
    rows, store = arrays(groups)
    offsets, to = np.zeros(len(groups) + 1, np.int64), np.zeros(store.size, np.uint8)
    begins = np.ascontiguousarray(rows[:, kernels.GROUP.keys])
    sizes = np.ascontiguousarray(rows[:, kernels.GROUP.keys + 1])
    assert kernels.strings(store, begins, sizes, offsets, to) == store.size
    assert (offsets.tolist(), to.tobytes()) == naive.strings([g[1] for g in groups])


@given(GROUPS)
def test_a_table_built_anew_is_one_of_linear_probes(groups):
    rows, _ = arrays(groups)
    table = np.zeros(64, np.int32)
    kernels.rebuild(rows, table, kernels.GROUP.start)
    hashes, starts = [g[2] for g in groups], [g[0] for g in groups]
    assert table.tolist() == naive.rebuild(hashes, starts, 64)
