"""Hashes: as the module's docstring says, and good enough to stand for the keys."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch, Column
from edged.data.hashing import all_valid, exact_bits, hash_columns
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import PARALLEL_ROWS, Workers
from tests.naive import hash as naive
from tests.whole import examples


def values_of(name: str) -> st.SearchStrategy:
    if name == "bool":
        return st.booleans()
    if name == "string":
        return st.text(max_size=40)
    if name == "binary":
        return st.binary(max_size=40)
    if name.startswith("float"):
        return st.floats(width=32 if name == "float32" else 64)
    bits = 64 if name == "timestamp" else int(name.strip("uint"))
    low = 0 if name.startswith("u") else -(2 ** (bits - 1))
    return st.integers(low, low + 2**bits - 1)


def batch_of(columns: dict[str, list], nullable: bool) -> Batch:
    """Columns named after their type."""
    schema = Schema.of(Field(name, TYPES[name], nullable) for name in columns)
    arrays = [
        pa.array(v, pa.int64()).cast(TYPES[name].arrow)
        if name == "timestamp"
        else pa.array(v, TYPES[name].arrow)
        for name, v in columns.items()
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, list(columns)), schema)


def naive_hashes(columns: dict[str, list]) -> list[int]:
    out: list[int] | None = None
    for name, values in columns.items():
        column = [naive.hash_value(name, TYPES[name].width, v) for v in values]
        out = column if out is None else naive.hash_combine(out, column)
    assert out is not None
    return out


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("nullable", [False, True])
def test_a_column_hashes_as_the_docstring_says(name, nullable):
    @settings(max_examples=examples(40), deadline=None)
    @given(st.lists(st.none() | values_of(name) if nullable else values_of(name), max_size=20))
    def check(values):
        hashes = hash_columns(batch_of({name: values}, nullable), [name])
        assert hashes.tolist() == naive_hashes({name: values})

    check()


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_several_columns_are_combined_from_left_to_right(data):
    names = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=2, max_size=4, unique=True))
    rows = data.draw(st.integers(0, 8))
    columns = {
        name: data.draw(st.lists(st.none() | values_of(name), min_size=rows, max_size=rows))
        for name in names
    }
    batch = batch_of(columns, True)
    assert hash_columns(batch, names).tolist() == naive_hashes(columns)
    masks = [[v is not None for v in column] for column in columns.values()]
    mask = all_valid(batch, names)
    assert mask is not None
    assert mask.tolist() == naive.all_valid(masks)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_zeros_are_one_key_and_all_nans_are_one_key(name):
    bits = TYPES[name].width * 8
    sign = 1 << (bits - 1)
    quiet = int(np.array(math.nan, TYPES[name].numpy).view(f"u{bits // 8}"))
    words = np.array([0, sign, quiet, quiet | sign, quiet | 1], f"u{bits // 8}")
    schema = Schema.of([Field("x", TYPES[name])])
    batch = Batch(schema, 5, (Column(words.view(TYPES[name].numpy)),))
    zero, minus_zero, *nans = hash_columns(batch, ["x"]).tolist()
    assert zero == minus_zero
    assert len(set(nans)) == 1
    assert nans[0] != zero


def test_the_low_32_bits_tell_32_bit_keys_apart():
    values = np.arange(2_000_000, dtype=np.int32) * np.int32(977)
    batch = Batch(Schema.of([Field("k", TYPES["int32"])]), values.size, (Column(values),))
    low = hash_columns(batch, ["k"]).astype(np.uint32)
    assert np.unique(low).size == values.size


@pytest.mark.parametrize("name", ["int32", "int64", "timestamp", "float32"])
def test_partitions_and_table_places_are_even_for_sequential_keys(name):
    n = 64 * 4096
    values = np.arange(n).astype(TYPES[name].numpy)
    batch = Batch(Schema.of([Field("k", TYPES[name])]), n, (Column(values),))
    hashes = hash_columns(batch, ["k"])
    partition = hashes >> np.uint64(58)
    counts = np.bincount(partition.astype(np.int64), minlength=64)
    assert counts.min() > 3700
    assert counts.max() < 4500
    place = hashes[partition == 7] & np.uint64(4095)
    assert np.bincount(place.astype(np.int64), minlength=4096).max() < 12


@pytest.mark.parametrize("count", [2, 4])
def test_workers_give_the_same_hashes_as_one_thread(count):
    n = PARALLEL_ROWS + 11
    rng = np.random.default_rng(3)
    schema = Schema.of([Field("a", TYPES["int32"], True), Field("b", TYPES["float64"])])
    valid = rng.integers(0, 2, n).astype(np.uint8)
    batch = Batch(
        schema, n, (Column(rng.integers(0, 99, n, np.int32), valid), Column(rng.random(n)))
    )
    workers = Workers(count)
    try:
        shared = hash_columns(batch, ["a", "b"], workers=workers)
    finally:
        workers.close()
    assert np.array_equal(shared, hash_columns(batch, ["a", "b"]))


def test_exact_bits_says_when_values_need_no_comparison():
    schema = Schema.of(Field(name, t) for name, t in TYPES.items())
    narrow = {"bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32"}
    for name in TYPES:
        expected = 32 if name in narrow else 0 if name in ("string", "binary") else 64
        assert exact_bits(schema, [name]) == expected
    assert exact_bits(schema, ["int8", "int16"]) == 0


def test_no_columns_hash_to_zero_and_columns_without_nulls_have_no_mask():
    batch = batch_of({"int8": [1, 2, 3]}, False)
    assert hash_columns(batch, []).tolist() == [0, 0, 0]
    assert all_valid(batch, ["int8"]) is None
