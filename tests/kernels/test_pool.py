"""Rings in a pool: the same pairs in the same order as without, nothing met that is gone."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from edged.data.workers import Workers
from edged.joins import _rings
from edged.joins._rings import LONG_POOLED_MAX, POOL_MIN
from edged.joins.base import Records
from edged.joins.chain import ChainJoin
from kernels.cpu import beat, pool, pooled, rings
from kernels.cpu.rings import ENTRY
from kernels.cpu.team import ASLEEP_WORTH_NS, AWAKE_WORTH_NS
from tests.eager import team_of
from tests.joins import support
from tests.joins.support import check, check_cuts, check_threads, check_windows, streams
from tests.kernels.chain_model import Model, tag_of
from tests.whole import examples

NONE = -(2**63)
TEAMS = [1, 2, 4]
"""Threads; as many pools."""
PARTITIONS = [0, 1, 7, 8, 63]
"""Some partitions."""


class Pooled(ChainJoin):
    """The chain join, in a pool whenever it can be."""

    def join(self, left, right, beat_, workers):
        """A beat before which a pool is made."""
        self._lanes.desk[beat.DESK.patience] = 1
        return super().join(left, right, beat_, workers)


@pytest.fixture(scope="module", params=TEAMS)
def team(request):
    """Workers that start a thread for any work."""
    with team_of(request.param) as workers:
        yield workers


def held(model, side):
    """For each partition times and keys of the entries held, from the tail on, read from rings of
    its own."""
    table, parts = model.rings.tables[side], []
    for p in range(64):
        ring, mask = int(table[p, rings.RING.entries]), int(table[p, rings.RING.mask])
        entries = [
            ctypes.string_at(ring + ENTRY * (position & mask), ENTRY)
            for position in range(int(table[p, rings.RING.tail]), int(table[p, rings.RING.head]))
        ]
        tags = [int.from_bytes(e[8:12], "little") for e in entries]
        assert all(tag >> 26 == p for tag in tags)
        times = [int.from_bytes(e[:8], "little", signed=True) for e in entries]
        parts.append([(t, tag & 2**26 - 1) for t, tag in zip(times, tags, strict=True)])
    return parts


def twins(model, side):
    """The same of the twin."""
    parts = model.twin.right if side else model.twin.left
    return [[(t, k) for t, (k, _), _ in part] for part in parts]


ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.sampled_from(PARTITIONS)), max_size=40
)
BEATS = st.lists(
    st.tuples(
        ROWS,
        ROWS,
        st.sampled_from([True, True, True, False]),  # each partition's times are in order
        st.integers(0, 60),  # how far the watermark stays behind
        st.sampled_from([False] * 6 + [True]),  # partitions get rings of their own afterwards
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(400), deadline=None)
@given(BEATS, st.tuples(st.integers(0, 40), st.integers(0, 40)), st.sampled_from([1, 1, 3]))
def test_pairs_their_order_and_what_is_held_are_the_twins(team, beats, bounds, spread):
    model, now = Model(*bounds, spread=spread, pooled=True), 100
    for *sides, ordered, behind, apart in beats:
        rows = [[(now + t, k, p) for t, k, p in side] for side in sides]
        if ordered:
            rows = [sorted(side, key=lambda row: row[0]) for side in rows]
        now += 20
        found, expected = model.beat(*rows, (now - behind, now - behind), team)
        assert found == expected
        event(f"pooled: {model.rings.pooled}")
        if apart:
            model.rings.spread()
    model.rings.spread()
    for side in (0, 1):
        assert held(model, side) == twins(model, side)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from([0, 3, 50]))
def test_streams_in_order_stay_pooled_and_hold_little_that_is_dead(team, seed, size, span):
    rng, model, now = np.random.default_rng(seed), Model(500, 500, pooled=True), 0
    model.twin.join = lambda *args: None
    left, seen, last = [], 0, np.zeros((2, 64), np.int64)
    for _ in range(40):
        now += size
        sides = []
        for latest in last:  # each partition in order, not all of a beat before all of the next
            rows = []
            for t in np.sort(rng.integers(now, now + span + 1, size)).tolist():
                p = int(rng.integers(0, 64))
                latest[p] = max(latest[p], t)
                rows.append((int(latest[p]), int(rng.integers(0, 9)), p))
            sides.append(rows)
        model.beat(*sides, (now, now), team)
        assert model.rings.pooled
        left += [t for t, *_ in sides[0]]
        seen = max(seen, model.rings.held(0).sum() - sum(t >= now - 500 for t in left))
    assert seen <= 2 * size + span + (500 + size) // pool.FINE + 1


@pytest.mark.parametrize(("late", "met"), [(120, range(25, 31)), (134, range(25, 40))])
def test_a_row_too_late_does_not_meet_what_is_dead_but_held(late, met):
    """What has gone is older than 125: by a µs only, in the second case."""
    model = Model(10, 10, pooled=True)
    model.beat([], [(t, 1, 5) for t in range(100, 140)])
    model.beat([], [], (135, 135))
    assert model.rings.pooled
    assert model.rings.held(1).sum() > sum(map(len, model.twin.right))
    found, expected = model.beat([(late, 1, 5)], [], (135, 135))
    assert found == expected == [(0, row) for row in reversed(met)]
    assert not model.rings.pooled


@pytest.mark.parametrize("pooled_before", [False, True])
def test_where_times_fall_within_a_partition_walks_go_on_behind_what_is_too_old(
    team, pooled_before
):
    model = Model(10, 10, pooled=pooled_before)
    rows = [(t, t % 3, p) for t in range(20) for p in PARTITIONS]
    stray = [(30, 1, 7), (22, 1, 7), *[(31, k % 3, p) for k in range(5) for p in PARTITIONS]]
    for *sides, mark in (rows, rows[-5:], 15), (stray, [(26, 1, 7)], 20), (stray[1:2], [], 21):
        found, expected = model.beat(*sides, (mark, mark), team)
        assert found == expected
        assert model.rings.pooled == model.pooled
        model.pooled = True
    found, expected = model.beat([], [(21, 1, 7), (32, 1, 7), (22, 1, 7)], (21, 21), team)
    assert found == expected
    assert len(expected) == 8 + 5 + 8
    model.rings.spread()
    for side in (0, 1):
        assert held(model, side) == twins(model, side)
    table = model.rings.tables[0]
    assert table[7, [rings.RING.disorder_old, rings.RING.disorder_new]].max() == 9
    assert table[8, [rings.RING.disorder_old, rings.RING.disorder_new]].max() == 0


@pytest.mark.parametrize("room", [None, 1])
@pytest.mark.parametrize("p", PARTITIONS)
def test_a_row_too_late_undoes_what_other_pools_did(team, room, p):
    """Other threads may have joined their rows already, or found no room and released them."""
    model = Model(10, 10, pooled=True, room=room)
    rows = [(t, t % 3, q) for t in range(30) for q in PARTITIONS]
    found, expected = model.beat(rows, rows, (25, 25), team)
    assert found == expected
    assert model.rings.pooled
    late = [(t, k % 3, q) for k, t in enumerate((31, 32, 33)) for q in PARTITIONS] + [(22, 1, p)]
    found, expected = model.beat(late, late[:-1], (40, 40), team)
    assert found == expected
    assert not model.rings.pooled
    for side in (0, 1):
        assert held(model, side) == twins(model, side)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_chain_of_two_partitions_is_walked_past_what_is_older_in_the_other(at_once):
    """The later partition's rows lie behind the earlier one's in a beat, and may be older: their
    chain, which is one, does not end at the first that is too old."""
    model = Model(5, 5, pooled=True)
    early, late = [(t, 1, 1) for t in range(100, 110)], [(t, 1, 0) for t in range(200, 210)]
    rows, probes = sorted([*early, *late]), [(205, 1, 0), (103, 1, 1)]
    if at_once:
        found, expected = model.beat(rows, probes, (NONE, NONE))
    else:
        model.beat([], rows, (NONE, NONE))
        found, expected = model.beat(probes, [])
    assert model.rings.pooled
    assert found == expected
    assert len(expected) == 10 + 9


@pytest.mark.parametrize(
    ("most", "key"), [(pool.SHORT, 0), (pooled.RECORDS_MAX, 1 << 20)], ids=["many", "few"]
)
def test_beats_too_long_leave_the_pool_and_others_come_back(team, most, key):
    """How long they may be says how many match."""
    model = Model(50, 50, pooled=True)
    model.twin.join = lambda *args: None
    for k, size in enumerate((10, 10, most // 2, most // 2 + 1, 10)):
        left = [(1000 * k, i, i % 64) for i in range(size)]
        right = [(1000 * k, i + key, i % 64) for i in range(size)]
        found, _ = model.beat(left, right, (1000 * k, 1000 * k), team)
        assert len(found) == (0 if key else size)
        assert model.rings.pooled == (2 * size <= most)


def test_pools_grow_without_losing_what_is_held(team):
    model, size = Model(10**6, 10**6, pooled=True), 400
    for k in range(12):
        rows = [(k, (k * size + i) // 2, i % 8) for i in range(size)]
        found, expected = model.beat(rows, rows[::3], workers=team)
        assert found == expected
        assert model.rings.pooled
    assert model.rings.held(0).sum() == 12 * size > POOL_MIN


def test_positions_are_numbered_anew_before_they_reach_their_limit():
    model = Model(5, 5, pooled=True)
    model.beat([(1, 1, 3)], [(1, 1, 3)])
    model.beat([], [], (2**63 - 1, 2**63 - 1))
    assert model.rings.held(0).sum() <= 1
    model.rings.spread()
    for table in model.rings.tables:
        assert table[:, rings.RING.head].max() < 10
    model = Model(5, 5, pooled=True)
    model.beat([], [])
    for table in model.rings.tables:
        table[:8, [rings.RING.tail, rings.RING.head]] = rings.POSITION_MAX - 50
    for k in range(6):
        rows = [(k, i % 5, i % 9) for i in range(90)]
        found, expected = model.beat(rows, rows)
        assert found == expected
        assert all(
            (table[:, rings.RING.head] <= rings.POSITION_MAX).all() for table in model.rings.tables
        )


def test_a_log_whose_slots_are_taken_puts_beats_to_the_last():
    model = Model(10**6, 10**6, pooled=True)
    for k in range(3 * pool.SLOTS):
        rows = [(k, k % 5, k % 64)] * (1 + 40 * (k < pool.SLOTS))
        found, expected = model.beat(rows, rows[:1])
        assert found == expected
    assert model.rings.pooled
    model.beat([], [], (10**6 + 2 * pool.SLOTS, 10**6 + 2 * pool.SLOTS))
    model.rings.spread()
    assert held(model, 0) == twins(model, 0)


def test_times_of_which_differences_overflow_are_pooled():
    model = Model(0, 0, pooled=True)
    far = [(-(2**63), 1, 1), (2**63 - 1, 1, 2)]
    model.beat(far, far)
    model.rings.spread()
    found, expected = model.beat([(2**63 - 1, 1, 2), (-(2**63), 1, 1)], [])
    assert found == expected == [(3, 0), (2, 1)]
    assert model.rings.pooled


@pytest.mark.parametrize(
    ("rows", "beat_rows", "pooled_then"),
    [
        (LONG_POOLED_MAX, pool.SHORT, True),
        (LONG_POOLED_MAX, pool.SHORT + 1, False),
        (LONG_POOLED_MAX - pool.SHORT - 1, pool.SHORT + 1, True),
    ],
)
def test_large_windows_are_pooled_for_short_beats_only(rows, beat_rows, pooled_then):
    join, part = ChainJoin(10**9, 10**9), rows // 64
    data = np.zeros((64 * part + rings.AHEAD, 2), np.int64)
    data[: 64 * part, 0] = np.tile(np.arange(part), 64)
    join.restore(0, Records(data.reshape(-1), np.full(64, part)))
    few = np.zeros(64, np.int64)
    few[5] = beat_rows
    none, bounds = np.zeros(64, np.int64), np.full(2, NONE)
    join._rings.gather(1, (0, 0), bounds, [few, none])
    assert join._rings.pooled == pooled_then
    assert join.held(0) == 64 * part


def test_windows_too_large_are_not_pooled(monkeypatch):
    monkeypatch.setattr(_rings, "SHORT_POOLED_MAX", POOL_MIN + 1000)
    model = Model(10**9, 10**9, pooled=True)
    for k in range(90):
        assert model.rings.pooled or k == 0 or k > 80
        model.beat([(k, i, i % 64) for i in range(100)], [])
    assert model.rings.held(0).sum() > 2 * POOL_MIN
    assert not model.rings.pooled


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("full", [0, 63])
def test_a_pool_that_has_no_room_beside_one_that_has(full, late):
    """What the one did is taken back, and both are joined in larger rings."""
    other = 63 - full
    with team_of(2) as workers:
        model = Model(10**6, 10**6, pooled=True)
        for k in range(3):
            few = [(k, k, other), (k, 7, full)]
            found, expected = model.beat(few, few, workers=workers)
            assert found == expected
        assert model.rings.pooled
        many = [(3 + i, i % 64, full) for i in range(POOL_MIN)]
        beside = [(-(2**61) if late else 3, 1, other), (5, 2, other)]
        found, expected = model.beat(
            sorted(many + beside), [(3, 1, other), (4, 7, full)], workers=workers
        )
        assert found == expected
        assert len(found) > POOL_MIN // 64
        found, expected = model.beat([(4, 7, full)], [(4, 1, other)], workers=workers)
        assert found == expected
        assert model.rings.pooled


def test_pools_become_as_many_as_threads_are_worth_having():
    model = Model(500, 500, pooled=True)
    with team_of(1) as one, team_of(2) as two, team_of(4) as four:
        for k, (workers, pools) in enumerate([(one, 1), (two, 2), (four, 4), (two, 2), (one, 1)]):
            for beat_number in range(3):
                now = 10 * (3 * k + beat_number)
                rows = [(now + i // 8, i % 5, PARTITIONS[i % 5]) for i in range(40)]
                found, expected = model.beat(rows, rows, workers=workers)
                assert found == expected
            assert model.rings._pools == pools


def test_pools_become_one_where_another_thread_is_not_worth_having_any_more():
    model, rows = (
        Model(500, 500, pooled=True),
        [(i // 8, i % 5, PARTITIONS[i % 5]) for i in range(40)],
    )
    with team_of(2) as workers:
        for pools in (2, 1):
            for _ in range(3):
                found, expected = model.beat(rows, rows, workers=workers)
                assert found == expected
            assert model.rings._pools == pools
            for worth in (ASLEEP_WORTH_NS, AWAKE_WORTH_NS):
                workers._memory[0, worth // 8] = 10**12


@settings(max_examples=examples(60), deadline=None)
@given(streams(), st.sampled_from([0, 2**32 - 30]))
def test_the_member_in_a_pool_answers_as_the_twin(stream, start):
    check(Pooled, stream, start)
    check_windows(Pooled, stream, start)


@settings(max_examples=examples(60), deadline=None)
@given(streams(late=True))
def test_the_member_in_a_pool_answers_as_the_twin_where_rows_are_late(stream):
    check(Pooled, stream)


@settings(max_examples=examples(40), deadline=None)
@given(streams(), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6))
def test_the_same_pairs_whatever_the_beats(stream, cuts):
    check_cuts(Pooled, stream, cuts)


@settings(max_examples=examples(40), deadline=None)
@given(streams(), st.data())
def test_windows_go_to_other_members_and_back(stream, data):
    ordered = [Pooled, *support.members("cpu", ordered=True), None]
    switch = [data.draw(st.sampled_from(ordered)) for _ in stream.beats]
    check(Pooled, stream, switch=switch)


@settings(max_examples=examples(15), deadline=None)
@given(streams(max_rows=40))
def test_with_threads(stream):
    check_threads(Pooled, stream, counts=(2,))


def test_a_beat_of_many_pairs_that_is_called_again_for_room():
    model, pool = Model(9, 9, room=1, pooled=True), Workers(2)
    for k in range(4):
        rows = [(10 * k + i // 100, i % 2, PARTITIONS[i % 5]) for i in range(500)]
        found, expected = model.beat(rows, rows, workers=pool if k % 2 else None)
        assert found == expected
        assert model.rings.pooled
    pool.close()


@pytest.mark.parametrize("base", [0, 7, 2**32 - 3])
@pytest.mark.parametrize(("rows", "window"), [(9, 12), (1, 200)])
def test_the_oldest_row_is_not_after_any_that_is_held(base, rows, window):
    """With one row a beat some share a slot."""
    run = support.Run(Pooled, window, window, base)
    for k in range(5 * window):
        part = [(k, tag_of(i, (i * 7 + k) % 64)) for i in range(rows)]
        run.beat(part, part, (k - window, k - window))
        assert run.join._rings.pooled
        stays = [n for n, (t, _) in run.windows[0].items() if t >= k - window]
        assert min(stays) - 100 <= run.base[0] <= min(stays)
    run.close()


def test_the_oldest_row_is_known_where_partitions_come_one_after_the_other():
    """Row 0 is the last in time."""
    run, rows = support.Run(Pooled, 1000, 1000, 5), [(900, tag_of(1, 1)), (100, tag_of(2, 2))]
    run.beat(rows, [])
    run.join._rings.spread()
    run.beat([], [])
    assert run.join._rings.pooled
    assert run.base[0] == 5
    assert run.live(0) == [(5, tag_of(1, 1)), (6, tag_of(2, 2))]
    run.close()


def test_what_is_dead_but_held_is_not_told():
    run = support.Run(Pooled, 10, 10)
    run.beat([(t, tag_of(t, 5)) for t in range(40)], [])
    run.beat([], [], (25, 25))
    assert run.join._rings.pooled
    assert run.join.held(0) == 40
    assert run.live(0) == [(t, tag_of(t, 5)) for t in range(25, 40)]
    run.close()


@pytest.mark.parametrize("member", [ChainJoin, Pooled])
def test_a_large_window_comes_back_whole(member):
    run, rows = (
        support.Run(member, 10**6, 10**6),
        [(i, i * 2654435761 % 2**32) for i in range(20_000)],
    )
    run.beat(rows[:1], rows[:1])
    for side in (0, 1):
        run.join.restore(side, run.records(side, rows[1:]))
        assert run.live(side) == [(i, tag) for i, (_, tag) in enumerate(rows)]
    assert run.beat([], rows[77:78]) == [(77, 20_000)]
    run.close()
