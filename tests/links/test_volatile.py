"""Durability `volatile`: nothing is written, and what arrives arrives once and in order."""

from __future__ import annotations

import os
import signal
import time

import pytest

from edged.errors import JobError
from edged.job.plan import parse_job
from edged.links.segments import SEGMENT_BYTES
from edged.pages.sealed import PageKey, SealedPage
from edged.store.loose_pages import LoosePages
from tests.beat.support import changed, copy_job
from tests.links.chain import Hop, Last, hop_job, rows

VOLATILE = {"promises": {"durability": "volatile"}}


def send(producer, first, count, at_once=100):
    for start in range(first, first + count, at_once):
        producer.send(rows(range(start, start + at_once)))


def test_a_volatile_hop_writes_nothing(tmp_path):
    last = Last(tmp_path / "last")
    hop = Hop(tmp_path / "hop", changed(hop_job([last.address], buffer="1KiB"), **VOLATILE))
    with last, hop, hop.producer() as producer:
        before = hop.status()["store"]
        send(producer, 0, 5000)
        producer.flush()
        last.until(lambda _: len(last.values()) >= 5000)
        assert last.values() == list(range(5000))
        after = hop.status()["store"]
        for key in ("bytes", "fsyncs", "log_bytes_since_snapshot"):
            assert after[key] == before[key]
        assert after["backlog_pages"] == 0


def test_after_a_kill_rows_may_be_missing_and_none_comes_twice(tmp_path):
    last = Last(tmp_path / "last")
    hop = Hop(tmp_path / "hop", changed(hop_job([last.address], buffer="1KiB"), **VOLATILE))
    with last, hop, hop.producer() as producer:
        send(producer, 0, 1000)
        producer.flush()
        last.until(lambda _: len(last.values()) >= 1000)
        send(producer, 1000, 3000)
        hop.kill()
        hop.restart()
        hop.ready(300)
        send(producer, 4000, 1000)
        producer.flush(300)
        last.until(lambda _: 4999 in last.values())
        values = last.values()
        assert values == sorted(set(values))
        assert set(range(1000)) | set(range(4000, 5000)) <= set(values)
        assert hop.status()["store"]["gaps"]["count"] == 0


def test_sinks_that_need_the_log_are_refused():
    with pytest.raises(JobError, match=r"sinks\.rows\.type.*durability volatile") as refused:
        parse_job(changed(copy_job(), **VOLATILE))
    assert "edge, file" in str(refused.value)


def test_loose_pages_reuse_their_memory():
    def page(seq, size):
        return SealedPage(PageKey("link:j/s", 0, seq), bytes([seq % 256]) * size)

    pages = LoosePages()
    for seq in range(1, 200):
        (ref,) = pages.add([page(seq, SEGMENT_BYTES // 3)])
        with open(ref.file, "rb") as file:
            file.seek(ref.offset)
            assert file.read(ref.length) == bytes([seq % 256]) * ref.length
        assert pages.pending_of(["link:j/s"]) == min(seq, 5)
        assert [r.key.seq for r in pages.pending()] == list(range(max(1, seq - 4), seq + 1))
        assert pages.acked("link:j/s", 0, seq - 4) or seq < 5
    assert pages.bytes() <= 3 * SEGMENT_BYTES
    assert not pages.acked("link:j/s", 0, 1000) and not pages.acked("other", 0, 1)
    (ref,) = pages.add([page(200, SEGMENT_BYTES + 1)])
    assert ref.length == SEGMENT_BYTES + 1
    pages.close()


def test_a_message_is_acknowledged_once_a_beat_has_taken_it(tmp_path):
    """The receiver is stopped, so that the link is full: what is staged is not acknowledged."""
    last = Last(tmp_path / "last")
    job = hop_job([last.address], buffer="1KiB", high="4KiB", low="1KiB")
    hop = Hop(tmp_path / "hop", changed(job, **VOLATILE))
    with last, hop, hop.producer() as producer:
        send(producer, 0, 100)
        producer.flush()
        last.until(lambda _: len(last.values()) >= 100)
        os.kill(last.process.pid, signal.SIGSTOP)
        sent = 100
        while not hop.status()["jobs"]["hop"]["throttled"]:
            send(producer, sent, 100)
            sent += 100
            producer.poll()
            time.sleep(0.05)
        beats = hop.status()["beats"]
        send(producer, sent, 1000)
        sent += 1000
        time.sleep(0.5)
        producer.poll()
        taken = hop.stream("hop", "r")["rows"]
        assert taken < sent and 100 * producer.acked == taken
        assert hop.status()["beats"] == beats, "a beat could neither take nor log rows"
        os.kill(last.process.pid, signal.SIGCONT)
        producer.flush(60)
        last.until(lambda _: len(last.values()) >= sent)
        assert last.values() == list(range(sent))
