"""Start-up past damage: what is whole is delivered once, the rest is in gaps, nothing repeats."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
from collections import Counter

import numpy as np
import pytest

from edged.beat.recover import recover
from edged.data.workers import Workers
from edged.pages.header import checksum
from edged.pages.sealed import SealedPage
from edged.platform.disk import SystemDisk
from edged.sinks.base import SinkContext
from edged.store import Store
from edged.store.records import ALIGN
from tests.beat.support import SECOND, T0, HandClock, Live, changed, copy_job, rows_of
from tests.beat.test_replay import JOB as REPLAYED
from tests.beat.test_replay import live_run, some_rows
from tests.beat.test_shelf import started, without
from tests.store.simdisk import PowerCut, SimDisk

JOB = copy_job()
BEATS = 12
EVERY = 3
"""A beat in EVERY seals its open pages."""


class Run:
    """Beats of one job whose rows have unique keys, in a store."""

    def __init__(
        self, path, document=JOB, snapshots=(), acked=(), flush=True, seed=1, disk=None, every=EVERY
    ):
        self.path, self.document, self.disk, self.batches = path, document, disk, BEATS
        self.sent = {}
        """Key of each row: its producer and batch."""
        self.pages = {}
        self.ends = {}
        """Where each beat's record begins and ends: file, offsets."""
        rng = random.Random(1)
        with Live(document, path, disk=disk, segment_bytes=1 << 16) as live:
            self.plan = live.plan
            for n in range(1, BEATS + 1):
                for producer in "ab":
                    self.send(live, n, producer, rng.randint(1, 40))
                live.clock.advance(SECOND)
                live.beat(flush=flush and n % every == 0)
                segment = live.store._log.segments[-1]
                self.ends[n] = (segment.path, segment.end)
                for page in live.pages[-1]:
                    self.pages[page.key] = bytes(page.data)
                if n in snapshots:
                    live.snapshot()
                for stream, partition, seq in acked if n == BEATS // 2 else ():
                    live.store.acked(stream, partition, seq)
            self.epoch = live.store.device_epoch

    def send(self, live, n, producer, count):
        for stream in live.job.streams:
            rows = []
            for _ in range(count):
                key = len(self.sent)
                self.sent[key] = (stream, producer, n)
                rows.append((key, T0 + n * 30, n))
            live.send(stream, rows, producer)


def start(run, path=None, more=1, positions=True, disk=None):
    """Start on the store as a daemon does; send more, and deliver everything that is pending.

    Returns keys of the rows by page, the gaps, and the store's findings."""
    workers = Workers(1)
    with Store.open(path or run.path, disk, segment_bytes=1 << 16) as store:
        context = SinkContext("device", store.device_epoch, "/nonexistent", workers)
        found = recover(store, [run.plan], context, HandClock())
        salvaged = list(store.salvaged)
        assert bool(salvaged) <= found.fresh
        live = Live.__new__(Live)
        live.plan, live.clock, live.workers, live.store = run.plan, HandClock(), workers, store
        live.clock.advance(BEATS * SECOND)
        live.context, live.job, live.beats = context, found.jobs[0], found.beat
        live.pages, live.facts, live.arrived = [], [], Counter()
        if found.fresh:
            store.snapshot(found.beat, *live.save(), barrier=True)
        for _ in range(more):
            for producer in "ab":
                for stream in live.job.streams.values() if positions else ():
                    jump(stream.staging.producers, producer, run.batches + 1)
                run.send(live, run.batches + 1, producer, 5)
            store.record_gaps(found.registry.take_jumps())
            run.batches += 1
            live.beat(flush=True)
        for s in live.job.streams.values() if positions else ():
            numbers = dict(zip(s.staging.producers.ids, s.staging.producers.seq, strict=True))
            assert numbers["a"] == numbers["b"] == run.batches
        pages = delivered(store, disk or SystemDisk())
        gaps = store.gaps.newest
    workers.close()
    return pages, gaps, salvaged


def jump(producers, producer, seq):
    """What a source does where a producer goes on ahead of its number."""
    number = producers.number(producer)
    if producers.seq[number] < seq - 1:
        assert producers.jump(number, seq), "the producer is refused"


