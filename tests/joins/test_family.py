"""Every member of the join family on the CPU against the naive twin, and against each other."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.joins.base import Records
from edged.operators import interval_join
from tests.joins.support import (
    LATENESS,
    MIN,
    TAGS,
    ArrayRun,
    Stream,
    answers,
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
    recut,
    sorted_pairs,
    streams,
)
from tests.operators.test_interval_join import cases, found, parse
from tests.whole import count, examples

ALL = members("cpu")
ORDERED = members("cpu", ordered=True)
every_member = pytest.mark.parametrize("member", ALL, ids=named)
every_ordered = pytest.mark.parametrize("member", ORDERED, ids=named)
every_pair = pytest.mark.parametrize(
    "pair", list(permutations(ALL, 2)), ids=lambda p: "-".join(map(named, p))
)
CUTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=9)


@every_member
@settings(max_examples=examples(80))
@given(streams())
def test_the_pairs_are_the_twins(member, stream):
    check(member, stream)


@every_member
@settings(max_examples=examples(80))
@given(streams(late=True))
def test_late_rows_meet_what_the_law_of_the_family_says(member, stream):
    check(member, stream)


@every_member
@pytest.mark.parametrize("keys", [1, 7, 40])
def test_keys_with_more_pairs_than_a_chunk_can_sort_lose_none_and_keep_the_order(member, keys):
    """40 to 600 partners a row, then few again: `chain` goes from whole chunks to single rows, and
    back."""
    many = [(i, i % keys) for i in range(600)]
    few = [(600 + i, 1000 + i % 300) for i in range(600)]
    sides = [many + few, (few + many)[::-1]]
    beats = [(sides[0], [], (MIN, MIN), (False, False)), ([], sides[1], (MIN, MIN), (False, False))]
    check(member, Stream(10_000, 10_000, beats))
    check(member, Stream(10_000, 100, beats))


@every_member
def test_late_rows_of_one_beat_meet_each_other(member):
    """Found by hypothesis: `bucket` took a row for gone that had only just come."""
    before = ([(50, 1)], [(50, 1)], (60, 60), (False, False))
    late = ([(5, 7), (6, 7)], [(5, 7)], (60, 60), (False, False))
    check(member, Stream(3, 3, [before, late, late]))


@every_member
@settings(max_examples=examples(60))
@given(streams(late=True))
def test_what_is_held_is_what_may_still_match(member, stream):
    check_windows(member, stream)


@every_member
@settings(max_examples=examples(60))
@given(streams(ends=False), CUTS)
def test_the_beats_do_not_change_the_pairs(member, stream, cuts):
    check_cuts(member, stream, cuts)


@every_member
@settings(max_examples=examples(60))
@given(extreme_streams())
def test_times_at_the_ends_of_int64_neither_overflow_nor_match_wrongly(member, stream):
    check(member, stream)


@every_member
@settings(max_examples=examples(60))
@given(streams(late=True), st.integers(0, 80))
def test_every_counter_wraps_around_unnoticed(member, stream, short):
    check(member, stream, start=2**32 - 1 - short)


@every_member
@settings(max_examples=examples(15))
@given(streams(late=True, max_rows=150), st.sampled_from([0, 2**32 - 50]))
def test_threads_do_not_change_the_pairs(member, stream, start):
    check_threads(member, stream, start=start)


@every_member
@settings(max_examples=examples(15))
@given(streams(late=True, max_rows=150), st.lists(st.integers(0, 5), max_size=9))
def test_threads_may_come_and_go_between_beats(member, stream, counts):
    pools = {count: Workers(count) for count in set(counts) - {0}}
    try:
        check(member, stream, workers=[pools.get(count) for count in counts])
    finally:
        for pool in pools.values():
            pool.close()


@every_member
@settings(max_examples=examples(50))
@given(streams(late=True), st.data())
def test_members_give_over_to_each_other_in_mid_run(member, stream, data):
    to = st.sampled_from([None, *ALL])
    switch = data.draw(st.lists(to, max_size=len(stream.beats)))
    check(member, stream, switch=switch)


@pytest.mark.parametrize(
    "pair", list(permutations(ORDERED, 2)), ids=lambda p: f"{p[0].name}-{p[1].name}"
)
@settings(max_examples=examples(60))
@given(stream=streams(late=True, max_rows=80), workers=st.sampled_from([1, 4]))
def test_ordered_members_answer_alike_to_the_last_pair(pair, stream, workers):
    pool = Workers(workers)
    try:
        assert answers(pair[0], stream) == answers(pair[1], stream, workers=pool)
    finally:
        pool.close()


@every_member
def test_times_at_the_exact_bounds_match_and_one_beyond_does_not(member):
    left, right = [(100, 5)], [(89, 5), (90, 5), (100, 5), (107, 5), (108, 5)]
    for cuts in ([], [(1, 0)], [(0, 5)], [(0, 2), (1, 2)]):
        stream = beats_of(left, right, 10, 7, cuts, 2**64)
        pairs = sorted(p for beat in answers(member, stream) for p in beat)
        assert pairs == [(0, 1), (0, 2), (0, 3)]


@every_member
def test_a_row_at_the_bound_stays_and_one_below_may_go(member):
    rows = [(5, 1), (6, 1), (7, 1)]
    stream = Stream(0, 0, [(rows, [], (6, 6), (False, False)), ([], rows, (6, 6), (False, False))])
    check(member, stream)
    check_windows(member, stream)


@every_member
def test_empty_beats_and_empty_sides(member):
    none = ([], [], (-(2**63), -(2**63)), (False, False))
    one = ([(1, TAGS[-1])], [(1, TAGS[-1])], (0, 0), (False, False))
    check(member, Stream(0, 0, [none, none, one, none, one, one]))
    check(member, Stream(5, 5, [([(i, 3)], [], (0, 0), (False, False)) for i in range(20)]))


@every_member
def test_windows_grow_while_they_run_and_shrink_again(member):
    beats = []
    for b, size in enumerate([1, 10, 100, 700, 700, 3, 0, 1, 40]):
        rows = [(1000 * b + i % 1000, TAGS[i % len(TAGS)]) for i in range(size)]
        bounds = (1000 * b - 1500,) * 2
        beats.append((rows, rows[::3], bounds, (False, False)))
    check(member, Stream(2, 3, beats))
    check_windows(member, Stream(2, 3, beats))


@every_member
def test_one_key_and_more_pairs_than_any_output_held_at_first(member):
    rows = [(i // 9, 77) for i in range(900)]
    stream = beats_of(rows, rows, 20, 11, [(450, 600), (500, 610)], 0)
    check(member, stream)
    check_threads(member, stream, (2, 5))


@every_member
@pytest.mark.parametrize("rates", [(1, 1000), (1000, 1), (64, 65), (997, 3)])
def test_unequal_rates(member, rates):
    left, right = random_arrays(1, 6000, 300, 0.05), random_arrays(2, 6000, 300, 0.05)
    run = ArrayRun(member, 90, 400)
    n = max(rates)
    slow = left if rates[0] < rates[1] else right
    few = slow[:: max(1, n // min(rates) // 4)].copy()
    few["row"] = np.arange(few.size)
    left, right = (few, right) if rates[0] < rates[1] else (left, few)
    found_pairs = run.feed(left, right, rates)
    run.close()
    assert np.array_equal(sorted_pairs(*found_pairs.T), array_pairs(left, right, 90, 400))


MILLIONS = [
    (sizes, keys, skew)
    for sizes in ((8192, 8192), (30_000, 1000))
    for keys, skew in ((2**62, 0.0), (2000, 0.02))
]


@every_member
@pytest.mark.parametrize(("sizes", "keys", "skew"), count(MILLIONS[::3], MILLIONS))
def test_a_million_rows(member, sizes, keys, skew):
    n, window = (1_000_000, 400_000) if member.ordered else (100_000, 1000)
    n = n if keys > n else n // 4
    window = window if keys > n else 3000
    left, right = (random_arrays(seed, n, keys, skew, jitter=50) for seed in (1, 2))
    if keys > n:
        right["tag"] = np.roll(left["tag"], 77)
    run = ArrayRun(member, window, 300, workers=Workers(2))
    pairs = run.feed(left, right, sizes, lateness=50)
    run.workers.close()
    run.close()
    assert pairs.shape[0] > n // 2
    assert np.array_equal(sorted_pairs(*pairs.T), array_pairs(left, right, window, 300))


@every_member
def test_memory_is_bounded_by_the_window_not_by_the_input(member):
    left, right = (random_arrays(seed, 60_000, 2**62) for seed in (1, 2))
    run = ArrayRun(member, 500, 500)
    run.feed(left[:10_000], right[:10_000], (500, 500))
    before = run.join.nbytes()
    run.feed(left[10_000:], right[10_000:], (500, 500))
    assert run.join.nbytes() <= 2 * before
    assert max(run.join.held(0), run.join.held(1)) < 20_000
    run.close()


@every_member
def test_a_side_that_meets_nobody_is_let_go_of_all_the_same(member):
    run = ArrayRun(member, 500, 500)
    rows = random_arrays(3, 60_000, 2**62)
    clock = rows[::500].copy()
    clock["tag"], clock["row"] = 5, np.arange(clock.size)
    run.feed(rows, clock, (500, 1))
    assert run.join.held(0) < 20_000
    run.close()


@every_member
@settings(max_examples=examples(60))
@given(case=cases(late=False))
def test_keys_of_every_kind_are_compared_where_their_hash_does_not_decide(member, case):
    join = operator_on(member, case.plan)
    beats = found(case.run(join))
    assert [sorted(b) for b in beats] == [sorted(b) for b in case.expected()]
    if member.ordered:
        assert beats == case.expected()


@every_ordered
@settings(max_examples=examples(40))
@given(case=cases(late=True), at=st.lists(st.sampled_from([None, *(m.name for m in ORDERED)])))
def test_a_running_operator_switches_between_kernels_byte_for_byte(member, case, at):
    class Switching(interval_join.IntervalJoin):
        beat = 0

        def run(self, *arguments):
            if self.beat < len(at) and at[self.beat] is not None:
                self.switch(at[self.beat])
                assert self.kernel == at[self.beat]
            self.beat += 1
            return super().run(*arguments)

    join = Switching(case.plan)
    join.switch(member.name)
    assert case.run(join) == case.run()


@every_ordered
@settings(max_examples=examples(40))
@given(case=cases(late=True))
def test_what_is_saved_does_not_depend_on_the_kernel(member, case):
    joins = [operator_on(m, case.plan) for m in (None, member)]
    for join in joins:
        case.run(join)
    one, other = (join.save(Scratch()) for join in joins)
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@every_ordered
def test_a_document_chooses_the_kernel_and_explain_names_it(member):
    plan = parse({"on": ["id"], "kernel": member.name})
    assert any(f"kernel {member.name} ({member.device.upper()})" in s for s in plan.describe())
    assert plan.signature() == parse({"on": ["id"]}).signature()


@pytest.mark.parametrize("name", ["chains", "nested_loop", "handshake", "base", "", "a.b", "é"])
def test_a_kernel_that_the_daemon_does_not_run_is_refused_with_the_choices(name):
    with pytest.raises(JobError, match=r"operators\.j\.kernel") as refusal:
        parse({"on": ["id"], "kernel": name})
    assert name == "" or "chain" in str(refusal.value)


@every_member
def test_recut_streams_have_the_same_rows(member):
    stream = beats_of([(1, 1)], [(1, 1), (2, 1)], 1, 1, [(0, 1)], LATENESS)
    check(member, recut(stream, [(1, 1), (1, 2)]))


@pytest.mark.parametrize(
    ("data", "counts", "why"),
    [
        (np.zeros(128, np.int32), np.zeros(64, np.int64), "int64"),
        (np.zeros(256, np.int64)[::2], np.zeros(64, np.int64), "one piece"),
        (np.zeros(128, np.int64), np.zeros(64, np.uint64), "int64"),
        (np.zeros(128, np.int64), np.zeros(63, np.int64), "63 counts"),
    ],
)
def test_records_that_a_kernel_would_read_wrongly_are_refused(data, counts, why):
    with pytest.raises(ValueError, match=why):
        Records(data, counts)
