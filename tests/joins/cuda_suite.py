"""The family's properties for its members on a GPU, and the kernels against their twins.

`test_family_cuda.py` runs this file in numba's simulator, in a process of its own since that is
chosen at import; `python -m tests.joins.on_gpu` runs it on a real GPU, with more and larger cases.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edged.joins.base import Beat, load_joins
from kernels.cuda import bucket, gpu, hells, ring
from tests.joins.support import (
    MAX,
    MIN,
    TAGS,
    ArrayRun,
    Run,
    Stream,
    array_pairs,
    beats_of,
    check,
    check_cuts,
    check_threads,
    check_windows,
    extreme_streams,
    members,
    named,
    operator_on,
    random_arrays,
    sorted_pairs,
    streams,
)
from tests.naive import cuda as naive
from tests.operators.test_interval_join import cases, found
from tests.whole import count

SMALL = gpu.SIMULATED
if SMALL:
    from tests.joins import simulator

    simulator.quicken()
ALL = members("cuda")
ORDERED = members("cuda", ordered=True)
CHAIN, BUCKET = load_joins()["chain-cuda"], load_joins()["bucket-cuda"]
every_member = pytest.mark.parametrize("member", ALL, ids=named)
every_ordered = pytest.mark.parametrize("member", ORDERED, ids=named)
CUTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4)
ROWS = 24 if SMALL else 200
SLOW = {Phase.shrink, Phase.explain}


def examples(simulated, real=100):
    """How often a property is tried.  The simulator is too slow to search for a smaller failure."""
    return settings(
        max_examples=count(max(2, simulated // 2), simulated) if SMALL else real,
        phases=[phase for phase in Phase if phase not in SLOW or not SMALL],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def test_the_family_on_the_gpu_is_whole():
    assert [m.name for m in ALL] == ["bucket-cuda", "chain-cuda", "hells"]
    assert [m.name for m in ORDERED] == ["bucket-cuda", "chain-cuda"]


@every_member
@examples(8)
@given(streams(max_rows=ROWS))
def test_the_pairs_are_the_twins(member, stream):
    check(member, stream)


@every_member
@examples(8)
@given(streams(max_rows=ROWS, late=True))
def test_late_rows_meet_what_the_law_of_the_family_says(member, stream):
    check(member, stream)


@every_member
@examples(5)
@given(streams(max_rows=ROWS, late=True))
def test_what_is_held_is_what_may_still_match(member, stream):
    check_windows(member, stream)


@every_member
@examples(5)
@given(streams(max_rows=ROWS, ends=False), CUTS)
def test_the_beats_do_not_change_the_pairs(member, stream, cuts):
    check_cuts(member, stream, cuts)


@every_member
@examples(8)
@given(extreme_streams())
def test_times_at_the_ends_of_int64_neither_overflow_nor_match_wrongly(member, stream):
    check(member, stream)


@every_member
@examples(6)
@given(streams(max_rows=ROWS, late=True), st.integers(0, 30))
def test_every_counter_wraps_around_unnoticed(member, stream, short):
    check(member, stream, start=2**32 - 1 - short)


@every_member
@examples(2, 20)
@given(streams(max_rows=ROWS))
def test_threads_of_the_cpu_do_not_change_the_pairs(member, stream):
    check_threads(member, stream, (3,))


@every_member
@examples(4)
@given(streams(max_rows=ROWS, late=True), st.data())
def test_members_give_over_to_each_other_and_to_the_cpus_in_mid_run(member, stream, data):
    to = st.sampled_from([None, *ALL, *members("cpu")])
    switch = data.draw(st.lists(to, max_size=len(stream.beats)))
    check(member, stream, switch=switch)


@every_member
def test_times_at_the_exact_bounds_match_and_one_beyond_does_not(member):
    left, right = [(100, 5)], [(89, 5), (90, 5), (100, 5), (107, 5), (108, 5)]
    for cuts in ([], [(1, 0)], [(0, 5)], [(0, 2), (1, 2)]):
        check(member, beats_of(left, right, 10, 7, cuts, 2**64))


@every_member
def test_zero_windows_match_equal_times_only(member):
    rows = [(i // 3, TAGS[i % 2]) for i in range(30)]
    check(member, beats_of(rows, rows, 0, 0, [(5, 7), (20, 10)], 0))


@every_member
def test_a_row_at_the_bound_stays_and_one_below_may_go(member):
    rows = [(5, 1), (6, 1), (7, 1)]
    stream = Stream(0, 0, [(rows, [], (6, 6), (False, False)), ([], rows, (6, 6), (False, False))])
    check(member, stream)
    check_windows(member, stream)


@every_member
def test_empty_beats_and_empty_sides(member):
    none = ([], [], (MIN, MIN), (False, False))
    one = ([(1, TAGS[-1])], [(1, TAGS[-1])], (0, 0), (False, False))
    check(member, Stream(0, 0, [none, none, one, none, one, one]))
    check(member, Stream(5, 5, [([(i, 3)], [], (0, 0), (False, False)) for i in range(8)]))


@every_member
def test_windows_grow_while_they_run_and_shrink_again(member):
    beats = []
    for b, size in enumerate([1, 10, 200 if SMALL else 2000, 3, 0, 1, 40]):
        rows = [(1000 * b + i % 1000, TAGS[i % len(TAGS)]) for i in range(size)]
        beats.append((rows, rows[::3], (1000 * b - 1500,) * 2, (False, False)))
    check(member, Stream(2, 3, beats))
    check_windows(member, Stream(2, 3, beats))


@every_member
def test_one_key_and_more_pairs_than_any_output_held_at_first(member):
    rows = [(i // 9, 77) for i in range(180)]
    check(member, beats_of(rows, rows, 20, 11, [(90, 120), (110, 130)], 0))


@every_member
def test_half_of_all_rows_with_one_key(member):
    n = 240 if SMALL else 100_000
    left, right = (random_arrays(seed, n, 2**62, 0.5 if SMALL else 0.01) for seed in (1, 2))
    run = ArrayRun(member, 90, 40)
    pairs = run.feed(left, right, (n // 4, n // 5))
    run.close()
    assert np.array_equal(sorted_pairs(*pairs.T), array_pairs(left, right, 90, 40))


@every_member
@pytest.mark.parametrize("rates", [(1, 60), (60, 1), (17, 64)])
def test_unequal_rates_and_batches(member, rates):
    n = 200 if SMALL else 6000
    left, right = random_arrays(1, n, 30, 0.05), random_arrays(2, n, 30, 0.05)
    slow = 0 if rates[0] < rates[1] else 1
    few = (left, right)[slow][:: max(rates) // min(rates)].copy()
    few["row"] = np.arange(few.size)
    left, right = (right, few) if slow else (few, right)
    run = ArrayRun(member, 9, 40)
    pairs = run.feed(left, right, rates)
    run.close()
    assert np.array_equal(sorted_pairs(*pairs.T), array_pairs(left, right, 9, 40))


@every_member
def test_many_distinct_keys(member):
    n = 700 if SMALL else (1_000_000 if member.ordered else 100_000)
    left, right = (random_arrays(seed, n, 2**62, jitter=50) for seed in (1, 2))
    right["tag"] = np.roll(left["tag"], 77)
    run = ArrayRun(member, 200, 300)
    pairs = run.feed(left, right, (n // 2, n // 3), lateness=50)
    run.close()
    assert pairs.shape[0] > n // 2
    assert np.array_equal(sorted_pairs(*pairs.T), array_pairs(left, right, 200, 300))


@every_member
def test_memory_is_bounded_by_the_window_not_by_the_input(member):
    n = 480 if SMALL else 60_000
    left, right = (random_arrays(seed, n, 2**62, 0.2) for seed in (1, 2))
    run = ArrayRun(member, 30, 30)
    run.feed(left[: n // 4], right[: n // 4], (60, 60))
    before = run.join.nbytes()
    run.feed(left[n // 4 :], right[n // 4 :], (60, 60))
    assert run.join.nbytes() <= 2 * before
    assert max(run.join.held(0), run.join.held(1)) < 20_000
    run.close()


@every_member
@examples(5, 60)
@given(case=cases(late=False))
def test_keys_of_every_kind_are_compared_where_their_hash_does_not_decide(member, case):
    join = operator_on(member, case.plan)
    beats = found(case.run(join))
    assert [sorted(b) for b in beats] == [sorted(b) for b in case.expected()]
    if member.ordered:
        assert beats == case.expected()


# The kernels against their twins


PARTITIONED = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([0, 1, 2, 64, 65, 2**26, 2**32 - 1])),
    min_size=1,
    max_size=60,
)


def entries(join, side):
    """Every partition's live entries, as the twins have them."""
    tables, rings = join._tables.copy_to_host(), join._ring.copy_to_host()
    rows, links = join._rows.copy_to_host(), rings.view(np.uint32)
    out = []
    for table in tables[side]:
        positions = range(int(table[ring.RING.tail]), int(table[ring.RING.head]))
        slots = [int(table[ring.RING.first]) + (q & int(table[ring.RING.mask])) for q in positions]
        out.append(
            [
                (q, int(rings[2 * s]), int(links[4 * s + 2]), int(rows[s]))
                for q, s in zip(positions, slots, strict=True)
            ]
        )
    return out


