"""A line of lanes under any schedule: every pair is met exactly once, also where two cross."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import address
from edged.joins._tables import aligned
from edged.joins._windows import Window
from kernels.cpu import handshake, nested_loop
from tests.kernels.test_bucket import Batch
from tests.naive import handshake as naive
from tests.whole import examples

NO_KEYS = np.zeros((0, 5), np.int64)


class Line:
    """Lanes, driven by a random number generator: which runs next, and for how long."""

    def __init__(self, lanes, seed=0, start=0):
        self.lanes, self.random = lanes, random.Random(seed)
        self.segments = [(Window(), Window()) for _ in range(lanes)]
        self.kept = [[[] for _ in range(lanes)] for _ in range(2)]
        self.queues = aligned(2 * lanes * handshake.QUEUE_BYTES)
        self.queues[:] = 0
        counters = self.queues.view(np.uint32).reshape(2 * lanes, -1)
        counters[:, [handshake.QUEUE.taken // 4, handshake.QUEUE.put // 4]] = start
        self.rows = [0, 0]

    def beat(self, left, right, before, after):
        """The pairs found, sorted, and those of the twin."""
        batches = [Batch(rows, self.rows[side]) for side, rows in enumerate((left, right))]
        flat = [[row for part in b.parts for row in part] for b in batches]
        expected = naive.work(*flat, *self.kept, before, after)
        turns = [self.random.randrange(self.lanes) for _ in range(2)]
        for side, batch in enumerate(batches):
            self.rows[side] += batch.rows
            homes = naive.homes(flat[side], turns[side], self.lanes)
            for lane, rows in enumerate(homes):
                self.segments[lane][side].reserve(len(rows))
                self.kept[side][lane] += rows
        pairs = self.run(batches, turns, np.array([before, after, 0, 0], np.int64))
        for side in (0, 1):
            for lane in range(self.lanes):
                held = sorted(self.segments[lane][side].numbers(0).tolist())
                assert held == sorted(n for *_, n in self.kept[side][lane])
        return sorted(pairs), expected

    def run(self, batches, turns, job):
        left, right = batches
        batch = np.array(
            [left.records, right.records, left.rows, right.rows, *turns, address(self.queues), 0],
            np.int64,
        )
        states = np.zeros((self.lanes, handshake.LANE_FIELDS), np.int64)
        outs = [np.zeros((2, 1), np.int64) for _ in range(self.lanes)]
        pending = set(range(self.lanes))
        while pending:
            lane = self.random.choice(sorted(pending))
            segments = [s.row for s in self.segments[lane]]
            answer = handshake.work(
                lane, self.lanes, states, batch, left.edges, right.edges, job, NO_KEYS, *segments,
                *outs[lane],
            )  # fmt: skip
            if answer == handshake.FULL:
                more = self.random.choice([1, 5, 300])
                grown = np.zeros((2, outs[lane].shape[1] + more), np.int64)
                grown[:, : outs[lane].shape[1]] = outs[lane]
                outs[lane] = grown
            if answer == handshake.DONE:
                pending.remove(lane)
        ends = states[:, handshake.LANE.pairs].tolist()
        return [
            tuple(p) for out, end in zip(outs, ends, strict=True) for p in out[:, :end].T.tolist()
        ]


ROW = st.tuples(st.integers(0, 30), st.sampled_from([0, 1, 2**32 - 1]), st.sampled_from([0, 63]))
ROWS = st.builds(
    lambda rows, times: (rows * times)[:400], st.lists(ROW, max_size=20), st.integers(1, 20)
)


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(ROWS, ROWS), max_size=3),
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.integers(0, 200),
)
def test_whatever_the_schedule_every_pair_is_met_once(beats, lanes, seed, short):
    line = Line(lanes, seed, 2**32 - 1 - short)
    for left, right in beats:
        found, expected = line.beat(left, right, 3, 9)
        assert found == expected


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_more_blocks_than_a_queue_holds_pass_through(lanes):
    rows = [(i, i % 50, 0) for i in range(4200)]
    assert len(rows) // handshake.BLOCK > handshake.QUEUE_SLOTS
    line = Line(lanes, 7)
    for part in (rows, rows[:200]):
        found, expected = line.beat(part, part, 60, 60)
        assert found == expected


def test_segments_are_shared_out_evenly():
    line = Line(4)
    line.beat([(0, i, 0) for i in range(64 * 40)], [], 0, 0)
    assert [segments[0].entries for segments in line.segments] == [640] * 4
    assert line.segments[0][0].row[nested_loop.WINDOW.visible] == 0
