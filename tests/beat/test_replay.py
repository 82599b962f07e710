"""Replay: every prefix of the log gives the same pages and the same state.

The tests compare `JobRuntime.save()` (stagings, producers, watermarks, operator windows, open pages
and sequence numbers) byte by byte with the live run after the same beat.  The replay itself
compares the sealed pages with those in the log.
"""

from __future__ import annotations

import random
import shutil
from itertools import pairwise

import pytest

from edged.beat.record import BeatFacts
from edged.beat.recover import recover
from edged.data.workers import Workers
from edged.errors import StoreCorrupt
from edged.sinks.base import Flush, SinkContext
from edged.store import BeatRecord, Store
from tests.beat.support import SECOND, T0, HandClock, Live, changed, stream

COLUMNS = {"name": "string", "time": "timestamp", "value": "float64?", "note": "string?"}
JOB = {
    "name": "replayed",
    "streams": {
        "r": stream(COLUMNS, lateness=20, late="dead_letter", idle_after="5s", max_behind=50),
        "s": stream(COLUMNS, lateness=20, late="process", idle_after="5s", max_behind=50),
    },
    "operators": {
        "joined": {
            "type": "interval_join", "left": "r", "right": "s", "on": ["name"],
            "before": 100, "after": 50,
        },
        "chosen": {"type": "filter", "input": "joined", "where": "value > 0.3 OR note IS NULL"},
        "sums": {
            "type": "window", "input": "r", "keys": ["name"], "size": 100, "every": 50,
            "aggregates": {"n": "count(*)", "v": "variance(value)"},
        },
    },
    "sinks": {
        "pairs": {
            "type": "pages", "input": "chosen", "page": "4KiB",
            "partitions": 3, "partition_by": ["name"],
        },
        "windows": {"type": "pages", "input": "sums", "page": "4KiB"},
        "dead": {"type": "pages", "input": "r.late", "page": "4KiB"},
    },
}  # fmt: skip
BEATS = 24


def bytes_of(arrays):
    return {key: (value.dtype.str, value.tobytes()) for key, value in arrays.items()}


def some_rows(rng, now, count):
    return [
        (
            f"n{rng.randint(0, 9)}",
            now + rng.randint(-40, 40),
            rng.choice([None, rng.random()]),
            rng.choice([None, "", "ä" * rng.randint(1, 9)]),
        )
        for _ in range(count)
    ]


def live_run(path, rng, snapshots=(), beats=BEATS, segment_bytes=1 << 16, job=JOB):
    """A run with everything in it; a copy of the store, and the state, after each beat."""
    states = {}
    with Live(job, path / "store", segment_bytes=segment_bytes) as live:
        for n in range(1, beats + 1):
            live.clock.advance(rng.choice([1, SECOND, 6 * SECOND]))
            for _ in range(rng.randint(0, 4)):
                name, producer = rng.choice("rs"), rng.choice(["a", "b", "ü"])
                live.send(name, some_rows(rng, T0 + n * 30, rng.randint(1, 60)), producer)
            if rng.random() < 0.2:
                live.send("r", [("far", T0 + 10**12, None, None)], "a")
            if rng.random() < 0.1:
                live.end(rng.choice("rs"), "b")
            if rng.random() < 0.3:
                live.send("r", some_rows(rng, T0 + n * 30 - 5_000, 3), "b")
            if n % 7 == 0:  # streams end, and open again with the next rows
                for name in rng.choice(["r", "rs"]):
                    for producer in live.job.streams[name].staging.producers.ids[1:]:
                        live.end(name, producer)
            live.beat(rng.random() < 0.8, rng.random() < 0.3, rows_max=rng.choice([60, 1 << 20]))
            if n in snapshots:
                live.snapshot()
            states[n] = bytes_of(live.job.save())
            shutil.copytree(path / "store", path / f"after-{n}")
        open_rows = live.job.open_rows()
        pages = {page.key: bytes(page.data) for page in live.all_pages()}
    return live.plan, states, pages, open_rows


def recovered(path, plan, workers=1):
    """Open a store that its process has left behind, and replay it."""
    pool = Workers(workers)
    with Store.open(path, segment_bytes=1 << 16) as store:
        context = SinkContext("device", store.device_epoch, "/nonexistent", pool)
        found = recover(store, [plan], context, HandClock())
        pending = {ref.key for ref in store.pending()}
    pool.close()
    return found, pending


