"""Rings and chains at the kernel's own level: order, growth, renumbering, eviction, full output."""

from __future__ import annotations

import contextlib
import ctypes
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.workers import Workers
from edged.joins import _lanes
from edged.joins._lanes import cut
from edged.joins._rings import RING_MIN, Rings
from kernels.cpu import chain, chunk, probe, rings, team
from tests.eager import team_of
from tests.kernels.chain_model import Model, tag_of
from tests.naive import chain as naive
from tests.whole import examples

ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5), st.sampled_from([0, 1, 63])), max_size=60
)


WAYS = {"in vectors": 1, "one by one": 0}
TURNS_AT, ASLEEP_AT = team.SEAT_BYTES + team.TURN, team.SEAT_BYTES + team.ASLEEP
"""Where the commands to a team's first thread are counted; where it says that it sleeps."""


@pytest.fixture(scope="module", autouse=True, params=WAYS)
def way(request):
    """Chains are walked as suits the CPU; here each test runs in both ways."""
    with walking(WAYS[request.param]):
        yield request.param


@contextlib.contextmanager
def walking(kind):
    """Lanes that walk chains in one way."""

    class Lane(_lanes.Lane):
        def __init__(self, job, number):
            super().__init__(job, number)
            self.state[chunk.LANE.vectors] = kind

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_lanes, "Lane", Lane)
        yield


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, 63), st.tuples(st.integers(0, 70), st.integers(0, 70))),
    st.sampled_from([0, 2**32 - 70]),
)
def test_pointing_tells_where_records_are_and_which_partitions_lack_room(rows, start):
    table = Rings(start).tables[1]
    held, counts = np.zeros(64, np.int64), np.zeros(64, np.int64)
    for p, (old, new) in rows.items():
        held[p], counts[p] = min(old, RING_MIN), new
    table[:, rings.RING.head] += held
    last = 2**32 - 1
    room = [
        min(RING_MIN, last - int(head) + int(h))
        for head, h in zip(table[:, rings.RING.head], held, strict=True)
    ]
    assert chain.point(table, 1 << 20, counts) == naive.point(held, counts, room)
    assert table[:, rings.RING.batch_rows].tolist() == counts.tolist()
    assert (table[:, rings.RING.batch] == (1 << 20) + 16 * (counts.cumsum() - counts)).all()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(ROWS, ROWS, st.integers(0, 40)), max_size=4), st.booleans())
def test_pairs_and_their_order_are_the_twins_also_after_growth(beats, grow):
    model = Model(3, 9)
    for left, right, mark in beats:
        found, expected = model.beat(left, right, (mark, mark))
        assert found == expected
        if grow:
            model.grow()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(ROWS, ROWS), max_size=4), st.integers(0, 90))
def test_positions_are_numbered_anew_before_they_reach_their_limit(beats, short):
    model = Model(5, 5, start=rings.POSITION_MAX - 1 - short)
    for left, right in beats:
        found, expected = model.beat(left, right)
        assert found == expected
        assert all((table[:, rings.RING.head] <= 2**32 - 1).all() for table in model.rings.tables)


