"""Open pages grow through size classes: bounded memory, unchanged bytes."""

from __future__ import annotations

import pytest

from edged.data.schema import INT32, STRING, Field, Schema
from edged.pages import room
from edged.pages.write import PageWriter
from tests.pages import shapes

DENSE = Schema.of([Field("k", INT32), shapes.TIME])
SLOTTED = Schema.of([*DENSE, Field("name", STRING, True)])
SCHEMAS = pytest.mark.parametrize("schema", [DENSE, SLOTTED], ids=["dense", "slotted"])


def written(schema, beats, batch_rows, **settings):
    """The pages of `beats` batches; the last beat flushes."""
    writer = PageWriter(shapes.stream_of(schema, partition_by=("k",), **settings))
    pages = []
    for number in range(1, beats + 1):
        now = shapes.beat(number, shapes.ONE)
        writer.write(now, shapes.batch_of(schema, rows_of(schema, number, batch_rows)))
        pages += writer.seal(now, number == beats)
    return [(page.partition, page.seq, page.data) for page in pages]


def rows_of(schema, beat, count):
    rows = []
    for i in range(count):
        n = beat * 7919 + i
        length = 300_000 if n % 997 == 0 else n % 300
        rows.append([n % 50, n, None if n % 5 == 0 else "x" * length][: len(schema)])
    return rows


@SCHEMAS
def test_pages_are_the_same_bytes_with_and_without_growth(schema, monkeypatch):
    settings = {"capacity": 1 << 17, "partitions": 3}
    grown = written(schema, 40, 400, **settings)
    monkeypatch.setattr(room, "ROOM_BYTES_MIN", 1 << 24)
    assert grown == written(schema, 40, 400, **settings)


@SCHEMAS
def test_trickling_rows_of_4096_partitions_take_little_memory(schema):
    stream = shapes.stream_of(schema, capacity=1 << 20, partitions=4096, partition_by=("k",))
    writer = PageWriter(stream)
    rows = [[k, k, "x"][: len(schema)] for k in range(40_000)]
    for number in range(1, 4):
        writer.write(shapes.beat(number, shapes.ONE), shapes.batch_of(schema, rows))
        assert writer.seal(shapes.beat(number, shapes.ONE), False) == []
    assert writer.open_rows() == 120_000
    assert writer.open_bytes() <= 4096 * 2 * room.ROOM_BYTES_MIN
    assert sum(len(b.data) for b in writer.seal(shapes.beat(4, shapes.ONE), True)) > 0
    assert writer.open_bytes() <= 3 * room.POOL_BYTES_MAX


@SCHEMAS
def test_a_grown_page_is_saved_and_restored(schema):
    stream = shapes.stream_of(schema, capacity=1 << 20)
    first, second = PageWriter(stream), PageWriter(stream)
    batches = [shapes.batch_of(schema, rows_of(schema, n, 900)) for n in (1, 2)]
    first.write(shapes.beat(1, shapes.ONE), batches[0])
    assert first.seal(shapes.beat(1, shapes.ONE), False) == []
    second.load(first.save())
    results = []
    for writer in (first, second):
        writer.write(shapes.beat(2, shapes.ONE), batches[1])
        results.append([p.data for p in writer.seal(shapes.beat(2, shapes.ONE), True)])
    assert results[0] == results[1]
