"""A job whose plug-in goes and comes back, in real daemons that are killed in between.

Its results must be those of a run without any of that, and the other job must not notice.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from edged.control.door import ask
from edged.data.schema import Schema
from edged.errors import CommandError
from edged.job.plan import parse_job
from edged.pages.format import parse_header
from edged.pages.read import read_page
from edged.store import Store
from tests.beat.loop import batch, now_us
from tests.beat.support import Daemon, changed, copy_job, join_job, plain, stream
from tests.beat.test_changes import renamed
from tests.central.support import collecting
from tests.plugins.test_failures import package

TWICE = """
from edged.plugin import function
@function("twice", arguments=("DOUBLE",), returns="DOUBLE")
def twice(x): return 2 * x
"""
ENTRY = "[edged.functions]\ntwice = good_module\n"
SECOND = 1_000_000
SLOW = {"latency": "1h", "ack_within": "20ms", "memory": "64MiB"}
"""Rows are acknowledged long before they are raced."""
PLUGGED = {
    "name": "plugged",
    "streams": {"a": stream(lateness="1h"), "b": stream(lateness="1h")},
    "operators": {
        "big": {"type": "filter", "input": "a", "where": "twice(value) > 10"},
        "joined": {"type": "interval_join", "left": "big", "right": "b", "on": ["key"],
                   "before": "10s", "after": "10s"},
    },
    "sinks": {"pairs": {"type": "pages", "input": "joined", "page": "4KiB"}},
    "promises": SLOW,
}  # fmt: skip


class Sender:
    """Sends rows of both streams, each acknowledged, and knows the pairs that must come of them."""

    def __init__(self, daemon):
        self.daemon, self.sent, self.began_us = daemon, {"a": [], "b": []}, now_us()

    def send(self, first, count):
        for name, rows in self.sent.items():
            new = [(v, self.began_us + v * SECOND) for v in range(first, first + count)]
            rows += new
            with self.daemon.producer(name, f"p-{name}") as producer:
                producer.send(batch([v for v, _ in new], [t for _, t in new]))
                producer.flush()

    def pairs(self):
        return sorted(
            (a, b) for a, t in self.sent["a"] for b, u in self.sent["b"]
            if 2 * a > 10 and abs(t - u) <= 10 * SECOND
        )  # fmt: skip


def rows_of(store):
    """All rows of the pages that wait in a store, by stream; their numbers have no gap."""
    rows, numbers = defaultdict(list), defaultdict(list)
    with Store.open(store) as opened:
        for ref in opened.pending():
            with open(ref.file, "rb") as file:
                file.seek(ref.offset)
                page = file.read(ref.length)
            header = parse_header(page)
            numbers[header.stream, header.partition].append(header.seq)
            rows[header.stream] += plain(read_page(page, SCHEMAS[header.stream]))
    for key, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), key
    return rows


SCHEMAS = {
    name: Schema.from_json(text)
    for document in (copy_job(), join_job())
    for sink in parse_job(document).sinks.values()
    for name, _, text in sink.schemas()
}


def is_shelved(daemon):
    """The job is seen as shelved, with reason and remedy, and takes nothing."""
    (job,) = [j for j in ask(daemon.door, "jobs")["jobs"] if j["name"] == "plugged"]
    assert job["state"] == daemon.status()["jobs"]["plugged"]["state"] == "shelved"
    assert "twice" in job["problem"] and "good 1.0" in job["problem"]
    assert "restart edged, or delete the job" in job["problem"]
    events = ask(daemon.door, "events", limit=1000)["events"]
    (event,) = [e for e in events if e["kind"] == "job.shelved"]
    assert (event["job"], event["level"]) == ("plugged", "error")
    assert event["facts"]["packages"] == ["good 1.0"]
    for refused in ("job.pause", "job.drain"):
        with pytest.raises(CommandError, match="is shelved"):
            ask(daemon.door, refused, name="plugged")
    with pytest.raises(CommandError, match="makes pages of pairs"):
        ask(daemon.door, "job.put", document=daemon.here(renamed("rival", "q", "pairs")))
    with daemon.producer("a", "p-a", timeout_s=0.5) as producer, pytest.raises(TimeoutError):
        producer.send(batch([99]))  # AGAIN, not an error: the client goes on trying
        producer.flush()


def test_a_job_goes_on_where_it_was_when_its_plug_in_is_back(tmp_path, monkeypatch):
    package(tmp_path, "good", "edged.functions", "twice", TWICE)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    module, base = tmp_path / "good_module.py", changed(copy_job(late="process"), promises=SLOW)
    daemon = Daemon(tmp_path, base, "--snapshot-bytes", "65536")
    sender, copied = Sender(daemon), []

    def copy(values):
        with daemon.producer("r", "p-r") as producer:
            producer.send(batch(values))
            producer.flush()
        copied.extend(values)

    with daemon:
        ask(daemon.door, "job.put", document=daemon.here(PLUGGED))
        sender.send(0, 20)
        ask(daemon.door, "job.pause", name="plugged")  # raced, and its pages sealed
        ask(daemon.door, "job.resume", name="plugged")
        sender.send(20, 20)
        copy([1, 2])
        staged = daemon.status()["jobs"]["plugged"]["streams"]
        assert staged["a"]["staged"] == staged["b"]["staged"] == 20, "acknowledged, not raced"
        daemon.kill()

        module.write_text("import no_such_module")
        daemon.restart()
        daemon.ready()
        is_shelved(daemon)
        copy(list(range(3, 3000)))
        copy(list(range(3000, 6000)))  # beyond the snapshots' distance
        daemon.kill()
        daemon.restart()
        daemon.ready()
        is_shelved(daemon)
        copy([6000])
        daemon.stop()
        module.unlink()  # as the package's removal
        (tmp_path / "good-1.0.dist-info/entry_points.txt").write_text("")
        daemon.restart()
        daemon.ready()
        is_shelved(daemon)
        daemon.kill()

        (tmp_path / "good-1.0.dist-info/entry_points.txt").write_text(ENTRY)
        module.write_text(TWICE)
        daemon.restart()
        daemon.ready()
        status = daemon.status()
        assert status["jobs"]["plugged"]["state"] == "running"
        assert status["jobs"]["plugged"]["streams"]["a"]["staged"] == 20
        assert any("back from the shelf" in note for note in status["recovered"]["notes"])
        sender.send(40, 20)
        ask(daemon.door, "job.drain", name="plugged")
        daemon.until(lambda s: s["jobs"]["plugged"]["state"] == "drained")
    rows = rows_of(tmp_path / "store")
    assert sorted(row[2] for row in rows["rows"]) == sorted(copied)
    assert sorted((row[2], row[4]) for row in rows["pairs"]) == sender.pairs()

    module.write_text("import no_such_module")
    with (
        collecting(tmp_path / "landing") as collector,
        Daemon(tmp_path, base, "--uplink", collector.url) as daemon,
    ):
        status = daemon.until(lambda s: s["store"]["backlog_pages"] == 0)
        assert status["jobs"]["plugged"]["state"] == "shelved"
        assert not status["uplink"]["refused_streams"], "its sealed pages are at the centre"
        ask(daemon.door, "job.delete", name="plugged")
        assert "plugged" not in daemon.status()["jobs"]
    assert list((tmp_path / "store/shelf").iterdir()) == []
