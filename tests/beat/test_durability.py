"""What each durability keeps after a kill, and what it costs.

A kill is a copy of the store's directory, taken while the store is open: what a process that is
gone has left behind.
"""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from edged.beat.record import BeatFacts, buffers
from edged.beat.recover import recover
from edged.beat.runtime import logged_inputs
from edged.data.flow import BeatContext
from edged.data.workers import Workers
from edged.pages.format import parse_header
from edged.platform.disk import SystemDisk, SystemFile
from edged.sinks.base import Flush, SinkContext
from edged.store import BeatRecord, Store
from tests.beat.support import T0, HandClock, Live, changed, copy_job, join_job, rows_of


class CountingFile(SystemFile):
    def sync(self):
        self.disk.syncs.append(self.path)
        super().sync()


class CountingDisk(SystemDisk):
    """The real disk; `syncs` lists what was synced."""

    def __init__(self):
        self.syncs = []

    def open(self, path, create=False):
        file = super().open(path, create)
        file.__class__ = CountingFile
        file.disk = self
        return file

    def sync_directory(self, path):
        self.syncs.append(path)
        super().sync_directory(path)


def promised(document, durability):
    return changed(document, promises={"durability": durability})


def rows(first, count):
    return [(i % 5, T0 + i, i) for i in range(first, first + count)]


class After:
    """A job as it comes up from what a kill has left."""

    def __init__(self, live, path):
        shutil.copytree(live.store_path, path)
        self.path, self.plan, self.workers = path, live.plan, Workers(1)
        self.store = Store.open(path)
        context = SinkContext("device", self.store.device_epoch, str(path / "sinks"), self.workers)
        self.found = recover(self.store, [live.plan], context, HandClock())
        self.job = self.found.jobs[0]
        self.pending = [ref.key for ref in self.store.pending()]

    def go_on(self, document):
        """Live again, on top of what was recovered."""
        live = Live(document)
        live.job, live.store, live.beats = self.job, self.store, self.found.beat
        live.store_path = self.path
        return live


def started(document, path, disk=None):
    live = Live(document, path, disk=disk)
    live.store_path = path
    return live


def sequences(keys):
    found = {}
    for key in keys:
        found.setdefault((key.stream, key.partition), []).append(key.seq)
    return found


@pytest.mark.parametrize(
    ("durability", "syncs"), [("exactly_once", 10), ("results", 10), ("none", 0)]
)
def test_a_beat_costs_one_sync_and_with_durability_none_not_one(tmp_path, durability, syncs):
    disk = CountingDisk()
    with started(promised(copy_job(), durability), tmp_path / "store", disk) as live:
        live.send("r", rows(0, 10))
        live.beat(flush=True)
        disk.syncs.clear()
        for i in range(1, 11):
            live.send("r", rows(i * 10, 10))
            live.beat(flush=True)
        assert len(disk.syncs) == syncs


@pytest.mark.parametrize("snapshot_at", [0, 3])
def test_exactly_once_keeps_everything(tmp_path, snapshot_at):
    document = promised(join_job(), "exactly_once")
    with started(document, tmp_path / "store") as live:
        for i in range(6):
            live.send("r", rows(i * 50, 50))
            live.send("s", rows(i * 50, 50))
            live.beat(race=i != 5, flush=i % 2 == 1)
            if i + 1 == snapshot_at:
                live.snapshot()
        after = After(live, tmp_path / "killed")
        assert after.job.staged() == 100, "committed, not raced: still there"
        again = after.go_on(document)
        again.drain()
        got = live.rows("pairs") + again.rows("pairs")
        expected = [
            (k, t, v, u, w)
            for k, t, v in rows(0, 300)
            for k2, u, w in rows(0, 300)
            if k == k2 and abs(u - t) <= 100
        ]
        assert sorted(got) == sorted(expected)


@pytest.mark.parametrize("durability", ["results", "none"])
@pytest.mark.parametrize("snapshot_at", [0, 2, 4])
@pytest.mark.parametrize("killed_after", [1, 3, 6])
def test_without_inputs_numbers_go_on_and_no_result_comes_twice(
    tmp_path, durability, snapshot_at, killed_after
):
    """Regression: sequence numbers restarted at the snapshot's, and rows that were staged or in
    open pages at the snapshot were emitted twice."""
    document = promised(join_job(), durability)
    flush = durability == "results"
    with started(document, tmp_path / "store") as live:
        for i in range(killed_after):
            live.send("r", rows(i * 200, 200))
            live.send("s", rows(i * 200, 200))
            live.beat(race=i % 3 != 1, flush=flush)
            if i + 1 == snapshot_at:
                live.snapshot()
        durable = live.all_pages()
        after = After(live, tmp_path / "killed")
        assert after.pending == sorted(
            (page.key for page in durable), key=lambda k: (k.stream, k.partition, k.seq)
        )
        for name in "rs":
            old, new = live.job.streams[name], after.job.streams[name]
            assert new.staging.producers.to_json() == old.staging.producers.to_json()
            assert new.time.watermark_us == old.time.watermark_us
        again = after.go_on(document)
        for i in range(killed_after, killed_after + 4):
            again.send("r", rows(i * 200, 200))
            again.send("s", rows(i * 200, 200))
            again.beat(flush=flush)
        again.drain()
        both = durable + again.all_pages()
        for numbers in sequences(page.key for page in both).values():
            assert numbers == list(range(1, len(numbers) + 1)), "neither gap nor reuse"
        got = rows_of(live.plan, both, "pairs")
        assert len(set(got)) == len(got)
        assert {pair[2] for pair in got} >= {v for _, _, v in rows((killed_after + 1) * 200, 400)}
        for page in again.all_pages():
            header = parse_header(page.data)
            assert header.seq == page.key.seq


