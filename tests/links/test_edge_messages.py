"""Messages of a link: what pyarrow reads is what was written, whatever the schema."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import address
from edged.data.schema import STRING, Field, Schema
from edged.links.compression import COMPRESS
from edged.links.flatbuffer import messages
from edged.links.messages import MessageWriter
from edged.links.page import LINK_HEADER_BYTES
from kernels.cpu import link_messages as kernels
from tests.beat.support import plain
from tests.links.support import decoded, header
from tests.naive import link_messages as naive
from tests.pages import shapes
from tests.whole import examples


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2**63))
def test_the_digest_is_that_of_the_naive_twin(data, seed):
    body = np.frombuffer(data + bytes(-len(data) % 8) + bytes(8), np.uint8)[:-8]
    assert kernels.digest(address(body), body.size, np.uint64(seed)) == naive.digest(
        bytes(body), seed
    )
    digits = np.zeros(16, np.uint8)
    kernels.patch(address(digits), address(body), body.size, np.uint64(seed))
    assert bytes(digits) == naive.patch(bytes(body), seed)


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_pyarrow_reads_the_rows_that_were_picked(data):
    schema = data.draw(shapes.schemas())
    rows = data.draw(shapes.rows(schema))
    batch = shapes.batch_of(schema, rows)
    numbers = (
        data.draw(st.lists(st.integers(0, max(0, len(rows) - 1)), max_size=30)) if rows else []
    )
    order = data.draw(st.sampled_from([None, np.array(numbers, np.int64)]))
    count = len(rows) if order is None else order.size
    ends = sorted(data.draw(st.sets(st.integers(0, count), max_size=4)) | {count})
    watermarks = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=len(ends),
                                    max_size=len(ends)))  # fmt: skip
    writer = MessageWriter(schema, data.draw(st.sampled_from(COMPRESS)), 7.0)
    table = writer.table(batch, order)
    train = writer.write(table, 0, np.array(ends), np.array(watermarks, np.int64), 41)
    page = train.page("link:job/out", writer.version, 2, 41)

    picked = list(range(count)) if order is None else order.tolist()
    wanted = naive.encode(batch.to_arrow(), pa.array(picked, pa.int64()), 0, ends)
    found = decoded(schema, page)
    assert [f[0] for f in found] == list(range(41, 41 + len(ends)))
    assert [f[1] for f in found] == watermarks
    for (_, _, _, mine), theirs in zip(found, wanted, strict=True):
        assert repr(plain(mine)) == repr(plain(theirs))
    head = header(page)
    assert (head.first, head.last, head.rows, head.length) == (41, 40 + len(ends), count, len(page))
    assert head.digest == found[-1][2]
    seen = [int(told[b"edged.seq"]) for _, told in messages(memoryview(page)[LINK_HEADER_BYTES:])]
    assert seen == [f[0] for f in found]


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_a_message_ends_with_the_row_that_fills_its_buffer(data):
    schema = data.draw(shapes.schemas())
    rows = data.draw(shapes.rows(schema))
    buffer = data.draw(st.sampled_from([0, 1, 50, 200, 1024]))
    writer = MessageWriter(schema, "never", 7.0)
    batch = shapes.batch_of(schema, rows)
    sizes = [0] * len(rows)
    for f, column in zip(schema.fields, batch.columns, strict=True):
        for i in range(len(rows)):
            sizes[i] += max(f.dtype.width, 1) if not f.dtype.variable else 4
            sizes[i] += f.nullable
            if f.dtype.variable:
                sizes[i] += int(column.offsets[i + 1] - column.offsets[i])
    table = writer.table(batch, None)
    ends = writer.ends(table, len(rows), buffer).tolist()
    assert ends == naive.cut(sizes, buffer)
    stop = [*ends, len(rows)] if not ends or ends[-1] < len(rows) else ends
    layout = np.array([[-1 if f.dtype.variable else 0 if f.dtype.name == "bool" else f.dtype.width,
                        f.nullable] for f in schema], np.int64)  # fmt: skip
    head = writer.head_bytes
    room = kernels.room(table, layout, head, 0, len(rows), len(stop))
    train = writer.write(table, 0, np.array(stop), np.zeros(len(stop), np.int64), 1)
    bits = sum(f.dtype.name == "bool" or f.nullable for f in schema) * len(rows)
    assert naive.room(sizes, head, len(stop)) - bits - 4 * bits <= train.raw_bytes <= room


def test_rows_that_compress_are_sent_in_fewer_bytes_and_random_ones_as_they_are():
    schema = Schema.of([Field("s", STRING)])
    poor = shapes.batch_of(schema, [["reading of the north tower"]] * 500)
    random = np.random.default_rng(1)
    rich = shapes.batch_of(
        schema, [["".join(map(chr, random.integers(0, 128, 60)))] for _ in range(500)]
    )
    for batch, compressed in ((poor, True), (rich, False)):
        writer = MessageWriter(schema, "auto", 6.0)
        train = writer.write(
            writer.table(batch, None), 0, np.array([500]), np.zeros(1, np.int64), 1
        )
        assert bool(train.compressed) == compressed
        assert (train.data.size < train.raw_bytes / 2) == compressed