def chain_from(join, table, bucket_of, links):
    """A chain's live positions, from its head on."""
    position, out = int(join._heads.copy_to_host()[bucket_of]), []
    while position >= table[ring.RING.tail]:
        out.append(position)
        slot = int(table[ring.RING.first]) + (position & int(table[ring.RING.mask]))
        position = int(links[4 * slot + 3])
    return out


def queue_of(join, place):
    """A bucket's positions, oldest first."""
    low, high = int(join._lows.copy_to_host()[place]), int(join._highs.copy_to_host()[place])
    older, chunks = join._older.copy_to_host(), join._chunks.copy_to_host()
    chunk, out = int(join._newest.copy_to_host()[place]), []
    for at in range(high - 1, low - 1, -1):
        out.append(int(chunks[128 * chunk + 64 + (at & 63)]))
        if at & 63 == 0:
            chunk = int(older[chunk])
    return out[::-1]


@examples(6)
@given(PARTITIONED, PARTITIONED, st.sampled_from([0, 5]))
def test_a_batch_is_loaded_and_hung_into_chains_newest_first(old, new, start):
    run = Run(CHAIN, 0, 0, start)
    run.beat(old, [])
    heads = run.join._report.host[0, :, 1].tolist()
    before = entries(run.join, 0)
    run.beat(new, [])
    batch = sorted(
        ((t, tag, start + len(old) + i) for i, (t, tag) in enumerate(new)), key=lambda r: r[1] >> 26
    )
    counts = np.bincount([tag >> 26 for _, tag, _ in batch], minlength=64).tolist()
    _, froms = naive.begin(counts, heads)
    rings = [a + b for a, b in zip(before, naive.load(batch, counts, froms), strict=True)]
    assert entries(run.join, 0) == rings
    links = run.join._ring.copy_to_host().view(np.uint32)
    for p, table in enumerate(run.join._tables.copy_to_host()[0]):
        for chain, positions in naive.link(rings[p], int(table[ring.RING.index_mask])).items():
            place = int(table[ring.RING.index_at]) + chain
            assert chain_from(run.join, table, place, links) == positions
        if rings[p]:
            newest, fall = naive.advance([entry[1] for entry in rings[p]])
            assert max(table[[ring.RING.newest_old, ring.RING.newest_new]]) == newest
            assert max(table[[ring.RING.disorder_old, ring.RING.disorder_new]]) >= fall
    run.close()


