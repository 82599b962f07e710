"""The sink `edge`: deterministic, restorable, and its watermarks never pass a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import empty_batch
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.schema import INT32, STRING, Field, Schema
from edged.errors import JobError
from edged.job.plan import faults
from edged.links.in_flight import InFlight
from edged.pages.sealed import PageKey, SealedPage
from edged.sinks.base import Flush, SinkContext
from edged.sinks.edge import EdgePlan
from tests.beat.support import plain
from tests.links.chain import hop_job
from tests.links.support import decoded, header, plan
from tests.pages import shapes
from tests.whole import examples

SCHEMA = Schema.of([Field("k", INT32), shapes.TIME, Field("name", STRING, True)])


def running(**document):
    return plan(SCHEMA, **document).build(SinkContext("dev", 9, "", shapes.ONE))


def batch(first, count):
    """Rows with rising times and keys of few values."""
    rows = [[i * 7 % 5, i, None if i % 7 == 0 else "x" * (i % 50)]
            for i in range(first, first + count)]  # fmt: skip
    return shapes.batch_of(SCHEMA, rows)


def run(sink, counts, first_row=0, number=1, flushes=()):
    """A beat for each count, 1 ms apart; the watermark follows the rows."""
    pages, at = [], first_row
    for i, count in enumerate(counts):
        beat = BeatContext(number + i, 1_700_000_000_000_000 + 1000 * (number + i), shapes.ONE)
        sink.write(beat, Flow(batch(at, count), at + count))
        sealed = sink.seal(beat, Flush.ALL if i in flushes else Flush.NO)
        pages += [SealedPage(page.key, bytes(page.data)) for page in sealed]
        at += count
    return pages


def told(pages):
    """For each instance, its messages in order."""
    found = {}
    for page in pages:
        found.setdefault(page.key.partition, []).extend(decoded(SCHEMA, page.data))
    return found


SCHEMES = st.sampled_from(
    [{"partition": "hash", "by": ["k"]}, {"partition": "random"}, {"partition": "round_robin"},
     {"partition": "broadcast"}, {"partition": "k % 3"}, {"partition": "direct", "by": ["k"]}]
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(SCHEMES, st.lists(st.integers(0, 120), min_size=1, max_size=8), st.integers(0, 8),
       st.sampled_from(["1KiB", 0, "64KiB"]), st.sampled_from(["0s", "3ms"]))  # fmt: skip
def test_a_restored_sink_goes_on_byte_for_byte(scheme, counts, cut, buffer, linger):
    document = {**scheme, "buffer": buffer, "linger": linger}
    whole = run(running(**document), counts, flushes=(len(counts) - 1,))
    before = running(**document)
    cut = min(cut, len(counts) - 1)
    pages = run(before, counts[:cut])
    state = {name: array.copy() for name, array in before.save().items()}
    after = running(**document)
    after.load(state)
    assert after.numbers() == before.numbers() and after.open_rows() == before.open_rows()
    run(before, counts[:1], first_row=9999)
    pages += run(after, counts[cut:], sum(counts[:cut]), 1 + cut, (len(counts) - 1 - cut,))
    assert pages == whole

    messages = told(pages)
    rows = [row for of in messages.values() for *_, b in of for row in plain(b)]
    times = 3 if scheme["partition"] == "broadcast" else 1
    lost = after.counters()["rows_without_instance"] + before.counters()["rows_without_instance"]
    if scheme["partition"] != "direct":
        assert len(rows) == times * sum(counts) and len({row[1] for row in rows}) == sum(counts)
        assert lost == 0
    for of in messages.values():
        assert [seq for seq, *_ in of] == list(range(1, len(of) + 1))
        said = -(2**63)
        for _, watermark_us, _, rows in of:
            assert all(row[1] >= said for row in plain(rows)), "a row comes behind its watermark"
            assert watermark_us >= said
            said = watermark_us
        assert said == sum(counts) or not sum(counts)


def test_watermarks_travel_without_rows_and_the_end_does():
    sink = running(instances=2, partition="hash", by=["k"])
    beat = BeatContext(1, 0, shapes.ONE)
    for watermark_us in (5, 5, 9, WATERMARK_MAX_US):
        sink.write(beat, Flow(empty_batch(SCHEMA), watermark_us))
        pages = sink.seal(beat, Flush.NO)
        if watermark_us == 9:
            assert [w for _, w, _, _ in told(pages)[1]] == [9]
    assert {k: [(m[0], m[1], m[3].num_rows) for m in of] for k, of in told(pages).items()} == {
        0: [(3, WATERMARK_MAX_US, 0)], 1: [(3, WATERMARK_MAX_US, 0)],
    }  # fmt: skip


def test_linger_counts_from_the_first_row_and_a_full_message_does_not_wait():
    sink = running(instances=1, linger="5ms", buffer="1KiB")
    pages = run(sink, [10, 0, 0])
    assert not pages and sink.open_rows() == 10
    assert sink.due_in_us(1_700_000_000_003_000) == 3_000
    pages = run(sink, [0, 0, 0], 10, 4)
    assert [header(p.data).rows for p in pages] == [10] and sink.due_in_us(0) is None
    pages = run(sink, [100], 10, 9)
    assert sum(header(p.data).rows for p in pages) + sink.open_rows() == 100
    assert sink.open_rows() < 60


def test_pages_are_valid_until_the_beat_after_the_next_and_their_memory_is_reused():
    sink, places, before = running(instances=1, buffer="1KiB", compress="never"), [], []
    for number in range(8):
        beat = BeatContext(number, 0, shapes.ONE)
        sink.write(beat, Flow(batch(100 * number, 100), number))
        sealed = [page.data for page in sink.seal(beat, Flush.ALL)]
        for view, copy in before:
            assert bytes(view) == copy, "a page was overwritten while its commit is in flight"
        before = [(view, bytes(view)) for view in sealed]
        places.append(np.frombuffer(sealed[0], np.uint8).ctypes.data)
    assert len(set(places)) == 2


def test_with_no_buffer_each_row_is_a_message():
    (page,) = run(running(instances=1, buffer=0), [50])
    assert [(seq, b.num_rows) for seq, _, _, b in decoded(SCHEMA, page.data)] == [
        (i, 1) for i in range(1, 51)
    ]


def test_numbers_outlive_instances_that_go_and_come_back():
    sink = running(partition="round_robin")
    run(sink, [9])
    assert sink.numbers() == {"link:job/out": [1, 1, 1]}
    smaller = running(instances=1, partition="round_robin")
    smaller.load(sink.save())
    run(smaller, [4])
    assert smaller.numbers() == {"link:job/out": [2, 1, 1]}
    again = running(partition="round_robin")
    again.load(smaller.save())
    assert [p.key.seq for p in run(again, [6])] == [3, 2, 2]
    fresh = running(instances=2)
    fresh.skip(1, [PageKey("link:job/out", k, 4 + k) for k in range(3)])
    assert fresh.numbers() == {"link:job/out": [4, 5, 6]}


def test_a_link_is_full_above_high_until_low():
    in_flight, woken = InFlight(), []
    in_flight.on_low = lambda: woken.append(1)
    sink = plan(SCHEMA, instances=1).build(
        SinkContext("dev", 9, "", shapes.ONE, in_flight=in_flight)
    )
    in_flight.follow({sink.name: (100, 40)})
    for seq in (1, 2, 3):
        in_flight.sealed([(sink.name, 0, seq, 50), (sink.name, 0, seq, 50)])
        assert sink.full == (seq >= 2)
    in_flight.acked(sink.name, 0, 1)
    assert sink.full and not woken and sink.counters()["in_flight_bytes"] == 100
    in_flight.acked(sink.name, 0, 3)
    assert not sink.full and woken == [1]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"to": []}, "to"),
        ({"to": ["10.0.0.2"]}, "to[0]"),
        ({"to": ["a:1", "a:1"]}, "to[1]"),
        ({"partition": "hash"}, "partition"),
        ({"partition": "hash", "by": ["nothing"]}, "by[0]"),
        ({"partition": "direct", "by": ["name"]}, "by"),
        ({"partition": "random", "by": ["k"]}, "by"),
        ({"partition": "name"}, "partition"),
        ({"buffer": "100"}, "buffer"),
        ({"buffer": "17MiB"}, "buffer"),
        ({"low": "60MiB"}, "low"),
        ({"high": "1KiB"}, "high"),
        ({"high": "1MiB", "buffer": "2MiB", "low": 1}, "high"),
        ({"linger": "2h"}, "linger"),
        ({"when_full": "drop"}, "when_full"),
        ({"compress": "zip"}, "compress"),
        ({"entropy_max": 9}, "entropy_max"),
        ({"stream": "No!"}, "stream"),
        ({"token_file": "t", "to": ["10.0.0.2:1"]}, "token_file"),
        ({"tls": "yes"}, "tls"),
    ],
)
def test_a_bad_link_is_refused_with_the_path_to_the_fault(document, path):
    with pytest.raises(JobError) as fault:
        plan(SCHEMA, **document)
    assert fault.value.path == f"sinks.out.{path}"


@pytest.mark.parametrize(
    ("listen", "to", "refused"),
    [
        ("127.0.0.1:9100", "127.0.0.1:9100", True),
        ("0.0.0.0:9100", "localhost:9100", True),
        ("[::1]:9100", "127.0.0.1:9100", True),
        ("10.0.0.2:9100", "10.0.0.2:9100", True),
        ("127.0.0.1:9100", "127.0.0.1:9101", False),
        ("127.0.0.1:9100", "10.0.0.3:9100", False),
        ("127.0.0.1:0", "127.0.0.1:9100", False),
    ],
)
def test_a_link_that_leads_to_a_stream_of_its_own_job_is_refused(listen, to, refused):
    job = hop_job(["10.9.9.9:1", to])
    job["streams"]["r"]["source"]["listen"] = listen
    assert [fault.path for fault in faults(job)] == ["sinks.out.to[1]"] * refused


def test_names_must_fit_the_store():
    found = EdgePlan.parse("sinks.o", "o" * 40, {"to": ["a:1"]}, Link(SCHEMA, "time"))
    with pytest.raises(JobError, match="57 characters"):
        found.in_job("j" * 18)
    assert len(found.in_job("j" * 17).schemas()[0][0].encode()) <= 63


def test_a_plan_says_what_it_does_and_what_it_reaches():
    found = plan(SCHEMA, by=["k"], linger="10ms", token_file="t", ca="c")
    assert found.describe()[0].startswith("stream out at 127.0.0.1:9100, 127.0.0.1:9101")
    assert found.describe()[0].endswith("over TLS; hash by k")
    assert set(found.reach(Path("/r")).connects) == {"to[0]", "to[1]", "to[2]"}
    assert set(found.reach(Path("/r")).files) == {"token_file", "ca"}
    assert found.open_bytes().most == 3 << 16
    assert np.array_equal(plan(SCHEMA).open_bytes(), (0, 0, 0))
