"""The memory of open pages is bounded: the largest are sealed early, the same in each replay."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.schema import INT32, STRING, Field, Schema
from edged.data.workers import Workers
from edged.pages.format import parse_header
from edged.pages.read import read_page
from edged.pages.room import ROOM_BYTES_MIN, ROOM_FACTOR
from edged.pages.write import EARLY_SHARE, PageWriter
from tests.pages import shapes
from tests.whole import examples

DENSE = Schema.of([Field("k", INT32), shapes.TIME])
SLOTTED = Schema.of([*DENSE, Field("name", STRING, True)])
SCHEMAS = pytest.mark.parametrize("schema", [DENSE, SLOTTED], ids=["dense", "slotted"])
PARTITIONS, LIMIT = 16, 256 << 10


def batch(schema, seed, count, keys=1000):
    """Rows of which most have few keys."""
    drawn = np.random.default_rng(seed).zipf(1.5, count) % keys
    rows = [[int(k), i, None if k % 7 == 0 else "x" * int(k % 40)] for i, k in enumerate(drawn)]
    return shapes.batch_of(schema, [row[: len(schema)] for row in rows])


def writer_of(schema):
    return PageWriter(
        shapes.stream_of(schema, partitions=PARTITIONS, partition_by=("k",), capacity=1 << 17)
    )


def key(page):
    return page.partition, page.seq, page.data


def bounded(writer, beat, rows, limit, decided=None):
    """A beat's pages, and the limit if pages were sealed early; `decided` repeats a beat."""
    writer.write(beat, rows)
    pages = writer.seal(beat, False)
    if writer.exceeds(limit) if decided is None else decided:
        return pages + writer.seal_early(beat, limit), True
    return pages, False


@SCHEMAS
def test_the_rows_of_open_pages_never_need_more_than_the_limit_after_a_beat(schema):
    writer, early = writer_of(schema), 0
    pages = []
    for number in range(1, 60):
        found, sealed_early = bounded(
            writer, shapes.beat(number), batch(schema, number, 3000), LIMIT
        )
        pages += found
        early += sealed_early
        assert writer.open_bytes() <= LIMIT
    assert 0 < early < 59
    assert writer.pages_early > 0
    pages += writer.seal(shapes.beat(60), True)
    for partition in range(PARTITIONS):
        mine = [page.seq for page in pages if page.partition == partition]
        assert sorted(mine) == list(range(1, len(mine) + 1))
    rows = [shapes.arrow_rows(read_page(page.data, schema), schema) for page in pages]
    given = [shapes.arrow_rows(batch(schema, n, 3000).to_arrow(), schema) for n in range(1, 60)]
    assert sorted(map(repr, chain(*rows))) == sorted(map(repr, chain(*given)))


@SCHEMAS
def test_the_largest_pages_are_sealed_first(schema):
    writer = writer_of(schema)
    pages, _ = bounded(writer, shapes.beat(), batch(schema, 1, 9000), 1 << 17)
    smallest = min(parse_header(page.data).raw_bytes for page in pages)
    left = writer.seal(shapes.beat(2), True)
    assert pages and left
    assert all(page.raw_bytes <= smallest for page in left)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 1000)), min_size=1, max_size=8),
    st.integers(PARTITIONS * ROOM_BYTES_MIN, 1 << 18), st.sampled_from([DENSE, SLOTTED]),
    st.integers(0, 7),
)  # fmt: skip
def test_a_replay_seals_the_same_pages(beats, limit, schema, cut):
    """With other workers, and from a saved state, whose buffers have other sizes."""
    workers, first = Workers(3), writer_of(schema)
    again, states, pages, decided = writer_of(schema), [], [], []
    try:
        for number, (count, keys) in enumerate(beats):
            states.append({k: v.copy() for k, v in first.save().items()})
            found, early = bounded(
                first, shapes.beat(number), batch(schema, number, count, keys), limit
            )
            pages.append([key(page) for page in found])
            decided.append(early)
        cut %= len(beats)
        for start in (0, cut):
            again = writer_of(schema)
            again.load(states[start])
            for number, (count, keys) in list(enumerate(beats))[start:]:
                found, _ = bounded(
                    again, shapes.beat(number, workers), batch(schema, number, count, keys), limit,
                    decided[number],
                )  # fmt: skip
                assert [key(page) for page in found] == pages[number]
    finally:
        workers.close()


@SCHEMAS
def test_buffers_that_are_larger_than_their_rows_need_are_replaced_before_a_page_is_sealed(schema):
    writer, other = writer_of(schema), writer_of(schema)
    for each in (writer, other):
        each.write(shapes.beat(), batch(schema, 1, 60_000))
        each.seal(shapes.beat(), True)
        each.write(shapes.beat(2), batch(schema, 2, 100))
        each.seal(shapes.beat(2), False)
    before = writer.open_bytes()
    assert not writer.exceeds(before - 1)
    assert writer.open_bytes() <= PARTITIONS * ROOM_BYTES_MIN * ROOM_FACTOR < before
    assert not writer.exceeds(PARTITIONS * ROOM_BYTES_MIN * ROOM_FACTOR)
    ends = [[key(p) for p in each.seal(shapes.beat(3), True)] for each in (writer, other)]
    assert ends[0] == ends[1]


def test_a_share_of_the_limit_is_free_after_pages_were_sealed_early():
    writer = writer_of(DENSE)
    bounded(writer, shapes.beat(), batch(DENSE, 1, 40_000), LIMIT)
    assert writer.open_bytes() <= LIMIT * EARLY_SHARE
