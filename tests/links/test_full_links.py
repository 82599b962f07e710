"""What a job whose link is full stages, and where the messages of a job without a log lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edged.beat.runtime import JobRuntime
from edged.data.flow import BeatContext, Flow
from edged.data.schema import TYPES, Field, Schema
from edged.links.in_flight import InFlight
from edged.links.segments import PageSegments
from edged.sinks.base import Flush, SinkContext
from edged.store.loose_pages import LoosePages
from tests.beat.support import T0, Live, batch_of
from tests.links.chain import hop_job
from tests.links.support import TO, decoded, header, plan
from tests.pages import shapes

HIGH = 4096
SCHEMA = Schema.of([Field("time", TYPES["timestamp"]), Field("value", TYPES["int64"])])


@pytest.fixture
def hop():
    """A hop whose link can be full, what is in flight, and the counted number of its pages."""
    in_flight = InFlight()
    in_flight.follow({"link:hop/out": (HIGH, HIGH // 2)})
    with Live(hop_job(TO[:1], buffer="1KiB", high=HIGH, low=HIGH // 2)) as live:
        live.job = JobRuntime(live.plan, replace(live.context, in_flight=in_flight))
        live.job.apply_state(daemon_drains=False)
        yield live, in_flight


def test_while_a_link_is_full_only_the_first_input_is_staged(hop):
    live, in_flight = hop
    staging = live.job.streams["r"].staging
    in_flight.sealed([("link:hop/out", 0, 1, HIGH)])
    assert live.job.full and staging.room() > 0, "a first input shows that the job is throttled"
    live.send("r", [(1, T0, 1)])
    facts = live.beat()
    assert facts.throttled and facts.streams["r"].take_rows == 0
    assert staging.room() == 0 and not live.job.released(live.clock.now)
    in_flight.acked("link:hop/out", 0, 1)
    assert staging.room() > 0 and live.job.released(live.clock.now)
    assert live.beat().streams["r"].take_rows == 1
    assert not live.job.released(live.clock.now)


def test_a_drain_takes_what_is_staged(hop):
    live, in_flight = hop
    live.send("r", [(1, T0, 1)])
    in_flight.sealed([("link:hop/out", 0, 1, HIGH)])
    live.job.apply_state(daemon_drains=True)
    assert live.beat().streams["r"].take_rows == 1


def test_a_page_counts_once_when_it_is_sealed_and_when_it_is_offered(hop):
    _, in_flight = hop
    for _ in range(2):
        in_flight.sealed([("link:hop/out", 0, 5, 100)])
    assert in_flight.bytes_of("link:hop/out") == 100


@pytest.mark.parametrize("compress", ["never", "always"])
def test_messages_without_a_log_lie_where_they_are_sent_from(compress):
    segments, sink_plan = PageSegments(), plan(SCHEMA, 1, buffer="1KiB", compress=compress)
    context = SinkContext("dev", 9, "", shapes.ONE, segments=segments)
    sink, loose, seen = sink_plan.build(context), LoosePages(segments), []
    for number in range(1, 9):
        beat = BeatContext(number, T0, shapes.ONE)
        rows = batch_of(SCHEMA, [(T0 + i, number) for i in range(50)])
        sink.write(beat, Flow(rows, T0))
        pages = sink.seal(beat, Flush.ALL)
        assert (segments.place_of(pages[0].data) is not None) == (compress == "never")
        for page, ref in zip(pages, loose.add(pages), strict=True):
            with open(ref.file, "rb") as file:
                file.seek(ref.offset)
                sent = file.read(ref.length)
            assert sent == bytes(page.data) and header(sent).last == ref.key.seq
            seen += [n for n, *_ in decoded(SCHEMA, sent)]
        if number > 4:
            loose.acked("link:job/out", 0, pages[-1].key.seq)
    assert seen == list(range(1, len(seen) + 1))
    assert loose.bytes() == 4 << 20, "pages that are acknowledged give their memory back"
    loose.close()


def test_a_page_that_is_not_acknowledged_is_never_written_over():
    segments = PageSegments()
    first, at = segments.reserve(3 << 20)
    first.bytes[at : at + 8] = 7
    segments.shorten(first, at, 3 << 20, 100)
    others = [segments.reserve(2 << 20) for _ in range(4)]
    for segment, place in others:
        segment.bytes[place : place + (2 << 20)] = 1
    assert first.bytes[at : at + 8].tolist() == [7] * 8
    for segment, _ in others:
        segments.release(segment)
    assert segments.reserve(3 << 20)[0] is not first
    segments.release(first)
    assert segments.nbytes() <= 4 * (4 << 20)