def test_results_keeps_all_durable_pages_byte_by_byte(tmp_path):
    with started(promised(copy_job(), "results"), tmp_path / "store") as live:
        for i in range(5):
            live.send("r", rows(i * 400, 400))
            live.beat(flush=True)
        after = After(live, tmp_path / "killed")
        refs = after.store.pending()
        assert len(refs) > 5
        by_key = {page.key: bytes(page.data) for page in live.all_pages()}
        for ref in refs:
            with open(ref.file, "rb") as f:
                f.seek(ref.offset)
                assert f.read(ref.length) == by_key[ref.key]


def test_a_windows_partials_that_were_sent_are_not_sent_again(tmp_path):
    document = promised(copy_job(), "results")
    document["operators"] = {
        "sums": {"type": "window", "input": "r", "keys": ["key"], "size": 100,
                 "aggregates": {"n": "count(*)"}}
    }  # fmt: skip
    document["sinks"]["rows"]["input"] = "sums"
    with started(document, tmp_path / "store") as live:
        live.send("r", rows(0, 150))
        live.beat(flush=True)
        live.snapshot()
        live.send("r", rows(150, 150))
        live.beat(flush=True)
        after = After(live, tmp_path / "killed")
        again = after.go_on(document)
        again.send("r", rows(300, 100))
        again.drain()
        counts = {}
        for _, start, _, n in rows_of(live.plan, live.all_pages() + again.all_pages(), "rows"):
            counts[start - T0] = counts.get(start - T0, 0) + n
        assert counts[0] == counts[100] == counts[300] == 100
        assert counts.get(200, 0) <= 100, "what the crash may lose is the current window"


def test_files_that_were_finished_before_a_kill_stay(tmp_path):
    """Regression: the first beat after a recovery without inputs deleted them."""
    document = promised(copy_job(), "results")
    document["sinks"] = {"out": {"type": "file", "input": "r", "path": str(tmp_path / "out")}}
    with started(document, tmp_path / "store") as live:
        for i in range(3):
            live.send("r", rows(i * 10, 10))
            live.beat(flush=True)
        after = After(live, tmp_path / "killed")
        again = after.go_on(document)
        again.send("r", rows(30, 10))
        again.drain()
    values = []
    for file in sorted((tmp_path / "out").iterdir()):
        values += pq.read_table(file).column("value").to_pylist()
    assert values == list(range(40))


def test_a_job_of_results_beside_one_of_exactly_once_is_replayed_with_it(tmp_path):
    """Regression: a replay skipped the first job in beats that logged no rows, and its staged rows
    were emitted twice."""
    first = promised(copy_job(), "exactly_once")
    second = {**promised(copy_job(), "results"), "name": "second"}
    second["sinks"] = {"more": {"type": "pages", "input": "r", "page": "4KiB"}}
    with Live(first) as a, Live(second) as b, Store.open(tmp_path / "store") as store:
        jobs = [a, b]
        documents = {x.plan.name: x.plan.document for x in jobs}
        arrays = {k: v for x in jobs for k, v in x.save()[1].items()}
        context = SinkContext("device", 7, "/nonexistent", a.workers)
        store.snapshot(0, json.dumps({"jobs": documents}).encode(), arrays)
        for x in jobs:
            x.send("r", rows(0, 10))
        for n, race in ((1, False), (2, True)):
            facts = {
                x.plan.name: x.job.decide(x.clock.now, x.clock.wall, 1 << 20, race) for x in jobs
            }
            for f in facts.values():
                f.flush = Flush(race)
            logged = buffers({x.plan.name: logged_inputs(x.job, facts[x.plan.name]) for x in jobs})
            beat = BeatContext(n, T0, a.workers)
            pages = [p for x in jobs for p in x.job.step(beat, facts[x.plan.name])]
            for x in jobs:
                x.job.streams["r"].staging.mark_logged()
            store.commit(BeatRecord(n, BeatFacts(T0, facts).encode(), logged, pages))
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
        with Store.open(tmp_path / "killed") as killed:
            found = recover(killed, [x.plan for x in jobs], context, HandClock())
            for job in found.jobs:
                assert job.staged() == 0
                assert job.streams["r"].rows == 10