@examples(6)
@given(st.lists(st.tuples(PARTITIONED, st.integers(0, 30)), min_size=1, max_size=4))
def test_rings_let_go_of_the_oldest_and_tell_what_they_hold(beats):
    run, bound = Run(CHAIN, 0, 0), MIN
    for rows, mark in beats:
        before = entries(run.join, 0)
        bound = max(bound, mark)
        run.beat(rows, [], (bound, MIN))
        after = entries(run.join, 0)
        for p, held in enumerate(after):
            new = [e for e in held if e not in before[p]]
            assert held == naive.evict(before[p], bound, False)[: len(held) - len(new)] + new
            assert not held or held[0][1] >= bound
        known = naive.export(after, 0)
        assert run.live(0) == sorted((row, tag) for row, (_, tag) in known.items())
        assert run.join.held(0) == len(known)
    held = [naive.move(part) for part in entries(run.join, 0)]
    run.join._rebuild(2 * run.join._sizes)
    assert [naive.move(part) for part in entries(run.join, 0)] == held
    assert all(part[0][0] == 1 for part in entries(run.join, 0) if part)
    run.beat([], [], (MAX, MAX), (True, True))
    assert run.join.held(0) == 0
    run.close()


@examples(4)
@given(PARTITIONED, PARTITIONED, st.sampled_from([(0, 0), (3, 9)]))
def test_matches_are_counted_summed_and_numbered(left, right, spans):
    run = Run(CHAIN, *spans)
    run.beat([], right)
    join, rings = run.join, entries(run.join, 1)
    records = [run.records(side, rows) for side, rows in enumerate((left, []))]
    join._push(*records)
    join._count(0, len(left), *spans)
    probing = [[r for r in left if r[1] >> 26 == p] for p in range(64)]
    counts = [naive.count(part, rings[p], *spans) for p, part in enumerate(probing)]
    assert join._found.copy_to_host()[: len(left)].tolist() == [c for part in counts for c in part]
    assert join._count_pairs() == sum(naive.totals(counts))
    assert join._sums.copy_to_host().tolist() == naive.totals(counts)
    assert join._found.copy_to_host()[: len(left) + 1].tolist() == naive.offsets(counts)
    run.close()


