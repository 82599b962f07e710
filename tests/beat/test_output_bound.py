"""The memory of a job bounds what one beat gives out: rows that would make more wait.

A real daemon joins many rows of one key: its memory stays bounded, its door answers, another job's
results arrive, and no pair is missing or repeated.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from edged.beat.recover import recover
from edged.data.workers import Workers
from edged.sinks.base import SinkContext
from edged.store import Store
from tests.beat.support import ARROW, T0, Daemon, HandClock, Live, join_job, stream

LIGHT_FILE = "light.json"
COLUMNS = {"key": "string?", "time": "timestamp", "value": "int64"}
TWO_JOINS = {
    "name": "joining",
    "streams": {n: stream(COLUMNS) for n in "rst"},
    "operators": {
        "first": {
            "type": "interval_join", "left": "r", "right": "s", "on": ["key"],
            "before": 10**9, "after": 10**9,
            "columns": {
                "key": "left.key", "time": "left.time", "a": "left.value", "b": "right.value",
            },
        },
        "second": {
            "type": "interval_join", "left": "first", "right": "t", "on": ["key"],
            "before": 10**9, "after": 10**9,
            "columns": {"time": "left.time", "a": "left.a", "b": "left.b", "c": "right.value"},
        },
    },
    "sinks": {"pairs": {"type": "pages", "input": "second", "page": "64KiB"}},
}  # fmt: skip


def bounded(document, most, monkeypatch):
    """The document; joins may make only about `most` pairs a beat."""
    monkeypatch.setattr("edged.operators._join_size.PAIRS_MIN", most)
    monkeypatch.setattr("edged.beat.deferrals.OUTPUT_SHARE", 1 << 40)
    return document


def send_all(live, rng, rows, keys):
    """Rows to each stream, from few keys; returns them by stream."""
    sent = {name: [(rng.choice(keys), T0 + i, i) for i in range(rows)] for name in live.job.streams}
    for name, given in sent.items():
        live.send(name, given)
    return sent


def triples(sent):
    """How often each triple of values is joined."""
    r, s, t = sent["r"], sent["s"], sent["t"]
    return Counter(
        (a[2], b[2], c[2])
        for a, b, c in product(r, s, t)
        if a[0] is not None and a[0] == b[0] == c[0]
    )


def test_beats_are_cut_where_a_join_grows_and_nothing_is_lost(monkeypatch):
    document = bounded(join_job(before=10**9, after=10**9), 1000, monkeypatch)
    with Live(document) as live:
        live.send("r", [(1, T0 + i, i) for i in range(300)])
        live.send("s", [(1, T0 + i, i) for i in range(200)])
        live.beat()
        assert live.job.waiting() > 400 and not live.job.ended()
        live.send("r", [(1, T0 + 400, 300)])
        taken = live.beat()
        assert taken.streams["r"].take_rows == 0  # new rows stay in staging
        live.drain()
        assert live.beats > 50
        rows = Counter((row[2], row[-1]) for row in live.rows("pairs"))
        assert rows == Counter((a, b) for a in range(301) for b in range(200))


def matches(live):
    """Pairs that the join has made so far."""
    return live.job.operators["joined"].counters()["matches"]


def test_rows_of_one_key_that_are_far_apart_in_time_are_not_taken_for_pairs(monkeypatch):
    """Each row has one partner, though thousands have its key."""
    with Live(bounded(join_job(before=10, after=10), 1000, monkeypatch)) as live:
        for name in ("r", "s"):
            live.send(name, [(1, T0 + 100 * i, i) for i in range(3000)])
        live.beat()
        assert not live.job.waiting()
        live.drain()
        rows = Counter((row[2], row[-1]) for row in live.rows("pairs"))
        assert rows == Counter((i, i) for i in range(3000))


def test_no_beat_exceeds_its_bound_where_skew_begins_late(monkeypatch):
    """Rows of one key are far apart for long, and then all close together."""
    with Live(bounded(join_job(before=10, after=10), 1000, monkeypatch)) as live:
        for beat in range(30):
            for name in ("r", "s"):
                live.send(name, [(1, T0 + 100 * (300 * beat + i), 0) for i in range(300)])
            live.beat()
            while live.job.waiting():
                live.beat()
        assert matches(live) > 8000
        late = T0 + 100 * 300 * 30
        for name in ("r", "s"):
            live.send(name, [(1, late + i // 100, i + 1) for i in range(300)])
        made = [matches(live)]
        while len(made) < 10 or live.job.waiting():
            live.beat()
            made.append(matches(live))
        assert max(np.diff(made)) <= 1000
        assert made[-1] == 30 * 300 + 300 * 300
        live.drain()
        rows = Counter((row[2], row[-1]) for row in live.rows("pairs") if row[2])
        assert rows == Counter(product(range(1, 301), repeat=2))


@pytest.mark.parametrize("seed", range(4))
def test_no_beat_exceeds_its_bound_while_counts_are_forgotten_and_tables_grow(monkeypatch, seed):
    """Bursts of few keys and many, in windows that leave and ones that stay."""
    rng, most, at = random.Random(seed), 60, T0
    monkeypatch.setattr("edged.operators._join_size.BITS_MIN", 6)
    document = bounded(
        join_job(before=rng.choice([0, 7, 40]), after=rng.choice([3, 60])), most, monkeypatch
    )
    with Live(document) as live:
        sent = {"r": [], "s": []}
        for _ in range(120):
            keys, span = rng.choice([1, 5, 1000]), rng.choice([1, 30, 500, 4000])
            for name, rows in sent.items():
                new = [
                    (rng.randrange(keys), at + rng.randrange(span), len(rows) + i)
                    for i in range(rng.choice([0, 3, 40]))
                ]
                live.send(name, sorted(new, key=lambda row: row[1]))
                rows += new
            at += span
            made, waited = matches(live), live.job.waiting() + live.job.staged()
            live.beat()
            while live.job.waiting():
                assert matches(live) - made <= max(most, waited)
                made = matches(live)
                live.beat()
        live.drain()
        plan = document["operators"]["joined"]
        wanted = sum(
            a[0] == b[0] and -plan["before"] <= b[1] - a[1] <= plan["after"]
            for a, b in product(sent["r"], sent["s"])
        )
        assert matches(live) == wanted
        assert live.job.operators["joined"].counters()["beats_cut"] > 10


@pytest.mark.parametrize("workers", [1, 3])
def test_joins_behind_each_other_wait_for_each_other_and_are_exact(monkeypatch, workers):
    rng = random.Random(workers)
    with Live(bounded(TWO_JOINS, 500, monkeypatch), workers=workers) as live:
        sent = send_all(live, rng, 50, ["a", "b", None])
        waited = []
        while not waited or live.job.waiting():
            live.beat()
            waited.append([o.waiting() for o in live.job.operators.values()])
        live.drain()
        assert any(second for _, second in waited)
        made = Counter(row[1:] for row in live.rows("pairs"))
        assert made == triples(sent)


def test_a_restart_in_the_middle_goes_on_with_the_same_pages(monkeypatch, tmp_path):
    """From a snapshot while rows wait, and from the log behind it."""
    rng, document = random.Random(7), bounded(TWO_JOINS, 400, monkeypatch)
    with Live(document, tmp_path / "store") as live:
        sent = send_all(live, rng, 40, ["a", "bc"])
        for n in range(12):
            live.beat()
            if n == 5:
                assert live.job.waiting()
                live.snapshot()
        assert live.job.waiting()
        before, saved = live.all_pages(), live.job.save()
    store = Store.open(tmp_path / "store")
    context = SinkContext("device", store.device_epoch, "/nonexistent", Workers(1))
    recovered = recover(store, [live.plan], context, HandClock())
    store.close()
    with Live(document) as again:
        (again.job,) = recovered.jobs
        restored = again.job.save()
        assert {k: v.tobytes() for k, v in restored.items()} == {
            k: v.tobytes() for k, v in saved.items()
        }
        again.drain()
        again.pages.insert(0, before)
        made = Counter(row[1:] for row in again.rows("pairs"))
        assert made == triples(sent)


def heavy_job(directory):
    """Rows of one key joined with each other; how many pairs, and the sums of their values."""
    job = join_job(before=10**12, after=10**12, idle_after="1h")
    sums = {"n": "count(*)", "left": "sum(value)", "right": "sum(value_right)"}
    return job | {
        "promises": {"memory": "64MiB"},
        "operators": job["operators"]
        | {"sums": {"type": "window", "input": "joined", "size": "365d", "aggregates": sums}},
        "sinks": {
            "out": {"type": "file", "input": "sums", "path": str(directory), "format": "ndjson"}
        },
    }


def light_job():
    """Another job of the daemon, with a stream of its own."""
    return {
        "name": "light",
        "promises": {"latency": "50ms"},
        "streams": {"q": stream(idle_after="1h")},
        "sinks": {"rows": {"type": "pages", "input": "q", "page": "4KiB"}},
    }


class TwoJobs(Daemon):
    """A daemon with both jobs."""

    def write(self, document):
        super().write(document)
        (self.path / LIGHT_FILE).write_text(json.dumps(self.here(light_job())))


def arrow(rows):
    """Rows as producers send them."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, pa.int64()).cast(f.type) for c, f in zip(columns, ARROW, strict=True)]
    return pa.record_batch(arrays, schema=ARROW)


