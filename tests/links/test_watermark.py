"""Event time over a link: watermarks of the sender, messages without rows, the end of a stream."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from tests.beat.support import ARROW, T0, Daemon, stream
from tests.links.link_peer import END, LinkPeer

SECOND = 1_000_000


def job(path: Path) -> dict:
    """Rows of `r`, counted by windows of a second; a window closes when event time has passed."""
    return {
        "name": "next",
        "promises": {"latency": "50ms"},
        "streams": {"r": stream(lateness="1h", idle_after="10s")},
        "operators": {
            "counted": {
                "type": "window", "input": "r", "keys": ["key"], "size": "1s",
                "aggregates": {"n": "count(*)"},
            }
        },
        "sinks": {"out": {"type": "file", "input": "counted", "path": str(path / "out"),
                          "format": "ndjson", "rows": 1}},
    }  # fmt: skip


def batch(*times_us: int) -> pa.RecordBatch:
    """A row of key 1 at each of these times after T0."""
    times = pa.array([T0 + t for t in times_us], pa.int64()).cast(ARROW.field("time").type)
    ones = pa.array([1] * len(times_us), pa.int64())
    return pa.record_batch([ones, times, ones], schema=ARROW)


def counts(path: Path) -> dict[int, int]:
    """Rows of each window that has closed, by its start in seconds after T0."""
    found: dict[int, int] = {}
    for file in sorted((path / "out").glob("*.ndjson")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            begin = datetime.fromisoformat(row["window_start"].replace("Z", "+00:00"))
            start = int(begin.timestamp()) - T0 // SECOND
            found[start] = found.get(start, 0) + row["n"]
    return found


def rows_out(daemon: Daemon, count: int) -> None:
    daemon.until(lambda s: s["jobs"]["next"]["sinks"]["out"]["rows"] >= count)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_watermark_without_rows_closes_windows_and_the_end_all_of_them(
    tmp_path: Path, compression: str | None
) -> None:
    """The stream's own lateness of an hour does not hold back what a link promises."""
    with Daemon(tmp_path, job(tmp_path)) as daemon:
        with LinkPeer(daemon.port, ARROW, compression=compression) as peer:
            assert peer.greeted() == (0, 0, 0)
            peer.send(1, batch(0, 10, 1_500_000), T0)
            peer.await_ack(1)
            assert counts(tmp_path) == {}
            peer.send(2, None, T0 + SECOND)
            rows_out(daemon, 1)
            peer.send(3, None, END)
            peer.await_ack(3)
            rows_out(daemon, 2)
        daemon.until(lambda s: s["jobs"]["next"]["streams"]["r"]["late"] == 0)
    assert counts(tmp_path) == {0: 2, 1: 1}


def test_the_slowest_of_two_links_holds_event_time(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path)) as daemon:
        with (
            LinkPeer(daemon.port, ARROW, producer="a/j/s/0") as fast,
            LinkPeer(daemon.port, ARROW, producer="b/j/s/0") as slow,
        ):
            fast.greeted(), slow.greeted()
            slow.send(1, None, T0)
            slow.await_ack(1)
            fast.send(1, batch(0, 1_500_000), T0 + 5 * SECOND)
            fast.await_ack(1)
            slow.send(2, batch(100), T0 + 100)
            slow.await_ack(2)
            assert counts(tmp_path) == {}
            slow.send(3, None, T0 + 3 * SECOND)
            rows_out(daemon, 2)
        assert daemon.stream("next", "r")["late"] == 0
    assert counts(tmp_path) == {0: 2, 1: 1}


def test_a_kill_forgets_neither_watermark_nor_session(tmp_path: Path) -> None:
    with Daemon(tmp_path, job(tmp_path)) as daemon:
        with LinkPeer(daemon.port, ARROW, session="2.b.0") as peer:
            peer.greeted()
            peer.send(1, batch(0, 1_500_000), T0 + 500, sum=77)
            peer.send(2, None, T0 + 1000, sum=78)
            peer.await_ack(2)
        daemon.kill()
        daemon.restart()
        daemon.ready(300)
        with LinkPeer(daemon.port, ARROW, session="1.a.9") as older:
            assert "session 1 is over" in older.error()
        with LinkPeer(daemon.port, ARROW, session="2.b.0") as peer:
            assert peer.greeted() == (2, 2, 78)
            peer.send(2, None, T0 + 1000)
            peer.send(3, None, T0 + 2 * SECOND)
            rows_out(daemon, 2)
    assert counts(tmp_path) == {0: 1, 1: 1}
