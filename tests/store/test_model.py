"""The store against a plain list, over commits, acks, snapshots, kills and power cuts."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edged.errors import EdgedError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import flat_view
from edged.store import BeatRecord, Store, identity
from tests.store.simdisk import PowerCut, SimDisk
from tests.whole import examples

ROUTES = [("curve", 0), ("curve", 1), ("daily", 0)]


def digest(before: bytes, record: BeatRecord) -> bytes:
    h = hashlib.sha256(before + b"%d" % record.number + record.facts)
    for part in record.inputs:
        h.update(b"|" + bytes(flat_view(part)))
    return h.digest()


class StoreModel(RuleBasedStateMachine):
    """`records`: every committed record that must or may be there; `sure`: how many must."""

    lies = ()

    def __init__(self):
        super().__init__()
        self.random = identity.random_u64
        chance = random.Random(1)
        identity.random_u64 = lambda: chance.getrandbits(64)
        self.disk = SimDisk(lies=self.lies)
        self.records: list[BeatRecord] = []
        self.sure = 0
        self.floor = 0
        self.acked = dict.fromkeys(ROUTES, 0)
        self.sessions = 0
        self.open()

    # -- actions --

    @rule(
        step=st.integers(1, 3),
        sizes=st.lists(st.sampled_from([0, 1, 7, 4096, 20_000]), max_size=3),
        pages=st.lists(st.tuples(st.sampled_from(ROUTES), st.integers(1, 9000)), max_size=4),
        sync=st.sampled_from([True, True, True, False]),
        cut=st.none() | st.integers(1, 30),
        seed=st.integers(0, 2**32),
    )
    def commit(self, step, sizes, pages, sync, cut, seed):
        rng = random.Random(seed)
        last = max([self.floor, *(r.number for r in self.records)])
        record = BeatRecord(
            last + step,
            rng.randbytes(rng.randrange(60)),
            [np.frombuffer(rng.randbytes(n), np.uint8) for n in sizes],
        )
        seqs = self.newest()
        for route, size in pages:
            seqs[route] += 1
            record.pages.append(SealedPage(PageKey(*route, seqs[route]), rng.randbytes(size)))
        if cut:
            self.disk.cut_at = self.disk.operations + cut
        try:
            refs = self.store.commit(record, sync)
        except PowerCut:
            self.records.append(record)
            self.power_cut(seed)
            return
        self.disk.cut_at = None
        assert [r.key for r in refs] == [p.key for p in record.pages]
        self.records.append(record)
        if sync:
            self.sure = len(self.records)

    @rule(
        ahead=st.sampled_from([0, 0, 0, 1, 3]),
        cut=st.none() | st.integers(1, 40),
        seed=st.integers(0, 2**32),
    )
    @precondition(lambda self: self.records)
    def snapshot(self, ahead, cut, seed):
        state = b""
        for record in self.records:
            state = digest(state, record)
        if cut:
            self.disk.cut_at = self.disk.operations + cut
        beat = max(self.records[-1].number, self.floor) + ahead
        try:
            arrays = {"state": np.frombuffer(state, np.uint8), "none": np.empty((0, 3))}
            moved = self.store.snapshot(beat, b"after %d" % beat, arrays)
        except PowerCut:
            self.power_cut(seed)
            return
        self.disk.cut_at = None
        self.sure, self.floor = len(self.records), beat
        pending = set(self.store.pending())
        assert all(ref in pending for ref in moved)

    @rule(route=st.sampled_from(ROUTES), share=st.floats(0, 1))
    def ack(self, route, share):
        durable = [
            p.key.seq
            for record in self.records[: self.sure]
            for p in record.pages
            if (p.key.stream, p.key.partition) == route
        ]
        if durable:
            seq = durable[int(share * (len(durable) - 1))]
            self.store.acked(*route, seq)
            self.acked[route] = max(self.acked[route], seq)

    # -- faults --

    @rule()
    def kill(self):
        self.disk = self.disk.after_kill()
        sure, self.sure = self.sure, len(self.records)
        self.open()
        self.sure = sure

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed):
        self.disk = self.disk.after_power_cut(random.Random(seed))
        self.open()

    @rule(cut=st.integers(1, 60), seed=st.integers(0, 2**32))
    def power_cut_while_opening(self, cut, seed):
        rng = random.Random(seed)
        self.disk = self.disk.after_power_cut(rng)
        self.disk.cut_at = cut
        try:
            Store.open("/store", self.disk, segment_bytes=64 << 10)
        except PowerCut:
            pass
        else:
            self.disk = self.disk.after_kill()
        self.disk = self.disk.after_power_cut(rng)
        self.open()

    @rule()
    def close_and_open(self):
        self.store.close()
        self.open()
        self.sure = len(self.records)

    def open(self):
        self.store = Store.open("/store", self.disk, segment_bytes=64 << 10)
        assert self.store.session[0] > self.sessions
        self.sessions = self.store.session[0]
        recovery = self.store.recover()
        found = list(recovery.records)
        base = recovery.snapshot.beat if recovery.snapshot else 0
        covered = [r for r in self.records if r.number <= base]
        self.check_records(found, self.records[len(covered) :])
        self.records = self.records[: len(covered) + len(found)]
        assert len(self.records) >= self.sure, "an acked record is lost"
        if recovery.snapshot:
            state = b""
            for record in covered:
                state = digest(state, record)
            assert recovery.snapshot.arrays["state"].tobytes() == state
            assert recovery.snapshot.arrays["none"].shape == (0, 3)
        self.floor = base
        self.sure = max(self.sure, len(covered))

    def check_records(self, found, expected):
        assert len(found) <= len(expected), "a record was invented"
        for got, want in zip(found, expected, strict=False):
            assert (got.number, got.facts) == (want.number, want.facts)
            assert [bytes(flat_view(b)) for b in got.inputs] == [
                bytes(flat_view(b)) for b in want.inputs
            ]
            assert got.pages == want.pages

    def teardown(self):
        identity.random_u64 = self.random

    # -- invariants --

    def newest(self):
        seqs = dict(self.acked)
        for record in self.records:
            for p in record.pages:
                seqs[p.key.stream, p.key.partition] = p.key.seq
        return seqs

    @invariant()
    def pending_pages_are_the_unacked_ones_byte_for_byte(self):
        pages = {p.key: p.data for record in self.records for p in record.pages}
        refs = self.store.pending()
        keys = [(r.key.stream, r.key.partition, r.key.seq) for r in refs]
        assert keys == sorted(set(keys))
        for ref in refs:
            data = self.disk.content(ref.file)[ref.offset : ref.offset + ref.length]
            assert bytes(data) == pages[ref.key]
        unacked = {k for k in pages if k.seq > self.acked[k.stream, k.partition]}
        assert unacked <= {r.key for r in refs}, "an unacked page is lost"
        assert self.store.backlog_pages == len(refs)
        assert self.store.backlog_bytes == sum(r.length for r in refs)

    @invariant()
    def bytes_used_is_what_lies_on_the_disk(self):
        kinds = (".log", ".spare", ".pages", ".snap")
        names = [n for n in self.disk.names if n.endswith(kinds) and "quarantine" not in n]
        assert self.store.bytes_used == sum(len(self.disk.content(n)) for n in names)


MODEL_SETTINGS = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestStoreModel(StoreModel.TestCase):
    settings = MODEL_SETTINGS


def test_a_torn_first_record_behind_a_log_that_was_retired_whole_is_only_a_torn_record():
    for seed in range(100):
        model = StoreModel()
        for _ in range(2):
            model.commit(step=1, sizes=[], pages=[], sync=True, cut=None, seed=0)
        model.snapshot(ahead=0, cut=None, seed=0)
        model.power_cut(seed=0)
        model.snapshot(ahead=0, cut=None, seed=0)
        model.commit(step=1, sizes=[1], pages=[], sync=True, cut=8, seed=seed)
        model.teardown()


def test_a_restart_that_dies_among_the_copies_of_the_tail_loses_none_of_it():
    for cut in range(1, 60):
        for seed in range(5):
            model = StoreModel()
            model.commit(step=1, sizes=[0], pages=[], sync=False, cut=None, seed=0)
            model.commit(step=1, sizes=[20_000], pages=[], sync=True, cut=None, seed=0)
            model.power_cut_while_opening(cut=cut, seed=seed)
            model.teardown()


@pytest.mark.parametrize(
    "lies",
    [
        (".log",),
        ("/log",),
        (".snap.tmp",),
        ("/snapshots",),
        (".pages.tmp",),
        ("/spool",),
        ("/session",),
    ],
)
def test_the_model_notices_a_sync_that_does_nothing(lies):
    mutant = type("Mutant", (StoreModel,), {"lies": lies})
    once = settings(
        MODEL_SETTINGS,
        max_examples=2000,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, EdgedError, KeyError)):
        run_state_machine_as_test(mutant, settings=once)