def test_other_threads_are_woken_only_for_work_that_is_worth_it():
    rows = [(i // 50, i % 2, i % 3) for i in range(300)]
    model, pool = Model(4, 4), Workers(2)
    turns = 0
    for asleep_us, awake_us, gap, woken in (
        (1e6, 1e6, True, False),
        (1e-3, 1e6, True, True),
        (1e6, 1e-3, True, False),
        (1e6, 1e-3, False, True),
        (1e6, 1e6, False, False),
    ):
        asleep = ctypes.c_int64.from_address(pool.seats + ASLEEP_AT)
        time.sleep(0.01 * gap)
        while gap and not asleep.value:
            time.sleep(0.01)
        for field, value_us in (
            (team.ASLEEP_WORTH_NS, asleep_us),
            (team.AWAKE_WORTH_NS, awake_us),
            (team.AWAKE_NS, 5e3 if gap else 1e7),
        ):
            ctypes.c_int64.from_address(pool.seats + field).value = int(1000 * value_us)
        found, expected = model.beat(rows, rows, workers=pool)
        assert found == expected
        before, turns = turns, ctypes.c_int64.from_address(pool.seats + TURNS_AT).value
        assert (turns > before) == woken
    pool.close()


@pytest.mark.parametrize("row_us", [0.01, 1000.0])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_full_output_is_grown_and_no_pair_is_lost_or_repeated(workers, row_us, monkeypatch):
    monkeypatch.setattr(_lanes, "ROW_US", row_us)  # by this it is cut into a few ranges, or many
    rows = [(i // 50, i % 2, i % 3) for i in range(900)]
    model = Model(4, 4)
    with team_of(workers) as team:
        found, expected = model.beat(rows, rows, workers=team)
        assert len(expected) > 20 * 1024
        assert found == expected
        again, more = model.beat(rows[:50], rows[-50:], workers=team)
    assert again == more


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=3),
    st.integers(1, 40),
    st.sampled_from([1, 2, 3]),
)
def test_wherever_the_output_is_full_the_join_goes_on_as_if_it_had_not_been(beats, room, spread):
    model = Model(20, 20, spread=spread, room=room)
    for left, right in beats:
        found, expected = model.beat([*left, *left], [*right, *right])
        assert found == expected


@pytest.mark.parametrize("spread", [1, 2])
def test_chunks_with_many_pairs_over_several_partitions(spread):
    rows = [(i // 40, i % 3, i % 5) for i in range(1500)]
    model = Model(30, 30, spread=spread, room=7)
    for part in (rows[:700], rows[700:]):
        found, expected = model.beat(part, part)
        assert found == expected


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 64]), st.integers(0, 30), st.booleans())
def test_both_ways_find_the_same_in_beats_of_hundreds(seed, partitions, jitter, late):
    rng, ways, state = np.random.default_rng(seed), [], []
    beats = [
        [
            list(zip(
                (b * 40 + rng.integers(0, 40 + jitter, n)).tolist(),
                rng.integers(0, 2**32, n).tolist() if partitions == 64 else [7] * n,
                rng.integers(0, partitions, n).tolist(), strict=True))
            for n in rng.integers(0, 900, 2)
        ]
        for b in range(4)
    ]  # fmt: skip
    start = rings.POSITION_MAX - 700 if late else 0
    for kind in WAYS.values():
        with walking(kind):
            model = Model(2, 3, start)
            model.twin.join = lambda *args: None
            marks = [(40 * b - 20, 40 * b - 20) for b in range(4)]
            ways.append([model.beat(*b, m)[0] for b, m in zip(beats, marks, strict=True)])
        fields = [
            rings.RING.tail,
            rings.RING.head,
            rings.RING.disorder_old,
            rings.RING.disorder_new,
        ]
        state.append([table[:, fields].tolist() for table in model.rings.tables])
    assert ways[0] == ways[1]
    assert state[0] == state[1]


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.sampled_from([0, 0, 3, 200]),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_records_that_share_a_walk_have_the_pairs_of_their_own_windows(seed, keys, jitter, bounds):
    rng, model = np.random.default_rng(seed), Model(*bounds)
    for first in range(0, 150, 50):
        rows = [
            [
                (first + i + int(rng.integers(0, 1 + jitter)), int(rng.integers(0, keys)), 5)
                for i in range(50)
            ]
            for _ in range(2)
        ]
        found, expected = model.beat(*rows, (first - 60, first - 60))
        assert found == expected


EXTREME = [-(2**63), -(2**63) + 9, -(2**62), -(2**61), -1, 0, 2**61 - 1, 2**61, 2**62, 2**63 - 1]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(EXTREME), st.integers(0, 2), st.just(9)), max_size=12),
        min_size=2,
        max_size=6,
    ),
    st.tuples(*[st.sampled_from([0, 9, 2**61, 2**62, 2**63 - 1])] * 2),
)
def test_times_and_bounds_that_a_difference_overflows(parts, bounds):
    model = Model(*bounds)
    for left, right in pairwise(parts):
        found, expected = model.beat(left, right)
        assert found == expected


def test_one_row_with_more_partners_than_the_output_holds():
    model = Model(10, 10)
    model.beat([], [(5, 1, 7)] * 5000)
    found, expected = model.beat([(5, 1, 7)], [])
    assert found == expected
    assert len(found) == 5000


def test_long_walks_that_match_few():
    """Tags that differ above the chains' number hang in one chain, and share no walk."""
    model, tags = Model(3, 3), [1 + (j << 18) for j in range(200)]
    model.beat([], [*[(50, tag, 7) for tag in tags * 5], *[(100, tags[0], 7)] * 700])
    for _ in range(2):
        found, expected = model.beat([(50, tag, 7) for tag in tags], [])
        assert found == expected
        assert len(found) == 5 * 200


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), max_size=12),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3)), max_size=4),
    st.integers(0, 250),
    st.sampled_from([0, 0, 7, 60]),
)
def test_a_record_whose_chain_is_full_of_other_keys(runs, probes, back, jitter):
    """Four keys whose tags end in the same twenty bits: runs of some, and a few records that walk
    alone, past them, to what is theirs."""
    model = Model(1000, back)
    keys = [kind for kind, count in runs for _ in range(count)]
    rows = [(t - t * 31 % (jitter + 1), 3 + (kind << 20), 0) for t, kind in enumerate(keys)]
    found, expected = model.beat(rows, [])
    assert found == expected == []
    for _ in range(2):
        found, expected = model.beat([], [(t, 3 + (kind << 20), 0) for t, kind in probes])
        assert found == expected


