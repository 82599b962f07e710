"""Rows picked by index are the rows that a list would give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch, empty_batch
from edged.data.gather import take
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from kernels.cpu import gather as kernels
from tests.naive.gather import flagged, gather, gather_offsets
from tests.whole import examples

SCHEMA = Schema.of(
    Field(f"{name}{'_n' if nullable else ''}", dtype, nullable)
    for name, dtype in TYPES.items()
    for nullable in (False, True)
)


def value_of(name: str, i: int):
    if name == "string":
        return "é" * (i % 40)
    if name == "binary":
        return bytes([i % 256]) * (i % 70)
    return i % 2 == 0 if name == "bool" else i % 100


def batch_of(numbers: list[int]) -> Batch:
    arrays = [
        pa.array(
            [None if f.nullable and i % 3 == 0 else value_of(f.dtype.name, i) for i in numbers],
            pa.int64() if f.dtype.name == "timestamp" else f.dtype.arrow,
        ).cast(f.dtype.arrow)
        for f in SCHEMA
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.to_arrow()), SCHEMA)


def plain(batch: Batch) -> list[dict]:
    return batch.to_arrow().to_pylist()


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_take_gives_what_a_list_of_rows_would(data):
    numbers = data.draw(st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
    rows = data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=60))
    batch = batch_of(numbers)
    taken = take(batch, np.array(rows, np.int64), Scratch())
    assert plain(taken) == gather(plain(batch), rows)


@settings(deadline=None)
@given(st.lists(st.integers(0, 255)))
def test_flagged_finds_what_is_not_zero(flags):
    rows = np.full(len(flags), -1, np.int64)
    found = kernels.flagged(np.array(flags, np.uint8), rows)
    assert rows[:found].tolist() == flagged(flags)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_take_from_a_slice_whose_offsets_do_not_start_at_zero(data):
    numbers = data.draw(st.lists(st.integers(0, 10_000), min_size=3, max_size=30))
    start = data.draw(st.integers(0, len(numbers) - 1))
    piece = batch_of(numbers).slice(start, len(numbers))
    rows = data.draw(st.lists(st.integers(0, piece.rows - 1), max_size=40))
    assert plain(take(piece, np.array(rows, np.int64), Scratch())) == gather(plain(piece), rows)


def test_offsets_of_the_result_start_at_zero_and_are_dense():
    batch = batch_of([5, 17, 39])
    rows = np.array([2, 0, 2], np.int64)
    lengths = [len(value_of("string", i).encode()) for i in (5, 17, 39)]
    offsets = take(batch, rows, Scratch())["string"].offsets
    assert offsets is not None
    assert offsets.tolist() == gather_offsets(lengths, rows.tolist())


def test_no_rows_from_any_batch_is_an_empty_batch():
    none = np.empty(0, np.int64)
    assert take(batch_of([1, 2]), none, Scratch()).rows == 0
    assert plain(take(empty_batch(SCHEMA), none, Scratch())) == []


def test_the_second_take_reuses_the_scratch_of_the_first_and_other_names_do_not():
    batch, scratch = batch_of(list(range(50))), Scratch()
    first = take(batch, np.arange(50), scratch, "a")
    other = take(batch, np.arange(50)[::-1], scratch, "b")
    again = take(batch, np.arange(7), scratch, "a")
    assert np.shares_memory(first["int64"].values, again["int64"].values)
    assert not np.shares_memory(first["int64"].values, other["int64"].values)


@pytest.mark.parametrize("count", [2, 4])
def test_workers_give_the_same_bytes_as_one_thread(count):
    batch = batch_of(list(range(500)))
    rows = np.random.default_rng(1).integers(0, 500, PARALLEL_ROWS * 2 + 3)
    alone = take(batch, rows, Scratch())
    workers = Workers(count)
    try:
        shared = take(batch, rows, Scratch(), workers=workers)
    finally:
        workers.close()
    for a, b in zip(alone.columns, shared.columns, strict=True):
        assert a.values.tobytes() == b.values.tobytes()
        assert (a.valid is None) == (b.valid is None)
        assert a.valid is None or a.valid.tobytes() == b.valid.tobytes()
        assert a.offsets is None or a.offsets.tobytes() == b.offsets.tobytes()


def test_read_only_input_is_taken_too():
    batch = batch_of([1, 2, 3])
    for column in batch.columns:
        column.values.flags.writeable = False
    rows = np.array([2, 1], np.int64)
    rows.flags.writeable = False
    assert plain(take(batch, rows, Scratch())) == gather(plain(batch), [2, 1])
