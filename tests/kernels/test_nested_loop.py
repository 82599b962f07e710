"""Windows that are searched from end to end, against their naive twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.joins._windows import ENTRIES_MIN, Window, live_rows, oldest_row
from kernels.cpu import nested_loop
from tests.kernels.test_bucket import Batch
from tests.naive import nested_loop as naive
from tests.whole import examples

NO_KEYS = np.zeros((0, 5), np.int64)
ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 2**32 - 1]), st.sampled_from([0, 63])),
    max_size=200,
)


def push(window, twin, rows, first):
    batch = Batch(rows, first)
    window.reserve(batch.rows)
    nested_loop.append(window.row, batch.records, batch.edges)
    naive.append(twin, [row for part in batch.parts for row in part])
    return batch


def probe(batch, window, swapped, job, room):
    out = np.zeros((2, room), np.int64)
    progress = np.array([window.row[nested_loop.WINDOW.start], 0, 0], np.int64)
    while not nested_loop.probe(
        batch.records, 0, batch.rows, window.row, swapped, job, NO_KEYS, progress, *out
    ):
        larger = np.zeros((2, 2 * out.shape[1] + 1), np.int64)
        larger[:, : out.shape[1]] = out
        out = larger
    return out[:, : progress[nested_loop.PROGRESS.pairs]].T.tolist()


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(ROWS, st.integers(0, 40)), max_size=4),
    ROWS,
    st.integers(0, 1),
    st.integers(0, 9),
)
def test_pairs_and_windows_are_the_twins(batches, probing, swapped, room):
    window, twin, first = Window(), [], 0
    for rows, bound in batches:
        push(window, twin, rows, first)
        first += len(rows)
        nested_loop.evict(window.row, bound, 0)
        naive.evict(twin, bound, False)
        assert sorted(window.numbers(0).tolist()) == sorted(n for *_, n in twin)
    assert oldest_row([window], 0, first) == min((n for *_, n in twin), default=first)
    rows, hashes = live_rows([window], 0)
    assert dict(zip(rows.tolist(), (hashes & 0xFFFFFFFF).tolist(), strict=True)) == {
        n: tag for _, tag, n in twin
    }
    batch = Batch(probing)
    job = np.array([3, 9, 0, 0], np.int64)
    found = probe(batch, window, swapped, job, room)
    back, ahead = (9, 3) if swapped else (3, 9)
    rows = [row for part in batch.parts for row in part]
    expected = naive.probe(rows, twin, back, ahead)
    assert sorted((b, a) if swapped else (a, b) for a, b in found) == sorted(expected)


@pytest.mark.parametrize("entries", [31, 32, 33, 4095, 4096, 4097, 9000])
def test_windows_of_all_sizes_are_searched_to_their_last_entry(entries):
    window, twin = Window(), []
    push(window, twin, [(0, i, 0) for i in range(entries)], 0)
    batch = Batch([(0, entries - 1, 0), (0, 0, 0), (0, entries, 0)])
    found = probe(batch, window, 0, np.zeros(4, np.int64), 0)
    assert sorted(found) == [[0, entries - 1], [1, 0]]


def test_a_window_keeps_its_memory_while_what_it_holds_fits():
    window, twin = Window(), []
    size = window.nbytes()
    for k in range(50):
        push(window, twin, [(k, 1, 0)] * (ENTRIES_MIN // 4), 100 * k)
        nested_loop.evict(window.row, k, 0)
    assert window.nbytes() <= 2 * size
    nested_loop.evict(window.row, 0, 1)
    assert window.entries == 0
    assert oldest_row([window], 0, 77) == 77
