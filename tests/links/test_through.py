"""Durability `through`: a hop that writes nothing and loses nothing that it has acknowledged."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.origins import OriginLog
from edged.errors import JobError, PeerError
from edged.job.plan import parse_job
from tests.beat.support import changed
from tests.links.chain import Hop, Last, hop_job, rows
from tests.whole import count

THROUGH = {"promises": {"durability": "through"}}
EVEN = {"type": "filter", "input": "r", "where": "value % 2 = 0"}


def send(producer, first, count, at_once=50):
    for start in range(first, first + count, at_once):
        producer.send(rows(range(start, start + at_once)))


def through(to, **link):
    """A hop without a log that lets rows with an even value pass."""
    job = changed(hop_job(to, **link), operators={"even": dict(EVEN)}, **THROUGH)
    job["sinks"]["out"]["input"] = "even"
    return job


def test_it_writes_nothing_and_acknowledges_what_the_receiver_has(tmp_path):
    last = Last(tmp_path / "last")
    middle = Hop(tmp_path / "middle", through([last.address]))
    first = Hop(tmp_path / "first", hop_job([middle.address], buffer="1KiB"))
    with last, middle, first, first.producer() as producer:
        before = middle.status()["store"]
        send(producer, 0, 2000)
        last.until(lambda _: len(last.values()) >= 1000)
        assert last.values() == list(range(0, 2000, 2))
        first.until(lambda s: s["store"]["backlog_pages"] == 0)
        after = middle.status()["store"]
        for key in ("bytes", "fsyncs", "log_bytes_since_snapshot"):
            assert after[key] == before[key]
        last.kill()
        send(producer, 2000, 500)
        producer.flush()
        first.until(lambda s: s["store"]["backlog_pages"] > 0)
        last.restart()
        last.ready(300)
        last.until(lambda _: len(last.values()) >= 1250)
        first.until(lambda s: s["store"]["backlog_pages"] == 0)
        assert last.values() == list(range(0, 2500, 2))


@pytest.mark.whole
def test_rows_arrive_once_and_in_order_over_kills_of_all_three(tmp_path):
    rng = random.Random(5)
    last = Last(tmp_path / "last")
    middle = Hop(tmp_path / "middle", through([last.address]))
    first = Hop(tmp_path / "first", hop_job([middle.address], buffer="1KiB"))
    with last, middle, first, first.producer() as producer:
        done = 0
        for _ in range(count(4, 40)):
            send(producer, done, 1000)
            victim = rng.choice([last, middle, middle, first])
            victim.kill()
            send(producer, done + 1000, 500)
            victim.restart()
            victim.ready(300)
            done += 1500
        producer.flush(300)
        last.until(lambda _: len(last.values()) >= done // 2, 300)
        first.until(lambda s: s["store"]["backlog_pages"] == 0)
        assert last.values() == list(range(0, done, 2))


def test_a_producer_that_is_no_link_is_refused(tmp_path):
    wanted = pytest.raises(PeerError, match="takes links of other daemons only")
    with Hop(tmp_path / "hop", through(["127.0.0.1:9"])) as hop, hop.producer() as p, wanted:
        p.send(rows([1]))
        p.flush()


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"operators": {"even": {"type": "window", "input": "r", "size": "1s",
                                 "aggregates": {"n": "count(*)"}}}}, "operators.even"),
        ({"operators": {"even": {"type": "union", "inputs": ["r", "r2"]}},
          "streams": {"r2": None}}, "operators.even"),
        ({"sinks": {"out": {"type": "file", "input": "even", "path": "x"}}}, "sinks.out"),
        ({"sinks": {"out": {"type": "edge", "input": "even", "to": ["127.0.0.1:1", "127.0.0.1:2"],
                            "partition": "round_robin"}}}, "sinks.out"),
    ],
)  # fmt: skip
def test_what_has_state_is_refused(part, where):
    job = through(["127.0.0.1:9"])
    if "streams" in part:
        job["streams"]["r2"] = job["streams"]["r"]
        part = {k: v for k, v in part.items() if k != "streams"}
    with pytest.raises(JobError) as refused:
        parse_job(changed(job, **part))
    assert str(refused.value).startswith(where) and "through" in str(refused.value)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5), st.data())
def test_origins_are_taken_with_their_rows(parts, data):
    log, seq, left = OriginLog(), 0, []
    for part in parts:
        numbers = np.arange(seq + 1, seq + 1 + len(part))
        zeros = np.zeros(len(part), np.int64)
        log.add(zeros, numbers, zeros, np.array(part, np.int64))
        left += list(zip(numbers.tolist(), part, strict=True))
        seq += len(part)
        edges = np.cumsum([0, *(n for _, n in left)]).tolist()
        rows = data.draw(st.sampled_from(edges))
        taken = log.take(rows, ["p"])
        assert taken.seq.tolist() == [s for s, _ in left[: len(taken)]]
        assert (int(taken.stop[-1]) if len(taken) else 0) == rows
        left = left[len(taken) :]
        assert len(log) == len(left) and (not left or left[0][1] > 0)
