"""The upload coalescer: pages wait together, none is lost or late, and the radio seldom wakes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.control.door import ask
from edged.errors import JobError
from edged.job.plan import parse_job
from edged.pages.format import verify
from edged.pages.sealed import PageKey
from edged.store.page_index import PageRef
from edged.uplink import telemetry
from edged.uplink.upload_coalescer import UploadCoalescer
from governors.meters.settings import RadioSettings
from governors.meters.uplink import RadioModel
from tests.beat.loop import batch
from tests.beat.support import SECOND, Daemon, HandClock, changed, copy_job
from tests.central.support import by_partition, collecting

LTE = RadioSettings("wwan0", 0.0, 2e-6, tail_joules=1.5, tail_s=0.3)


def plan(within, stream="rows"):
    job = changed(copy_job(), promises={"upload_within": within})
    job["name"] = stream
    job["sinks"][stream] = job["sinks"].pop("rows")
    return parse_job(job)


def ref(stream, partition, seq, file="a"):
    return PageRef(PageKey(stream, partition, seq), file, 0, 1000)


class Sent:
    """An uplink that records what it was offered, and when."""

    def __init__(self, clock):
        self.pages, self.clock = [], clock

    def offer(self, refs):
        self.pages += [(self.clock.now, r) for r in refs]

    def watch_acks(self, wanted):
        """Not observed in these tests."""


def make(*plans, store_bytes=None, pending=()):
    clock = HandClock()
    sent = Sent(clock)
    held = UploadCoalescer(sent, clock, store_bytes, pending)
    held.set_jobs(plans)
    return held, sent, clock


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.sampled_from(["slow", "slower", "prompt"]), st.integers(0, 1)),
        st.tuples(st.just("move"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("pass"), st.integers(0, 2 * SECOND), st.just(0)),
        st.tuples(st.just("soon"), st.just(0), st.just(0)),
        st.tuples(st.just("died"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_page_is_offered_once_in_order_and_in_time_wherever_it_has_moved(steps):
    held, sent, clock = make(plan("1s", "slow"), plan("3s", "slower"), plan(0, "prompt"))
    within = {"slow": SECOND, "slower": 3 * SECOND, "prompt": 0}
    made, seqs, place = {}, {}, {}
    for what, a, b in steps:
        if what == "new":
            seqs[a, b] = seqs.get((a, b), 0) + 1
            page = ref(a, b, seqs[a, b])
            made[page.key], place[page.key] = clock.now, "a"
            held.offer([page])
        elif what == "move" and made:
            key = list(made)[a % len(made)]
            place[key] = f"moved{clock.now}{a}"
            held.offer([ref(key.stream, key.partition, key.seq, place[key])])
        elif what == "pass":
            due = held.status()["due_us"]
            if due is not None and due <= clock.now + a:
                clock.advance(due - clock.now)
                held.release()
            clock.advance(a)
        elif what == "soon":
            held.release_soon()
        elif what == "died":  # everything pending is offered again
            held.offer([ref(k.stream, k.partition, k.seq, place[k]) for k in made])
    clock.advance(max(0, (held.status()["due_us"] or 0) - clock.now))
    held.release()
    first, last = {}, {}
    for at, page in sent.pages:
        first.setdefault(page.key, at)
        last[page.key] = page.file
    assert first.keys() == made.keys()
    assert last == place
    assert all(first[k] - made[k] <= within[k.stream] for k in made)
    for route in seqs:
        mine = [k.seq for k in first if (k.stream, k.partition) == route]
        assert mine == sorted(mine)
    held.close()


def test_an_eighth_of_the_store_is_not_waited_with_and_what_an_earlier_process_left_goes_at_once():
    held, sent, _ = make(plan("1h", "slow"), store_bytes=80_000, pending=[ref("slow", 0, 1)])
    assert [r.key.seq for _, r in sent.pages] == [1]
    held.offer([ref("slow", 0, n) for n in range(2, 11)])
    assert len(sent.pages) == 1 and held.status()["pages"] == 9
    held.offer([ref("slow", 0, 11)])
    assert [r.key.seq for _, r in sent.pages] == list(range(1, 12))
    held.close()


def test_who_waits_for_the_centre_waits_for_no_window_and_a_withdrawn_one_opens():
    held, sent, _ = make(plan("1h", "slow"))
    held.offer([ref("slow", 0, 1)])
    held.bypass(True)
    held.offer([ref("slow", 0, 2)])
    assert len(sent.pages) == 2
    held.bypass(False)
    held.offer([ref("slow", 0, 3)])
    assert len(sent.pages) == 2
    held.set_jobs([plan(0, "slow")])
    assert len(sent.pages) == 3
    held.close()


@pytest.mark.parametrize("value", [-1, "2w", "8d"])
def test_a_window_that_is_none_or_longer_than_a_week_is_refused(value):
    with pytest.raises(JobError, match=r"promises.upload_within"):
        plan(value)


def uploaded(path, within, seconds=2.4):
    """Run for a while: rows that landed, the radio's modelled joules, and status at the end."""
    job = changed(copy_job(), promises={"latency": "40ms", "upload_within": within})
    with collecting(path / "landing") as centre:
        words = ("--uplink", centre.url, "--board", "none")
        with Daemon(path, job, *words) as daemon, daemon.producer() as producer:
            radio, sent, moved = RadioModel(LTE), 0, 0
            start = before = time.monotonic()
            while (now := time.monotonic()) - start < seconds:
                producer.send(batch(list(range(50 * sent, 50 * sent + 50))))
                producer.flush()
                sent += 1
                status = daemon.status()["uplink"]
                more, moved = status["bytes_sent"] - moved, status["bytes_sent"]
                radio.passed(int(1e6 * before), int(1e6 * now), more, False)
                before = now
            assert status["held"]["pages"] > 0 or not within
            daemon.until(lambda s: s["jobs"]["copying"]["sinks"]["rows"]["open_rows"] == 0)
            ask(daemon.door, "uplink.retry")
            daemon.until(lambda s: s["uplink"]["backlog_pages"] == 0)
            status = daemon.status()["uplink"]
        found = by_partition(path / "landing")
    (pages,) = (pages for key, pages in found.items() if key[1] != telemetry.STREAM)
    assert sorted(pages) == list(range(1, len(pages) + 1)), "none lost, none twice"
    assert list(pages) == sorted(pages), "they landed in order"
    assert sum(verify(page).tuples for page in pages.values()) == 50 * sent
    return radio.joules, status["held"]["releases"], len(pages)


def test_pages_of_a_real_daemon_arrive_in_bursts_and_the_radio_takes_less(tmp_path):
    """The same rows, sent at once and in windows of 0.8 s; a tail of 0.3 s after each burst."""
    for name in ("prompt", "windows"):
        (tmp_path / name).mkdir()
    prompt_j, none, _ = uploaded(tmp_path / "prompt", 0)
    held_j, releases, pages = uploaded(tmp_path / "windows", "800ms")
    assert none == 0
    assert 2 <= releases <= 5
    assert pages > 4 * releases
    assert held_j < 0.7 * prompt_j
