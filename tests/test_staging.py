"""Staging against a list of rows, and the promises in its docstring one by one."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tests.naive.staging as naive
from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MIN_US
from edged.data.schema import BOOL, FLOAT64, INT16, INT64, STRING, TIMESTAMP, Field, Schema
from edged.data.staging import CLOCK_SANE_US, Chunks, Producers, Staging
from kernels.cpu import staging as kernels
from tests.whole import examples

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
SCHEMA = Schema.of(
    [
        Field("k", INT64),
        Field("t", TIMESTAMP),
        Field("s", STRING, True),
        Field("v", FLOAT64, True),
        Field("b", BOOL),
        Field("i", INT16),
    ]
)
PLAIN = Schema.of([Field("t", TIMESTAMP), Field("k", INT64)])


def batch(first: int, count: int, schema: Schema = SCHEMA) -> Batch:
    """Rows that are functions of their number `k`; times go back and forth."""
    k = range(first, first + count)
    columns = {
        "k": pa.array(k, pa.int64()),
        "t": pa.array([NOW_US + x * 7919 % 1000 for x in k], pa.timestamp("us", tz="UTC")),
        "s": pa.array([None if x % 4 == 0 else "ä" * (x % 9) for x in k], pa.string()),
        "v": pa.array([None if x % 3 == 0 else x / 2 for x in k], pa.float64()),
        "b": pa.array([x % 2 == 0 for x in k], pa.bool_()),
        "i": pa.array([x % 1000 for x in k], pa.int16()),
    }
    arrays = [columns[name] for name in schema.names]
    return Batch.from_arrow(pa.record_batch(arrays, schema=schema.to_arrow()), schema)


def keys(rows: Batch) -> list[int]:
    return [int(k) for k in rows["k"].values]


def staging(bytes_max: int = 1 << 20, schema: Schema = SCHEMA) -> Staging:
    return Staging("s", schema, "t", bytes_max, HOUR_US)


class Model(RuleBasedStateMachine):
    """Appends, takes, logs, restarts against plain lists; views in a commit stay as they were."""

    @initialize(bytes_max=st.sampled_from([4096, 1 << 16, 1 << 20]))
    def begin(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.staging = staging(bytes_max)
        self.next = 0
        self.chunks: list[tuple[int, list[int]]] = []
        self.unlogged: list[tuple[int, list[int]]] = []
        self.in_commit: tuple[Batch, pa.RecordBatch] | None = None
        self.log: list[tuple[str, str, str]] = []

    @rule(count=st.integers(0, 400), producer=st.integers(0, 3))
    def append(self, count: int, producer: int) -> None:
        number = self.staging.producers.number(f"p{producer}")
        assert self.staging.append(batch(self.next, count), number, NOW_US) == count
        rows = list(range(self.next, self.next + count))
        self.next += count
        if rows:
            self.chunks.append((number, rows))
            self.unlogged.append((number, rows))

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.chunks)))
        self.staging.consume(count, sum(len(r) for _, r in self.chunks[:count]))
        del self.chunks[:count]

    @rule()
    def commit(self) -> None:
        rows, chunks = self.staging.unlogged()
        assert keys(rows) == [k for _, r in self.unlogged for k in r]
        assert chunks.producer.tolist() == [p for p, _ in self.unlogged]
        self.staging.mark_logged()
        self.unlogged = []
        self.in_commit = (rows, rows.to_arrow())

    @precondition(lambda self: not self.unlogged)
    @rule()
    def restart(self) -> None:
        saved = self.staging.save()
        self.staging = staging(self.bytes_max)
        self.staging.load(saved)
        self.in_commit = None

    @invariant()
    def pending_is_what_was_appended_and_not_taken(self) -> None:
        if not hasattr(self, "staging"):
            return
        rows, chunks = self.staging.pending(), self.staging.chunks()
        expected = [k for _, r in self.chunks for k in r]
        assert self.staging.rows == rows.rows == chunks.rows == len(expected)
        if expected:
            whole = [batch(r[0], len(r)).to_arrow() for _, r in self.chunks]
            assert pa.Table.from_batches([rows.to_arrow()]) == pa.Table.from_batches(whole)
        assert chunks.stop.tolist() == np.cumsum([len(r) for _, r in self.chunks]).tolist()
        times = [[NOW_US + k * 7919 % 1000 for k in r] for _, r in self.chunks]
        assert chunks.time_min.tolist() == [min(t) for t in times]
        assert chunks.time_max.tolist() == [max(t) for t in times]
        assert chunks.producer.tolist() == [p for p, _ in self.chunks]

    @invariant()
    def views_in_a_commit_stay_intact(self) -> None:
        if getattr(self, "in_commit", None) is not None:
            rows, copy = self.in_commit
            assert rows.to_arrow() == copy


Model.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestModel = Model.TestCase


class TestRecords:
    def test_replayed_give_the_same_rows_chunks_and_producers(self) -> None:
        live, replayed = staging(1 << 16), staging(1 << 16)
        for beat in range(50):
            for i in range(beat % 4):
                number = live.producers.number(f"p{(beat + i) % 5}")
                live.append(batch(100 * beat + 10 * i, 10), number, NOW_US)
                live.producers.seq[number] += 1
                live.producers.ended[number] = beat % 2
            rows, chunks = live.unlogged()
            changes = json.loads(json.dumps(live.producers.changes()))
            logged = Batch.from_arrow(rows.to_arrow(), SCHEMA)
            live.mark_logged()
            replayed.producers.apply(changes)
            replayed.append_logged(logged, chunks)
            for s in (live, replayed):
                count = len(s.chunks()) // 2
                stops = s.chunks().stop
                s.consume(count, int(stops[count - 1]) if count else 0)
            assert live.pending().to_arrow() == replayed.pending().to_arrow()
            assert live.chunks().stop.tolist() == replayed.chunks().stop.tolist()
            assert live.producers.to_json() == replayed.producers.to_json()
        assert not replayed.unlogged()[0].rows

    def test_hold_only_producers_that_changed(self) -> None:
        producers = Producers()
        for i in range(1000):
            producers.number(f"p{i}")
        assert producers.changed()
        producers.mark_logged()
        assert not producers.changed()
        producers.seq[7] = 3
        assert producers.changes() == {
            "forgotten": [], "ids": [], "number": [7],
            "seq": [3], "latest_us": [WATERMARK_MIN_US], "ended": [0],
            "behind": [0], "contents": [],
        }  # fmt: skip

    def test_of_producers_survive_a_snapshot(self) -> None:
        producers = Producers()
        a, b = producers.number("a"), producers.number("b")
        producers.seq[a], producers.ended[b] = 5, 1
        again = Producers.from_json(json.loads(json.dumps(producers.to_json())), 123)
        assert again.ids == ["", "a", "b"]
        assert again.seq.tolist() == [0, 5, 0]
        assert again.seen_us.tolist() == [123] * 3
        assert again.number("b") == 2
        assert not again.changed()


class TestMemory:
    def test_is_bounded_where_sources_heed_room(self) -> None:
        s, first, most = staging(1 << 20), 0, 0
        for step in range(60):
            while s.room() > 0:
                s.append(batch(first, 97), 0, NOW_US)
                first += 97
            assert s.full
            most = max(most, s.memory_bytes())
            if step % 3 == 0:
                s.unlogged()
            s.mark_logged()
            count = max(1, len(s.chunks()) // 3)
            s.consume(count, int(s.chunks().stop[count - 1]))
        assert most < 1.2 * (1 << 20)

    def test_comes_back_below_the_low_watermark_only(self) -> None:
        s = staging(1 << 20, PLAIN)
        while s.room() > 0:
            s.append(batch(0, 100, PLAIN), 0, NOW_US)
        s.mark_logged()
        half = 1 << 19
        while s.live_bytes() > half // 2:
            assert s.room() == 0
            s.consume(1, 100)
        assert s.room() == half * 4 // 5 - s.live_bytes()

    def test_of_rows_that_are_taken_but_not_logged_counts(self) -> None:
        s = staging(1 << 20, PLAIN)
        s.append(batch(0, 1000, PLAIN), 0, NOW_US)
        s.consume(1, 1000)
        assert s.live_bytes() > 16_000
        assert keys(s.unlogged()[0]) == list(range(1000))
        s.mark_logged()
        assert s.live_bytes() == 0

    def test_holds_a_single_batch_of_any_size(self) -> None:
        s = staging(4096)
        s.append(batch(0, 5000), 0, NOW_US)
        assert s.rows == 5000
        assert s.room() == 0


class TestTaking:
    def test_goes_by_whole_chunks(self) -> None:
        s = staging()
        s.append(batch(0, 10), 0, NOW_US)
        s.append(batch(10, 5), 0, NOW_US)
        with pytest.raises(ValueError, match="1 chunks are not 9 rows"):
            s.consume(1, 9)
        with pytest.raises(ValueError, match="chunks"):
            s.consume(3, 15)
        s.consume(1, 10)
        assert keys(s.pending()) == list(range(10, 15))


class TestTimesAhead:
    def far(self, times: list[int]) -> Batch:
        rows = batch(0, len(times))
        rows["t"].values[:] = times
        return rows

    def test_are_refused_row_by_row_and_counted(self) -> None:
        s = staging()
        year_2106 = 4_300_000_000_000_000
        rows = self.far([NOW_US, year_2106, NOW_US + HOUR_US, NOW_US + HOUR_US + 1])
        assert s.append(rows, 0, NOW_US) == 2
        assert s.refused_ahead == 2
        assert keys(s.pending()) == [0, 2]
        assert s.pending().to_arrow() == pa.concat_batches(
            [rows.slice(0, 1).to_arrow(), rows.slice(2, 3).to_arrow()]
        )
        assert s.producers.latest_us[0] == NOW_US + HOUR_US
        assert s.append(self.far([year_2106]), 0, NOW_US) == 0
        assert len(s.chunks()) == 1

    def test_are_judged_by_the_stream_where_the_clock_stands_in_1970(self) -> None:
        s = staging()
        assert s.append(self.far([NOW_US, NOW_US + HOUR_US + 1]), 0, 5) == 1
        assert s.append(self.far([NOW_US + HOUR_US, NOW_US + 2 * HOUR_US]), 0, 5) == 1
        assert s.append(self.far([NOW_US + 2 * HOUR_US]), 0, 5) == 1
        assert s.refused_ahead == 2
        assert s.append(self.far([NOW_US + 2 * HOUR_US]), 0, CLOCK_SANE_US) == 0

    def test_do_not_overflow(self) -> None:
        s = Staging("s", SCHEMA, "t", 1 << 20, 2**63 - 1)
        assert s.append(self.far([2**63 - 1, -(2**63)]), 0, NOW_US) == 2


class TestChunks:
    def test_of_no_rows_is_no_chunk(self) -> None:
        s = staging()
        assert s.append(batch(0, 0), 0, NOW_US) == 0
        assert len(s.chunks()) == 0
        assert Chunks.of(0, 1, np.empty(0, np.int64)).rows == 0


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 30), st.integers(0, 30), st.integers(0, 5), st.lists(st.integers(0, 39)),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_kernels_do_what_their_naive_twins_do(
    a: int, b: int, at: int, picks: list[int], take: bool, no_valid: bool
) -> None:
    start, stop = sorted((a, b))
    source = batch(0, 40).slice(0, 40)
    table = source.addresses()
    if no_valid:
        table[:, 2] = 0
    results = []
    for module in (kernels, naive):
        target = Batch.from_arrow(batch(1000, 100).to_arrow(), SCHEMA)
        big = np.zeros(4096, np.uint8)
        to = target.addresses()
        to[2, 1] = big.__array_interface__["data"][0]
        ends = np.array([0, 0, 17, 0, 0, 0], np.int64)
        if take:
            module.take_rows(table, np.array(picks[:40], np.int64), to, at, ends)
        else:
            module.copy_rows(table, start, stop, to, at, ends)
        arrays = [big, ends, target["s"].offsets]
        arrays += [c.valid for c in target.columns if c.valid is not None]
        results.append(arrays + [c.values for c in target.columns if c.offsets is None])
    for ours, theirs in zip(*results, strict=True):
        assert ours.tobytes() == theirs.tobytes()
