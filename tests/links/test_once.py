"""Exactly once over hops, with fresh stores, replaced jobs and copies of a store."""

from __future__ import annotations

import shutil

import pytest

from tests.links.chain import Hop, Last, hop_job, rows


def send(hop, first, id="p"):
    """A hundred rows from a producer of this id, committed by the daemon."""
    with hop.producer(id=id) as producer:
        for start in range(first, first + 100, 20):
            producer.send(rows(range(start, start + 20)))
        producer.flush()


def arrived(last, count):
    """Whether the files have the numbers up to `count`, each once and in order."""
    last.until(lambda _: len(last.values()) >= count)
    assert last.values() == list(range(count))


@pytest.mark.whole
def test_fresh_stores_at_both_ends_and_a_replaced_job_lose_nothing_and_repeat_nothing(tmp_path):
    last = Last(tmp_path / "last")
    hop = Hop(tmp_path / "hop", hop_job([last.address]))
    with last, hop:
        send(hop, 0)
        arrived(last, 100)
        hop.until(lambda s: not s["store"]["backlog_pages"])

        last.kill()  # it comes back without a store: the link begins where its pages do
        last.lose_store()
        last.restart()
        last.ready(120)
        send(hop, 100)
        arrived(last, 200)
        hop.until(lambda s: not s["store"]["backlog_pages"])

        hop.kill()  # a new store is a new producer, whose numbers begin at 1
        shutil.rmtree(hop.store)
        hop.restart()
        hop.ready(120)
        send(hop, 200, "q")
        arrived(last, 300)

        hop.stop()  # another document for the job, whose numbers go on
        hop.write(hop_job([last.address], buffer="1KiB", linger="5ms", partition="random"))
        hop.restart()
        hop.ready(120)
        send(hop, 300, "q2")
        arrived(last, 400)
        (link,) = hop.links()
        assert link["state"] == "connected" and link["acked"] > 2


def test_a_copy_of_a_store_is_refused_and_its_rows_are_taken_for_no_duplicates(tmp_path):
    last = Last(tmp_path / "last")
    hop = Hop(tmp_path / "hop", hop_job([last.address]))
    with last, hop:
        send(hop, 0)
        arrived(last, 100)
        hop.until(lambda s: not s["store"]["backlog_pages"])
        hop.kill()
        copy = tmp_path / "copy"
        copy.mkdir()
        shutil.copytree(hop.store, copy / "store")
        hop.restart()
        hop.ready(120)
        send(hop, 100)
        arrived(last, 200)
        clone = Hop(tmp_path / "clone", hop_job([last.address]))
        clone.stop()
        shutil.rmtree(clone.store, ignore_errors=True)
        shutil.copytree(copy / "store", clone.store)
        for again in (False, True):  # the same session counter, then a larger one
            clone.restart()
            clone.ready(120)
            send(clone, 100_000, f"q{again}")
            refused = clone.until(lambda _: [x["state"] for x in clone.links()] == ["refused"])
            assert refused["store"]["backlog_pages"] > 0
            clone.kill()
            if not again:
                send(hop, 200)
                arrived(last, 300)
        clone.stop()
        for _ in range(2):  # the copy's session was the newest; nothing is sent until one is newer
            hop.stop()
            hop.restart()
            hop.ready(120)
        send(hop, 300)
        arrived(last, 400)
