"""Event time through a daemon whose filter lets nothing pass, and the end that reaches the last."""

from __future__ import annotations

import time

import pyarrow as pa

from tests.beat.support import ARROW, T0
from tests.beat.test_heart_daemon import come_to_rest, switches
from tests.links.chain import Hop, Last, hop_job, last_job
from tests.links.kills import children


def row(value, seconds):
    """A row of a time so many seconds after T0."""
    time = pa.array([T0 + seconds * 1_000_000], pa.int64()).cast(ARROW.field("time").type)
    values = pa.array([value], pa.int64())
    return pa.record_batch([pa.array([1], pa.int64()), time, values], schema=ARROW)


def assert_asleep(*pids):
    """At most 10 context switches a second in all of these processes."""
    for pid in pids:
        come_to_rest(pid)
    before = sum(map(switches, pids))
    time.sleep(2.0)
    assert sum(map(switches, pids)) - before <= 20


def test_watermarks_and_the_end_travel_where_no_row_does(tmp_path):
    counting = last_job()
    counting["operators"] = {
        "counted": {"type": "window", "input": "r", "keys": ["key"], "size": "1s",
                    "aggregates": {"value": "count(*)"}},
    }  # fmt: skip
    counting["sinks"]["out"]["input"] = "counted"
    with Last(tmp_path / "last", counting) as last:
        filtering = hop_job([last.address])
        filtering["operators"] = {"few": {"type": "filter", "input": "r", "where": "value < 100"}}
        filtering["sinks"]["out"]["input"] = "few"
        with Hop(tmp_path / "hop", filtering) as hop, hop.producer() as producer:
            producer.send(row(1, 0))
            producer.send(row(1, 0))
            producer.flush()
            hop.until(lambda s: s["jobs"]["hop"]["sinks"]["out"]["rows"] == 2)
            assert last.values() == []
            producer.send(row(100, 60))  # does not pass, but its time does
            last.until(lambda _: last.values() == [2])
            assert_asleep(hop.process.pid, last.process.pid, *children(hop.process.pid))
            producer.send(row(2, 61))
            producer.end()
            last.until(lambda _: last.values() == [2, 1])
            ended = last.until(lambda s: s["jobs"]["last"]["streams"]["r"]["ended"])
            assert ended["jobs"]["last"]["ended"]
            hop.until(lambda s: not s["store"]["backlog_pages"])