@examples(5)
@given(st.lists(st.tuples(PARTITIONED, st.integers(0, 30)), min_size=1, max_size=3))
def test_buckets_are_queues_of_positions_and_no_chunk_is_lost_or_shared(beats):
    run, bound = Run(BUCKET, 0, 0), MIN
    for rows, mark in beats:
        bound = max(bound, mark)
        run.beat(rows * 4, [], (bound, MIN))
        held, used = entries(run.join, 0), 0
        for p, table in enumerate(run.join._tables.copy_to_host()[0]):
            built = naive.build(held[p], int(table[ring.RING.index_mask]))
            for b in range(int(table[ring.RING.index_mask]) + 1):
                place = int(table[ring.RING.index_at]) + b
                queue = queue_of(run.join, place)
                low, high = (
                    int(a.copy_to_host()[place]) for a in (run.join._lows, run.join._highs)
                )
                used += -(-high // 64) - low // 64
                live = naive.cleanup({b: queue}, int(table[ring.RING.tail]))[b]
                assert live == built.get(b, [])
                assert all(a < c for a, c in pairwise(queue))
        free = run.join._free.copy_to_host()
        count = int(run.join._free_count.copy_to_host()[0])
        marked = run.join._marks.copy_to_host().any()
        assert [count, 0] == run.join._told.host.tolist() == naive.tell(free[:count], marked)
        assert count + used == free.size
        assert len(set(free[:count].tolist())) == count
    run.close()


def test_a_bucket_of_gone_rows_is_marked_by_a_probe_and_cleaned():
    run = Run(BUCKET, 5, 5)
    run.beat([(i, 7) for i in range(200)], [])
    pool = run.join._free.size
    used = pool - int(run.join._told.host[0])
    run.beat([(1000, 7)], [], (900, MIN))
    assert pool - int(run.join._told.host[0]) == used
    run.beat([], [(1000, 7)], (900, MIN))
    assert pool - int(run.join._told.host[0]) < used
    assert not run.join._marks.copy_to_host().any()
    run.close()


def test_cleaning_runs_only_where_a_bucket_was_marked(monkeypatch):
    run, cleaned = Run(BUCKET, 5, 5), []
    cleanup = bucket.cleanup

    class Counted:
        def __getitem__(self, shape):
            def launch(*arguments):
                cleaned.append(arguments[0])
                cleanup[shape](*arguments)

            return launch

    monkeypatch.setattr(bucket, "cleanup", Counted())
    run.beat([(i, 7) for i in range(200)], [])
    run.beat([(1000, 7)], [], (900, MIN))
    assert cleaned == []
    run.beat([], [(1000, 7)], (900, MIN))
    assert cleaned == [0, 1]
    run.beat([(1001, 7)], [(1001, 7)], (900, 900))
    assert cleaned == [0, 1]
    run.close()


def test_a_bucket_that_nobody_probes_gives_its_chunks_back_all_the_same():
    run, used = Run(BUCKET, 5, 5), []
    for beat in range(12):
        run.beat([(100 * beat + i, 7) for i in range(70)], [], (100 * beat, MIN))
        used.append(run.join._free.size - int(run.join._told.host[0]))
    assert max(used[2:]) <= 4
    run.close()


@examples(8)
@given(st.data())
def test_the_bitmap_says_which_entries_match(data):
    row = st.tuples(st.integers(0, 12), st.sampled_from([3, 2**32 + 3, 2**37]))
    records = data.draw(st.lists(row, min_size=1, max_size=12))
    window = data.draw(st.lists(row, min_size=1, max_size=150))
    from edged.joins.hells import GRID_MAX, THREADS, Mapped
    from kernels.cuda.gpu import cuda

    words = -(-len(window) // 32)
    arrays = [Mapped(2 * len(rows) + 3, np.int64) for rows in (records, records, window, window)]
    for array, rows, column in zip(
        arrays, (records, records, window, window), (0, 1, 0, 1), strict=True
    ):
        array.host[3 : 3 + len(rows)] = [r[column] for r in rows]
    bits = Mapped(len(records) * words, np.uint32)
    times, keys, window_times, window_keys = (array.device for array in arrays)
    hells.predicate[GRID_MAX, THREADS](
        times, keys, 3, len(records), window_times, window_keys, 3, len(window), 2, 4, bits.device
    )
    cuda.synchronize()
    said = bits.host.reshape(len(records), words)
    set_bits = [
        [e for e in range(len(window)) if int(said_of[e // 32]) >> (e % 32) & 1] for said_of in said
    ]
    assert set_bits == naive.predicate(records, window, 2, 4)


def test_a_small_bitmap_means_more_parts_and_the_same_pairs(monkeypatch):
    monkeypatch.setattr("edged.joins.hells.BITMAP_BYTES", 64)
    rows = [(i // 9, TAGS[i % 3]) for i in range(150)]
    check(load_joins()["hells"], beats_of(rows, rows, 3, 2, [(50, 90), (70, 91)], 0))


def test_records_that_are_not_in_the_members_buffer_are_copied_there():
    for member in ORDERED:
        run = Run(member, 5, 5)
        run.beat([], [(1, 7), (2, 7)])
        records = [run.records(side, rows) for side, rows in enumerate(([(1, 7)], []))]
        elsewhere = [type(r)(r.data.copy(), r.counts) for r in records]
        left, right = run.join.join(*elsewhere, Beat((0, 0), (MIN, MIN)), None)
        assert (left.tolist(), right.tolist()) == ([0, 0], [1, 0])
        run.close()


def test_worst_cases_of_chunks():
    assert bucket.chunks_at_most(0, 100) == 0
    assert bucket.chunks_at_most(1, 100) == 1
    assert bucket.chunks_at_most(6400, 10) == 110