@pytest.mark.parametrize("late", [30, 500])
def test_a_record_that_walks_alone_goes_on_behind_what_came_late(late):
    """What it looks for came first, then many of another key, from before its window."""
    model, other = Model(10, 10), 3 + (1 << 20)
    found, expected = model.beat([(100, 3, 0), *[(50, other, 0)] * late], [(100, 3, 0)])
    assert found == expected == [(0, 0)]
    found, expected = model.beat([], [(100, 3, 0)])
    assert found == expected == [(0, 1)]


@pytest.mark.parametrize("spare", [9, 8, 1, 0, -1, -8])
def test_a_log_that_is_just_long_enough_and_just_not(spare):
    """Eight candidates fill the log but for `spare` matches."""
    model, keys = Model(3, 3), range(8)
    model.twin.join = lambda *args: None
    counts = [(int(probe.ROOM) - spare + key) // 8 for key in keys]
    rows = [(50, key, 7) for key in keys for _ in range(counts[key])]
    model.beat([], rows)
    numbers = {key: [i for i, (_, k, _) in enumerate(rows) if k == key][::-1] for key in keys}
    for beat in range(2):
        found, _ = model.beat([(50, key, 7) for key in keys], [])
        assert found == [(8 * beat + key, row) for key in keys for row in numbers[key]]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3]), st.sampled_from([None, 1]))
def test_chunks_one_after_the_other_have_pairs_of_their_own(seed, spread, room):
    """Several chunks a pass and several passes, with few partners each."""
    dice, model = np.random.default_rng(seed), Model(2, 30, spread=spread, room=room)
    for now in range(3):
        sides = []
        for size in dice.integers(1, 900, 2):
            parts = dice.choice([0, 1, 62], size, p=dice.dirichlet([1, 1, 1]))
            keys = dice.integers(0, 400, size)
            sides.append([(now, int(k), int(p)) for k, p in zip(keys, parts, strict=True)])
        found, expected = model.beat(*sides)
        assert found == expected


@pytest.mark.parametrize("long", [0, 1])
def test_a_log_that_is_too_short_for_one_of_two_chunks(long):
    """One chunk's candidates have more pairs than a log has room for, the other's one each."""
    model, room = Model(3, 3), int(probe.ROOM)
    many = [(50, key, long) for key in range(40) for _ in range(room // 40 + 9)]
    few = [(50, key, 1 - long) for key in range(40)]
    model.twin.join = lambda *args: None
    model.beat([], [*many, *few])
    probes = [(50, key, p) for p in (0, 1) for key in range(40)]
    for _ in range(2):
        found, _ = model.beat(probes, [])
        counts = np.bincount([left % 80 for left, _ in found], minlength=80)
        expected = [1] * 80
        expected[40 * long : 40 * long + 40] = [room // 40 + 9] * 40
        assert counts.tolist() == expected


def test_rings_grow_without_losing_what_is_live():
    model = Model(100, 100)
    for k in range(6):
        rows = [(k, i % 7, 3) for i in range(RING_MIN)]
        found, expected = model.beat(rows, rows[::2], (0, 0))
        assert found == expected
    assert model.rings.tables[0][3, rings.RING.mask] + 1 >= 6 * RING_MIN
    assert model.rings.tables[0][4, rings.RING.mask] + 1 == RING_MIN


def test_the_disorder_of_a_stray_row_is_forgotten_once_it_has_left():
    model = Model(5, 5)
    model.beat([(1000, 1, 0), (10, 1, 0)], [])
    table = model.rings.tables[0]
    assert table[0, [rings.RING.disorder_old, rings.RING.disorder_new]].max() == 990
    for now in range(2000, 2200, 10):
        model.beat([(now, 1, 0)], [], (now, now))
    assert table[0, [rings.RING.disorder_old, rings.RING.disorder_new]].max() == 0


@settings(max_examples=examples(50), deadline=None)
@given(ROWS, st.integers(0, 40), st.sampled_from([0, 2**32 - 30]))
def test_the_live_rows_and_the_oldest_of_them_are_known(rows, mark, base):
    model = Model(0, 0)
    model.rows[0] = base
    model.beat(rows, [], (mark, mark))
    n, table, held = len(rows), model.rings.tables[0], model.twin.left
    for part in held:
        part[:] = [(t, k, r - base) for t, k, r in part]
    hashes, alive = np.zeros(n, np.uint64), np.zeros(n, np.uint8)
    chain.live(table, base, hashes, alive)
    expected = naive.live(held)
    assert np.flatnonzero(alive).tolist() == sorted(expected)
    assert all(int(hashes[r]) == p << 58 | tag_of(rows[r][1], p) for r, p in expected.items())
    assert chain.oldest(table, base, n) == naive.oldest(held, n)


def test_partitions_are_cut_into_ranges_of_about_equal_work():
    even = np.full(64, 10, np.int64)
    assert cut(even, 4) == [0, 16, 32, 48, 64]
    skewed = np.zeros(64, np.int64)
    skewed[5] = 1000
    assert cut(skewed, 2) == [0, 5, 64]
    assert cut(np.zeros(64, np.int64), 4)[-1] == 64