def delivered(store, disk):
    """The pending pages as the uplink takes them: in order, damaged ones are set aside."""
    pages = {}
    for ref in store.pending():
        with contextlib.closing(disk.open(ref.file)) as file:
            data = file.pread(ref.length, ref.offset)
        if checksum(data) == int.from_bytes(data[28:32], "little"):
            pages[ref.key] = data
    return pages


def check(run, pages, gaps, sent_before=()):
    """Acknowledged = delivered + in gaps; no row twice, no page with other bytes."""
    for key, data in pages.items():
        assert run.pages.get(key, data) == data, key
    (stream,) = {s for sink in run.plan.sinks.values() for s, _, _ in sink.schemas()}
    keys = []
    for key, data in pages.items():
        keys += [row[0] for row in rows_of(run.plan, [SealedPage(key, data)], stream)]
    assert len(keys) == len(set(keys)), "a row was delivered twice"
    lost = set(run.sent) - set(keys) - set(sent_before)
    for key in lost:
        source, producer, batch = run.sent[key]
        batches = [g for g in gaps if g.partition is None and g.stream == source]
        page_gap = any(g.partition is not None for g in gaps)
        inside = any(g.producer == producer and g.first <= batch <= g.last for g in batches)
        assert inside or page_gap, (key, run.sent[key], gaps)
    numbers = sorted(key.seq for key in pages)
    missing = set(range(1, numbers[-1] + 1)) - set(numbers)
    covered = {n for g in gaps if g.partition is not None for n in range(g.first, g.last + 1)}
    assert missing <= covered, (missing, covered)
    return lost


def damage(path, at, length=1):
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(length)
        file.seek(at)
        file.write(bytes(b ^ 0x55 for b in old))


def record(path, run, beat):
    """The file of a beat's record in a copy of the store, where it begins, and its bytes."""
    name, end = run.ends[beat]
    file = path / "log" / name.rpartition("/")[2]
    if not file.exists():
        return file, 0, b""
    data = file.read_bytes()
    begin = max(i for i in range(ALIGN, end, ALIGN) if data[i : i + 4] == b"EdgR")
    return file, begin, data[begin:end]


