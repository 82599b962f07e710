"""The pages sink: deterministic, restorable, bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import Flow, Link
from edged.data.schema import FLOAT32, INT32, STRING, Field, Schema
from edged.data.workers import Workers
from edged.errors import JobError
from edged.pages.format import parse_header, verify
from edged.pages.read import read_page
from edged.sinks.base import SINKS, Flush, SinkContext
from edged.sinks.pages import PagesPlan
from tests.pages import shapes
from tests.whole import examples

DENSE = Schema.of([Field("k", INT32), shapes.TIME, Field("v", FLOAT32, True)])
SLOTTED = Schema.of([*DENSE, Field("name", STRING, True)])


def plan(schema=DENSE, **document):
    return PagesPlan.parse("sinks.out", "out", document, Link(schema, "time"))


def running(schema=DENSE, **document):
    return plan(schema, **document).build(SinkContext("dev", 9, "", shapes.ONE))


def batch(schema, count, seed=1):
    random = np.random.default_rng(seed)
    keys = random.zipf(1.3, count) % 1000
    rows = [
        [int(k), i, None if k % 5 == 0 else float(k), None if k % 7 == 0 else "x" * int(k % 50)]
        for i, k in enumerate(keys)
    ]
    return shapes.batch_of(schema, [r[: len(schema)] for r in rows])


def run(sink, batches, workers=shapes.ONE, flush_every=3, first=1):
    pages = []
    for number, rows in enumerate(batches, first):
        now = shapes.beat(number, workers)
        sink.write(now, Flow(rows, 0))
        pages += sink.seal(now, Flush(number % flush_every == 0))
    return pages


@pytest.mark.parametrize("schema", [DENSE, SLOTTED], ids=["dense", "slotted"])
def test_pages_are_byte_equal_for_any_number_of_workers(schema):
    document = {"partitions": 7, "partition_by": ["k"], "page": "16KiB"}
    batches = [batch(schema, 40_000, seed) for seed in range(3)]
    found = []
    for count in (1, 2, 4):
        workers = Workers(count)
        try:
            found.append(run(running(schema, **document), batches, workers))
        finally:
            workers.close()
    assert found[0] == found[1] == found[2]
    assert len({p.key.partition for p in found[0]}) == 7
    assert sum(verify(p.data).tuples for p in found[0]) == 120_000


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 400), st.integers(0, 3), st.sampled_from([DENSE, SLOTTED]))
def test_a_sink_that_is_restored_in_the_middle_of_a_page_goes_on_byte_for_byte(size, cut, schema):
    document = {"partitions": 3, "partition_by": ["k"], "page": 4096}
    batches = [batch(schema, size, seed) for seed in range(5)]
    whole = run(running(schema, **document), batches)
    before = running(schema, **document)
    pages = run(before, batches[:cut])
    state = {name: array.copy() for name, array in before.save().items()}
    after = running(schema, **document)
    after.load(state)
    assert after.open_rows() == before.open_rows()
    run(before, batches[:1], first=100)
    assert pages + run(after, batches[cut:], first=cut + 1) == whole


def test_saving_changes_nothing():
    sink, other = running(SLOTTED), running(SLOTTED)
    for each in (sink, other):
        run(each, [batch(SLOTTED, 100)], flush_every=99)
    sink.save()
    assert run(sink, [batch(SLOTTED, 100)], first=3) == run(other, [batch(SLOTTED, 100)], first=3)


def test_a_page_that_is_exactly_full_leaves_with_its_beat():
    schema = Schema.of([shapes.TIME])
    fits = (4096 - 224) // 8
    sink = running(schema, page="4KiB")
    for count, pages in ((fits - 1, 0), (1, 1), (fits * 2 + 1, 2)):
        sink.write(shapes.beat(), Flow(shapes.batch_of(schema, [[i] for i in range(count)]), 0))
        assert len(sink.seal(shapes.beat(), False)) == pages
    assert sink.open_rows() == 1


def test_a_row_larger_than_a_page_gets_a_larger_page():
    rows = [[1, 1, None, "a"], [2, 2, None, "b" * 9000], [3, 3, None, "c"], [4, 4, None, "d"]]
    sink = running(SLOTTED, page="4KiB")
    sink.write(shapes.beat(), Flow(shapes.batch_of(SLOTTED, rows), 0))
    pages = [p.data for p in sink.seal(shapes.beat(), True)]
    assert [parse_header(p).tuples for p in pages] == [1, 3]
    assert [parse_header(p).capacity for p in pages] == [4096, 10 * 1024]
    found = [r for p in pages for r in shapes.arrow_rows(read_page(p, SLOTTED), SLOTTED)]
    assert found == rows


def test_a_row_that_no_page_can_hold_is_counted_and_left_out():
    rows = [[1, 1, None, "a"], [2, 2, None, "b" * (16 << 20)], [3, 3, None, "c"]]
    sink = running(SLOTTED)
    sink.write(shapes.beat(), Flow(shapes.batch_of(SLOTTED, rows), 0))
    pages = sink.seal(shapes.beat(), True)
    found = [r for p in pages for r in shapes.arrow_rows(read_page(p.data, SLOTTED), SLOTTED)]
    assert found == [rows[0], rows[2]]
    assert sink.counters()["rows_too_large"] == 1
    assert sink.counters()["rows"] == 2


def test_an_empty_beat_gives_no_pages():
    sink = running(partitions=64, partition_by=["k"])
    assert run(sink, [shapes.batch_of(DENSE, [])] * 5, flush_every=1) == []
    assert sink.counters()["open_bytes"] == 0


def test_defaults_and_schemas():
    p = plan()
    assert (p.stream, p.stream_version, p.partitions, p.capacity) == ("out", 1, 1, 1 << 20)
    assert p.schemas() == (("out", 1, DENSE.to_json()),)
    assert SINKS["pages"] is PagesPlan
    assert p.describe()[0] == "pages of stream out@1, 1 partition"


def test_the_signature_follows_everything_that_open_pages_depend_on():
    documents = [
        {}, {"stream": "other"}, {"version": 2}, {"partition_by": ["k"]}, {"page": "4KiB"},
        {"partition_by": ["k"], "partitions": 2},
    ]  # fmt: skip
    signatures = [plan(**d).signature() for d in documents] + [plan(SLOTTED).signature()]
    assert len(set(signatures)) == len(signatures)
    assert plan().signature() == plan(stream="out", version=1).signature()


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"partition_by": ["kk"]}, "sinks.out.partition_by[0]"),
        ({"partition_by": "k"}, "sinks.out.partition_by"),
        ({"partitions": 4}, "sinks.out.partitions"),
        ({"partitions": 0, "partition_by": ["k"]}, "sinks.out.partitions"),
        ({"version": 0}, "sinks.out.version"),
        ({"stream": "No Name"}, "sinks.out.stream"),
        ({"page": "1KiB"}, "sinks.out.page"),
        ({"page": "17MiB"}, "sinks.out.page"),
        ({"page": True}, "sinks.out.page"),
    ],
)
def test_what_is_wrong_in_the_document_is_named(document, path):
    with pytest.raises(JobError) as caught:
        plan(**document)
    assert caught.value.path == path


def test_a_row_must_fit_the_page():
    wide = Schema.of([shapes.TIME, *(Field(f"c{i}", FLOAT32) for i in range(1200))])
    with pytest.raises(JobError, match="does not hold one row"):
        plan(wide, page="4KiB")


def test_pages_above_the_entropy_threshold_are_stored_raw():
    rows = [batch(SLOTTED, 5_000)]
    raw = run(running(SLOTTED, entropy_max=0), rows, flush_every=1)
    small = run(running(SLOTTED, entropy_max=8), rows, flush_every=1)
    assert [parse_header(p.data).compressed for p in raw + small] == [False, True]
    assert read_page(raw[0].data, SLOTTED) == read_page(small[0].data, SLOTTED)


@pytest.mark.parametrize("value", [-0.1, 8.1, "7", True])
def test_an_entropy_threshold_is_bits_per_byte(value):
    with pytest.raises(JobError, match="entropy_max"):
        plan(entropy_max=value)