def joined(status):
    """What the status says of the join."""
    return status["jobs"]["joining"]["operators"]["joined"]


def light_rows(status):
    """Rows that the other job's sink has taken."""
    return status["jobs"]["light"]["sinks"]["rows"]["rows"]


def test_a_daemon_joins_many_rows_of_one_key_in_bounded_memory_beside_another_job(tmp_path):
    many = 3500
    daemon = TwoJobs(tmp_path, heavy_job(tmp_path / "out"), str(tmp_path / LIGHT_FILE))
    with (
        daemon,
        daemon.producer("r") as left,
        daemon.producer("s") as right,
        daemon.producer("q") as other,
    ):
        for producer in (left, right, other):  # one row each: kernels are loaded
            producer.send(arrow([(0, T0, 0)]))
            producer.flush()
        daemon.until(lambda s: joined(s)["matches"] == light_rows(s) == 1)
        before_kb = daemon.proc("VmRSS")
        rows = arrow([(1, T0 + i, i) for i in range(many)])
        left.send(rows)
        right.send(rows)
        left.poll(), right.poll()
        daemon.until(lambda s: joined(s)["beats_cut"])
        other.send(arrow([(2, T0, 5)]))
        other.flush()
        between = daemon.until(lambda s: light_rows(s) == 2)
        assert joined(between)["matches"] < many * many  # it did not wait for all pairs
        left.end()
        right.end()
        done = daemon.until(lambda s: s["jobs"]["joining"]["ended"])
        assert joined(done)["matches"] == many * many + 1
        assert joined(done)["beats_cut"] > 10
        assert daemon.proc("VmHWM") - before_kb < 150 << 10
    total = many * (many * (many - 1) // 2)
    files = (tmp_path / "out").glob("**/*.ndjson")
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [(row["n"], row["left"], row["right"]) for row in found] == [
        (many * many + 1, total, total)
    ]