def differing(state, other):
    return sorted(k for k in state.keys() | other.keys() if state.get(k) != other.get(k))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("snapshots", [(), (5, 11, 12, 20)])
def test_every_prefix_of_the_log_replays_to_equal_pages_and_state(tmp_path, seed, snapshots):
    plan, states, pages, open_rows = live_run(tmp_path, random.Random(seed), snapshots)
    assert len(pages) > 10
    for n in range(1, BEATS + 1):
        found, pending = recovered(tmp_path / f"after-{n}", plan, workers=1 + n % 2)
        assert found.beat == n
        newest = max([s for s in snapshots if s <= n], default=0)
        assert found.replayed_beats == n - newest
        assert differing(states[n], bytes_of(found.jobs[0].save())) == []
        assert not found.fresh
    assert pending == pages.keys(), "nothing was acknowledged, so everything is still to be sent"
    assert found.jobs[0].open_rows() == open_rows


def test_open_pages_are_carried_over_and_sealed_with_their_earlier_rows(tmp_path):
    job = changed(JOB, sinks={"pairs": {**JOB["sinks"]["pairs"], "input": "joined"}})
    with Live(job, tmp_path / "store") as live:
        live.send("r", [("x", T0, 1.0, "before")])
        live.send("s", [("x", T0, 2.0, None)])
        live.beat()
        assert live.job.open_rows() == 1
        assert live.all_pages() == []
    found, _ = recovered(tmp_path / "store", live.plan)
    with Live(job) as later:
        later.job = found.jobs[0]
        later.beat(flush=True)
        assert later.rows("pairs") == [("x", T0, 1.0, "before", T0, 2.0, None)]


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_cut_and_goes_on_gives_the_pages_of_one_that_was_not(tmp_path, seed):
    """The same beats, with a kill and a recovery after the 8th and the 9th."""

    def beats(live, first, last):
        for n in range(first, last):
            rng = random.Random(100 * seed + n)
            for name in "rs":
                live.send(name, some_rows(rng, T0 + n * 30, 50), "a")
            live.beat(flush=n % 3 == 0)

    with Live(JOB) as whole:
        beats(whole, 1, 16)
        expected = [(page.key, bytes(page.data)) for page in whole.all_pages()]
    with Live(JOB, tmp_path / "store") as live:
        live.context = SinkContext("device", 7, "/nonexistent", live.workers)
        live.job = type(live.job)(live.plan, live.context)
        live.snapshot()
        got, cuts = [], (1, 8, 9, 16)
        for first, last in pairwise(cuts):
            beats(live, first, last)
            got += [(page.key, bytes(page.data)) for page in live.all_pages()]
            live.store.close()
            live.store = Store.open(tmp_path / "store")
            found = recover(live.store, [live.plan], live.context, HandClock())
            live.job, live.pages = found.jobs[0], []
    assert got == expected


@pytest.mark.parametrize("seed", range(2))
def test_a_log_that_is_cut_anywhere_replays_to_the_state_of_its_last_whole_record(tmp_path, seed):
    rng = random.Random(seed)
    plan, states, _, _ = live_run(tmp_path, rng, beats=10, segment_bytes=1 << 20)
    segments = sorted((tmp_path / "after-10" / "log").iterdir())
    reached = set()
    for i in range(25):
        copy = tmp_path / f"cut-{i}"
        shutil.copytree(tmp_path / "after-10", copy)
        last = copy / "log" / segments[-1].name
        whole = last.stat().st_size
        with last.open("r+b") as f:
            f.truncate(rng.randint(64, 70_000))
            f.truncate(whole)
        found, _ = recovered(copy, plan)
        reached.add(found.beat)
        if found.beat:
            assert differing(states[found.beat], bytes_of(found.jobs[0].save())) == []
    assert len(reached) > 3


def test_a_record_whose_replay_gives_other_pages_is_refused(tmp_path):
    with Live(JOB, tmp_path / "store") as live:
        live.send("r", [("x", T0, 1.0, "a")])
        live.send("s", [("x", T0, 2.0, None)])
        live.beat()
        facts = BeatFacts(
            0, {"replayed": live.job.decide(live.clock.now, live.clock.wall, 1 << 20, True)}
        )
        facts.jobs["replayed"].flush = Flush.PROMPT
        live.store.commit(BeatRecord(2, facts.encode(), [], []))
    with pytest.raises(StoreCorrupt, match="replaying beat 2 gives other pages"):
        recovered(tmp_path / "store", live.plan)