def places(data):
    """Offsets in a record: its header, table, facts, inputs, and each page."""
    found = [8, 68, 80, 200, len(data) // 4]
    at = data.find(b"EDGP")
    while at >= 0:
        found.append(at + 250)
        at = data.find(b"EDGP", at + 4)
    return found


@pytest.mark.parametrize(("snapshots", "flush"), [((), True), ((5,), True), ((), False)])
def test_salvage_of_any_record_delivers_its_neighbours_once(tmp_path, snapshots, flush):
    run = Run(tmp_path / "store", snapshots=snapshots, flush=flush)
    losses = Counter()
    for n in (2, 3, 7, 11, BEATS):
        for i, where in enumerate(places(record(run.path, run, n)[2])):
            copy = tmp_path / f"copy-{n}-{i}"
            shutil.copytree(run.path, copy)
            file, begin, _ = record(copy, run, n)
            damage(file, begin + where)
            sent = dict(run.sent)
            pages, gaps, salvaged = start(run, copy)
            lost = check(run, pages, gaps)
            assert salvaged and len(lost) < len(sent) // 2
            replayed = n > max([0, *snapshots])
            assert len(run.pages.keys() - pages.keys()) <= (i > 4 and not replayed)
            assert not lost or i < 5 or not replayed, "the replay makes the page again"
            losses[i] += len(lost)
            assert not start(run, copy, more=0)[2], "the damage is behind a snapshot now"
            run.sent, run.batches = sent, BEATS
    assert losses[0] or flush
    assert losses[5] or not (flush and snapshots)


def test_salvage_of_a_page_that_the_replay_makes_again_sends_it_once(tmp_path):
    """A start that is cut at any operation leaves the page, its neighbours and its order."""
    run = Run("/store", disk=SimDisk())
    path, end = run.ends[6]
    damaged = run.disk.after_kill()
    data = damaged.content(path)
    at = data.rfind(b"EDGP", 0, end)
    data[at + 250] ^= 1
    damaged.put(path, bytes(data))
    whole = damaged.after_kill()
    pages, gaps, salvaged = start(run, more=0, disk=whole)
    assert [s.kind for s in salvaged] == ["page"] and not gaps
    assert pages == run.pages and [key.seq for key in pages] == sorted(key.seq for key in pages)
    rng = random.Random(3)
    for cut in range(1, whole.operations):
        twin = damaged.after_kill()
        twin.cut_at = cut
        with contextlib.suppress(PowerCut):
            start(run, more=0, disk=twin)
        after = twin.after_power_cut(rng) if cut % 2 else twin.after_kill()
        assert start(run, more=0, disk=after)[:2] == (run.pages, []), cut


def newest(directory):
    return max(p for p in directory.iterdir() if p.suffix in (".snap", ".pages"))


def array_at(file, name):
    """Where an array is in a snapshot's file; its facts for an empty name."""
    data = file.read_bytes()
    table, facts = (int.from_bytes(data[at : at + 8], "little") for at in (24, 32))
    at = 64 + table + -table % 64
    if not name:
        return at + 1
    at += facts + -facts % 64
    for row in json.loads(data[64 : 64 + table]):
        if row["name"].endswith(name):
            return at
        size = math.prod(row["shape"]) * np.dtype(row["dtype"]).itemsize
        at += size + -size % 64
    raise AssertionError(name)


def alone(run):
    """Leave one snapshot, with no log before it."""
    with Store.open(run.path, segment_bytes=1 << 16) as store:
        recovery = store.recover()
        snapshot = recovery.snapshot
        assert not list(recovery.records)
        store.snapshot(snapshot.beat, snapshot.facts, snapshot.arrays, barrier=True)
    return newest(run.path / "snapshots")


def test_salvage_of_a_snapshot_begins_with_the_one_before_where_that_is_enough(tmp_path):
    run = Run(tmp_path / "store", snapshots=(4, 8))
    file = newest(run.path / "snapshots")
    damage(file, array_at(file, ""))
    pages, gaps, salvaged = start(run)
    assert [(s.kind, s.lost) for s in salvaged] == [("snapshot", "")]
    assert not check(run, pages, gaps) and not gaps
    assert pages.keys() >= run.pages.keys()
    assert len(list((run.path / "quarantine").iterdir())) == 1


@pytest.mark.parametrize(
    "name", ["staging/producers", "staging/chunks.stop", "sinks/rows/", "time/"]
)
def test_salvage_of_a_snapshot_keeps_the_arrays_that_are_whole(tmp_path, name):
    run = Run(tmp_path / "store", snapshots=(BEATS,), flush=False)
    file = alone(run)
    with Store.open(run.path) as store:
        names = [n for n in store.recover().snapshot.arrays if name in n]
    sizes = {n: array_at(file, n) for n in names}
    damage(file, max(sizes.values()))
    known = name != "staging/producers"
    pages, gaps, salvaged = start(run, positions=known)
    assert [s.kind for s in salvaged] == ["snapshot"]
    if known:
        check(run, pages, gaps)
    assert pages.keys() >= run.pages.keys()
    numbers = sorted(key.seq for key in pages)
    assert numbers == list(range(1, len(numbers) + 1))
    assert not start(run, more=0, positions=known)[2]


def test_salvage_without_any_snapshot_repeats_no_page_number(tmp_path):
    run = Run(tmp_path / "store", snapshots=(BEATS,), acked=[("rows", 0, 2)])
    file = alone(run)
    damage(file, array_at(file, ""))
    workers = Workers(1)
    with Store.open(run.path) as store:
        context = SinkContext("device", store.device_epoch, "/nonexistent", workers)
        found = recover(store, [run.plan], context, HandClock())
        (job,) = found.jobs
        assert found.fresh and found.beat == BEATS
        assert job.last_pages()["rows"] == [max(key.seq for key in run.pages)]
        assert run.pages.keys() - {r.key for r in store.pending()} == {
            key for key in run.pages if key.seq <= 2
        }
    workers.close()


def test_salvage_of_a_spool_file_delivers_the_pages_that_are_whole(tmp_path):
    run = Run(tmp_path / "store", snapshots=(BEATS,))
    with Store.open(run.path, segment_bytes=1 << 16) as store:
        snapshot = store.recover().snapshot
        store.snapshot(snapshot.beat, snapshot.facts, snapshot.arrays, barrier=True)
        refs = store.pending()
    assert len({ref.file for ref in refs}) == 1 and len(refs) > 3
    damage(refs[0].file, 100)
    damage(refs[2].file, refs[2].offset + 300)
    pages, gaps, salvaged = start(run)
    assert [s.kind for s in salvaged] == ["spool file"]
    check(run, pages, gaps)
    assert run.pages.keys() - pages.keys() == {refs[2].key}
    assert [(g.first, g.last) for g in gaps if g.partition == 0] == [(refs[2].key.seq,) * 2]
    assert not start(run, more=0)[2]


def test_salvage_of_a_page_that_is_found_damaged_when_it_is_read(tmp_path):
    run = Run(tmp_path / "store")
    with Store.open(run.path, segment_bytes=1 << 16) as store:
        first, second = store.pending()[:2]
        damage(first.file, first.offset + 300)
        store.check_page(first.key.stream, first.key.partition)
        store.check_page(second.key.stream, second.key.partition)
        assert [ref.key for ref in store.pending()] == sorted(
            run.pages.keys() - {first.key}, key=lambda key: key.seq
        )
        (gap,) = store.take_lost()
        assert (gap.stream, gap.first, gap.last) == (first.key.stream, 1, 1)
        assert store.gaps.newest == [gap] and not store.take_lost()
        assert [s.kind for s in store.salvaged] == ["page"]


def test_salvage_that_is_cut_anywhere_gives_the_same_at_the_next_start(tmp_path):
    """A kill or a power cut at each operation of a start on a damaged store, and then a start."""
    run = Run("/store", disk=SimDisk())
    damaged = run.disk.after_kill()
    (path, _), (_, begin) = run.ends[7], run.ends[6]
    data = damaged.content(path)
    data[begin + 8] ^= 1
    damaged.put(path, bytes(data))
    whole = damaged.after_kill()
    expected = start(run, more=0, disk=whole)
    assert expected[1]
    rng = random.Random(3)
    for cut in range(1, whole.operations, 2):
        for power in (False, True):
            twin = damaged.after_kill()
            twin.cut_at = cut
            with pytest.raises(PowerCut):
                start(run, more=0, disk=twin)
            after = twin.after_power_cut(rng) if power else twin.after_kill()
            pages, gaps, _ = start(run, more=0, disk=after)
            assert pages == expected[0] and ranges(gaps) == ranges(expected[1])


def ranges(gaps):
    return sorted((g.stream, g.partition or 0, g.producer, g.first, g.last) for g in gaps)


@pytest.mark.parametrize("snapshots", [(), (6,)])
def test_salvage_of_joins_and_windows_repeats_no_page_and_goes_on(tmp_path, snapshots):
    """Operators with state behind a hole anywhere: the log's pages stay, later ones are new."""
    plan, _, pages, _ = live_run(tmp_path, random.Random(5), snapshots, beats=14)
    whole, workers = tmp_path / "after-14", Workers(1)
    places = []
    for file in sorted((whole / "log").iterdir()):
        data = file.read_bytes()
        starts = [i for i in range(ALIGN, len(data), ALIGN) if data[i : i + 4] == b"EdgR"]
        places += [(file.name, at) for at in starts]
    found_gaps = 0
    for i, (name, at) in enumerate(places[:-1]):
        copy = tmp_path / f"copy-{i}"
        shutil.copytree(whole, copy)
        damage(copy / "log" / name, at + 20)
        with Live(REPLAYED) as live, Store.open(copy, segment_bytes=1 << 16) as store:
            context = SinkContext("device", store.device_epoch, "/nonexistent", workers)
            found = recover(store, [plan], context, HandClock())
            live.job, live.store, live.beats = found.jobs[0], store, found.beat
            live.clock.advance(100 * SECOND)
            store.snapshot(found.beat, *live.save(), barrier=True)
            for _ in range(3):
                live.send("r", some_rows(random.Random(i), T0 + 1000, 30), "a")
                live.send("s", some_rows(random.Random(i), T0 + 1000, 30), "b")
                live.beat(flush=True)
            sent = delivered(store, SystemDisk())
            numbers = [g for g in store.gaps.newest if g.partition is not None]
            found_gaps += len(store.gaps.newest)
            live.store = None
        assert all(pages.get(key, data) == data for key, data in sent.items())
        for key in pages.keys() - sent.keys():
            assert any(gap.has(key.stream, key.partition, key.seq) for gap in numbers), key
        routes = {(key.stream, key.partition) for key in sent}
        for route in routes:
            seqs = sorted(k.seq for k in sent if (k.stream, k.partition) == route)
            lost = {n for g in numbers if (g.stream, g.partition) == route
                    for n in range(g.first, g.last + 1)}  # fmt: skip
            assert set(range(1, seqs[-1] + 1)) <= {*seqs} | lost
    assert found_gaps
    workers.close()


def test_salvage_of_a_job_whose_inputs_are_not_logged(tmp_path):
    """With durability `results` every beat seals what it takes."""
    document = changed(copy_job(), promises={"durability": "results"})
    run = Run(tmp_path / "store", document, every=1)
    for n in (3, 8):
        copy = tmp_path / f"copy-{n}"
        shutil.copytree(run.path, copy)
        file, begin, _ = record(copy, run, n)
        damage(file, begin + 8)
        sent = dict(run.sent)
        pages, gaps, salvaged = start(run, copy)
        assert salvaged and not check(run, pages, gaps)
        assert pages.keys() >= run.pages.keys(), "the page in the damaged record is whole"
        run.sent, run.batches = sent, BEATS


def test_salvage_of_a_log_with_a_job_that_cannot_be_loaded(tmp_path):
    """What the shelf has of the log ends at the hole; the page numbers go on."""
    plan, _, pages, _ = live_run(tmp_path, random.Random(2), (3,), beats=10)
    path = tmp_path / "after-10"
    file = max((path / "log").iterdir())
    data = file.read_bytes()
    starts = [i for i in range(ALIGN, len(data), ALIGN) if data[i : i + 4] == b"EdgR"]
    damage(file, starts[len(starts) // 2 - 1] + 8)
    with without("operators", "window"):
        started(path, lambda found: None, unreadable=[plan.document])
    assert list((path / "quarantine").iterdir())
    last = {}
    for key in pages:
        route = (key.stream, key.partition)
        last[route] = max(key.seq, last.get(route, 0))
    found = started(path, lambda found: found.jobs[0].last_pages(), files=[plan])
    for (stream, partition), seq in last.items():
        assert found[stream][partition] >= seq


def hurt(rng, store):
    """Damage one file of a store in one of the ways that media do."""
    files = [p for p in store.rglob("*") if p.is_file() and p.stat().st_size]
    file = rng.choice(sorted(p for p in files if p.name not in ("lock", "acks")))
    at, way = rng.randrange(file.stat().st_size), rng.choice(["bit", "bit", "zeros", "cut", "gone"])
    if way == "bit":
        damage(file, at)
    elif way == "zeros":
        at -= at % ALIGN
        data = bytearray(file.read_bytes())
        data[at : at + ALIGN] = bytes(len(data[at : at + ALIGN]))
        file.write_bytes(data)
    elif way == "cut":
        os.truncate(file, at)
    else:
        file.unlink()
    return way, file.relative_to(store)


def test_salvage_of_damage_anywhere_always_starts_and_repeats_nothing(tmp_path):
    runs = [Run(tmp_path / f"{i}", snapshots=s) for i, s in enumerate([(), (5,), (4, 8), (12,)])]
    alone(runs[-1])
    for seed in range(60):
        rng = random.Random(seed)
        run, copy = rng.choice(runs), tmp_path / f"copy-{seed}"
        shutil.copytree(run.path, copy)
        told = hurt(rng, copy)
        sent = dict(run.sent)
        pages, _, _ = start(run, copy, positions=False)
        assert all(run.pages.get(key, data) == data for key, data in pages.items()), told
        keys = [
            row[0]
            for key, data in pages.items()
            for row in rows_of(run.plan, [SealedPage(key, data)], "rows")
        ]
        assert len(keys) == len(set(keys)), told
        run.sent, run.batches = sent, BEATS
