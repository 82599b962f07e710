"""A team of threads: every task runs once, whatever threads sleep; a long wait ends in sleep."""

from __future__ import annotations

import time
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.workers import PATIENCE_US, Workers
from kernels.cpu import team
from kernels.registry import task
from tests.naive import team as naive
from tests.whole import examples

FACTOR, MORE = 6364136223846793005, 1442695040888963407


@task(reference="tests.kernels.test_team.plainly")
def step_often(n: int) -> int:
    """n steps of a linear congruential generator: no compiler makes them fewer."""
    x = np.int64(1)
    for _ in range(n):
        x = x * np.int64(FACTOR) + np.int64(MORE)
    return x


def plainly(n):
    """The same by doubling: a step is x -> a x + b, and so are two."""
    x, a, b = 1, FACTOR, MORE
    while n:
        if n & 1:
            x = a * x + b
        a, b, n = a * a % 2**64, (a * b + b) % 2**64, n >> 1
    return (x + 2**63) % 2**64 - 2**63


@numba.njit("int64(int64, int64, int64)")
def begins(size, threads, k):
    return team.share(size, threads, k)


LONG = 20_000_000
POOLS = {count: Workers(count) for count in (1, 2, 3, 5)}


def done(pool, arguments):
    """The table of calls, with one for each argument, when all are done."""
    calls = np.zeros((len(arguments), team.CALL_FIELDS), np.int64)
    calls[:, team.CALL.function], calls[:, team.CALL.argument] = step_often.address, arguments
    pool.compute(calls)
    assert (calls[:, team.CALL.began_ns] <= calls[:, team.CALL.ended_ns]).all()
    return calls


def do(pool, arguments):
    return done(pool, arguments)[:, team.CALL.result].tolist()


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(sorted(POOLS)).flatmap(
        lambda count: st.tuples(
            st.just(count), st.lists(st.integers(0, 5000), min_size=1, max_size=40)
        )
    )
)
def test_each_task_is_done_with_its_own_argument(case):
    count, arguments = case
    assert do(POOLS[count], arguments) == naive.run([(plainly, n) for n in arguments])


@pytest.mark.parametrize("count", sorted(POOLS))
def test_tasks_and_python_calls_in_turn_lose_nothing(count):
    pool, rng = POOLS[count], np.random.default_rng(count)
    for turn in range(2000):
        arguments = rng.integers(0, 300, count).tolist()
        assert do(pool, arguments) == [plainly(n) for n in arguments]
        if turn % 3 == 0:
            assert pool.run([lambda n=n: plainly(n) for n in arguments]) == [
                plainly(n) for n in arguments
            ]


@pytest.mark.parametrize("pause_s", [0.0001, 0.00015, 0.0002, 0.003])
def test_threads_that_fall_asleep_or_are_about_to_are_woken(pause_s):
    for turn in range(300):
        time.sleep(pause_s)
        assert do(POOLS[3], [turn, 7, turn]) == [plainly(turn), plainly(7), plainly(turn)]


def test_who_leads_waits_for_long_tasks_too():
    pool, long = POOLS[3], LONG
    for arguments in ([1, long, 1], [1, 1, long], [1, long, long]):
        assert do(pool, arguments) == [plainly(n) for n in arguments]
    assert pool.run([lambda: do(POOLS[2], [long, 1]), lambda: 5]) == [
        [plainly(long), plainly(1)],
        5,
    ]


def test_a_team_without_work_uses_no_cpu_and_never_wakes():
    pool = Workers(4)
    assert do(pool, [5] * 4) == [plainly(5)] * 4
    time.sleep(0.1)
    before = [spent(tid) for tid in pool.tasks()]
    assert all(int(times) > 0 for _, times in before)
    time.sleep(0.5)
    assert [spent(tid) for tid in pool.tasks()] == before
    pool.close()


def spent(tid):
    """A thread's CPU time (ns) and how often it ran."""
    return Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[::2]


@pytest.mark.parametrize("rest_s", [0.0, 0.02])
def test_a_team_ends_at_once_awake_or_asleep(rest_s):
    pool = Workers(3)
    do(pool, [3, 3, 3])
    time.sleep(rest_s)
    pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_long_task_outlasts_patience():
    calls = done(POOLS[1], [LONG])
    assert calls[0, team.CALL.ended_ns] - calls[0, team.CALL.began_ns] > 2e3 * PATIENCE_US


def test_while_one_has_a_long_task_others_do_the_rest():
    ended = []
    for _ in range(50):  # a busy machine may let no other thread run meanwhile
        ended = done(POOLS[2], [LONG, *[1000] * 200])[:, team.CALL.ended_ns]
        if ended[1:].max() < ended[0]:
            break
    assert ended[1:].max() < ended[0]


@given(st.integers(0, 2**40), st.integers(1, 64))
def test_work_is_cut_into_shares_that_halve(size, threads):
    calls = team.SHARES * threads if threads > 1 else 1
    edges = [int(begins(size, threads, k)) for k in range(calls + 1)]
    assert edges[0] == 0
    assert edges[-1] == size
    sizes = np.diff(edges)
    assert (sizes >= 0).all()
    if threads > 1:
        rounds = [sizes[k * threads : (k + 1) * threads] for k in range(team.SHARES)]
        for found, part in zip(rounds, (4, 2, 1, 1), strict=True):
            assert np.abs(found - size * part / (8 * threads)).max() <= 1


def test_a_python_call_that_fails_is_told_and_the_team_goes_on():
    def fail():
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        POOLS[2].run([lambda: 1, fail])
    assert do(POOLS[2], [4, 5]) == [plainly(4), plainly(5)]
