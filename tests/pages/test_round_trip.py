"""Rows written to pages are read back, by edged's reader and by one written from the
specification."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.hashing import hash_columns
from edged.data.schema import FLOAT64, INT32, STRING, TYPES, Field, Schema
from edged.errors import PageError
from edged.pages.format import iter_pages, verify
from edged.pages.read import PageDecoder, read_page, read_pages, read_weights
from edged.pages.write import PageWriter
from tests.naive import pages as naive
from tests.pages import shapes
from tests.whole import examples

FIXED = tuple(name for name, t in TYPES.items() if not t.variable)


def check(schema, rows, **settings):
    """Write, read in both ways, compare; returns the pages."""
    batch = shapes.batch_of(schema, rows)
    pages = shapes.write_all(shapes.stream_of(schema, **settings), [batch])
    ours, theirs = [], []
    for page in pages:
        header, found, _, _ = naive.read_page(page.data, shapes.plain(schema))
        assert (header["partition"], header["seq"]) == (page.partition, page.seq)
        theirs += found
        arrow = read_page(page.data, schema)
        arrow.validate(full=True)
        ours += shapes.arrow_rows(arrow, schema)
    assert sorted(map(shapes.bits, ours)) == sorted(map(shapes.bits, rows))
    assert [shapes.bits(r) for r in theirs] == [shapes.bits(r) for r in ours]
    if settings.get("partitions", 1) == 1:
        assert [shapes.bits(r) for r in ours] == [shapes.bits(r) for r in rows]
    return pages


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_any_rows_of_any_schema_come_back_bit_for_bit(data):
    schema = data.draw(shapes.schemas())
    check(schema, data.draw(shapes.rows(schema)), capacity=4096)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_dense_rows_come_back_bit_for_bit(data):
    schema = data.draw(shapes.schemas(FIXED))
    check(schema, data.draw(shapes.rows(schema)) * 20, capacity=4096)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_partitioned_rows_come_back_in_order_within_their_partition(data):
    schema = data.draw(shapes.schemas())
    rows = data.draw(shapes.rows(schema))
    by = tuple(data.draw(st.permutations(schema.names)))[:2]
    check(schema, rows, capacity=4096, partitions=3, partition_by=by)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_choice_of_columns_reads_the_same_values(data):
    schema = data.draw(shapes.schemas())
    batch = shapes.batch_of(schema, data.draw(shapes.rows(schema)))
    names = data.draw(st.permutations(schema.names))
    names = names[: data.draw(st.integers(1, len(names)))]
    for page in shapes.write_all(shapes.stream_of(schema), [batch]):
        whole, some = read_page(page.data, schema), read_page(page.data, schema, names)
        assert some.schema.names == names
        assert all(some.column(n).to_string() == whole.column(n).to_string() for n in names)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_cut_into_batches_does_not_show_in_the_rows_of_a_page(data):
    schema = data.draw(shapes.schemas())
    rows = data.draw(shapes.rows(schema))
    cut = data.draw(st.integers(0, len(rows)))
    whole = shapes.batch_of(schema, rows)
    writers = [PageWriter(shapes.stream_of(schema)) for _ in range(2)]
    writers[0].write(shapes.beat(), whole)
    writers[1].write(shapes.beat(), whole.slice(0, cut))
    writers[1].write(shapes.beat(), whole.slice(cut, len(rows)))
    assert writers[0].seal(shapes.beat(), True) == writers[1].seal(shapes.beat(), True)


SLOTTED = Schema.of(
    [Field("turbine", STRING), shapes.TIME, Field("power", FLOAT64, True), Field("n", STRING, True)]
)
MANY = [
    [f"R8072{i % 7}", 1000 * i, None if i % 5 == 0 else i / 7, None if i % 3 else "é" * (i % 40)]
    for i in range(3000)
]


def test_many_pages_are_gathered_into_few_batches_in_order():
    pages = [p.data for p in check(SLOTTED, MANY, capacity=4096)]
    assert len(pages) > 10
    one = list(read_pages(pages, SLOTTED))
    assert [b.num_rows for b in one] == [3000]
    assert shapes.arrow_rows(one[0], SLOTTED) == MANY
    small = list(read_pages(pages, SLOTTED, batch_bytes=20_000))
    assert len(small) > 3
    assert [r for b in small for r in shapes.arrow_rows(b, SLOTTED)] == MANY


def test_pages_one_behind_the_other_are_told_apart():
    pages = [p.data for p in check(SLOTTED, MANY, capacity=8192)]
    assert [bytes(view) for _, view in iter_pages(b"".join(pages))] == pages


def test_repetitive_pages_are_compressed_and_random_ones_are_not():
    schema = Schema.of([shapes.TIME, Field("c", INT32)])
    same = check(schema, [[5, 5]] * 1000)
    assert verify(same[0].data).compressed
    assert len(same[0].data) < 1000
    numbers = np.random.default_rng(1).integers(-(2**31), 2**31, (1000, 2)).tolist()
    noise = check(schema, [[a * b, b] for a, b in numbers])
    assert not verify(noise[0].data).compressed


def test_nothing_is_sealed_without_rows():
    assert shapes.write_all(shapes.stream_of(SLOTTED), [shapes.batch_of(SLOTTED, [])]) == []


def test_the_header_says_what_the_page_holds():
    pages = check(SLOTTED, MANY, capacity=4096, partitions=4, partition_by=("turbine",))
    for page in pages:
        header, rows, _, keys = naive.read_page(page.data, shapes.plain(SLOTTED))
        assert header["device"] == "gateway-1" and header["stream"] == "power"
        assert (header["epoch"], header["version"], header["capacity"]) == (7, 3, 4096)
        assert header["time_min_us"] == min(r[1] for r in rows)
        assert header["time_max_us"] == max(r[1] for r in rows)
        assert header["sealed_at_us"] == 1_700_000_000_000_000 + header["beat"]
        assert header["raw_bytes"] <= 4096
        hashes = hash_columns(shapes.batch_of(SLOTTED, rows), ["turbine"]).tolist()
        assert keys == [h & 0xFFFFFFFF for h in hashes]
        assert {(h >> 32) % 4 for h in hashes} == {page.partition}
    seqs = [p.seq for p in pages if p.partition == pages[0].partition]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.parametrize("schema", [SLOTTED, Schema.of([shapes.TIME, Field("x", INT32, True)])])
def test_weights_ride_along(schema):
    rows = [[r[0], *r[1:]] for r in MANY[:50]] if schema is SLOTTED else [[i, i] for i in range(50)]
    weights = np.array([1, -1] * 25, np.int32)
    writer = PageWriter(shapes.stream_of(schema, weighted=True, capacity=4096))
    writer.write(shapes.beat(), shapes.batch_of(schema, rows), weights)
    found = []
    for page in writer.seal(shapes.beat(), True):
        _, read, there, _ = naive.read_page(page.data, shapes.plain(schema))
        assert read_weights(page.data).tolist() == there
        assert shapes.arrow_rows(read_page(page.data, schema), schema) == read
        found += there
    assert found == weights.tolist()


def test_a_page_under_another_schema_is_refused_and_leaves_the_decoder_as_it_was():
    page = check(SLOTTED, MANY[:20])[0].data
    narrow = Schema.of([Field("turbine", STRING), shapes.TIME])
    for other in (narrow, Schema.of([shapes.TIME]), Schema.of([*SLOTTED, Field("z", STRING)])):
        with pytest.raises(PageError, match="power@3 partition 0 seq 1 of device gateway-1"):
            read_page(page, other)
    dense = check(Schema.of([shapes.TIME]), [[1], [2]])[0].data
    decoder = PageDecoder(SLOTTED)
    decoder.add(page)
    with pytest.raises(PageError, match="does not fit its schema"):
        decoder.add(dense)
    assert shapes.arrow_rows(decoder.finish(), SLOTTED) == MANY[:20]
    assert decoder.finish().num_rows == 0


def test_asking_for_no_column_is_refused():
    with pytest.raises(ValueError, match="at least one column"):
        PageDecoder(SLOTTED, [])
    with pytest.raises(KeyError):
        PageDecoder(SLOTTED, ["nothing"])


def test_the_reader_needs_neither_numba_nor_lz4():
    code = (
        "import sys, edged.pages.read; "
        "sys.exit(any(m in sys.modules for m in ('numba', 'lz4', 'kernels')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
