"""Members that let cores meet in one memory, with more threads than cores: nothing is lost or found
twice.  Some seconds by default; EDGED_STRESS_S=60 makes it a minute each."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest

from edged.data.workers import Workers
from tests.joins.support import ArrayRun, array_pairs, members, named, random_arrays, sorted_pairs

SECONDS = float(os.environ.get("EDGED_STRESS_S", "3"))
THREADS = 3 * (os.cpu_count() or 1) + 1
SHARED = [m for m in members("cpu") if m.name in ("bucket", "handshake")]


def round_of(member, seed, pool):
    """One random pair of streams: pairs that are due, lost, and found too often."""
    rng = np.random.default_rng(seed)
    keys = int(rng.choice([1, 3, 100, 5000, 2**62]))
    large = member.name == "bucket" and keys > 100
    rows = int(rng.integers(2000, 400_000 if large else 20_000))
    skew = float(rng.choice([0.0, 0.02])) if keys > 100 else 0.0
    before, after = (int(b) for b in rng.integers(0, 20 if keys <= 3 else 1500, 2))
    left, right = (random_arrays(seed + k, rows, keys, skew, jitter=20) for k in (0, 10**6))
    if keys > rows:
        right["tag"] = np.roll(left["tag"], int(rng.integers(0, 500)))
    run = ArrayRun(member, before, after, int(rng.choice([0, 2**32 - 1000])), pool)
    sizes = tuple(int(n) for n in rng.choice([1, 64, 700, 5000, 5000], 2))
    sizes = tuple(max(n, rows // (8 if large else 80)) for n in sizes)
    start = run.base[0]
    found = sorted_pairs(*(run.feed(left, right, sizes, lateness=20) - start).T)
    run.close()
    due = array_pairs(left, right, before, after)
    lost, wrong = (~held_in(found, due)).sum(), (~held_in(due, found)).sum()
    return due.size, int(lost), int((found[1:] == found[:-1]).sum()), int(wrong)


def held_in(sorted_codes, codes):
    """Which of some codes are among the sorted ones."""
    at = np.searchsorted(sorted_codes, codes)
    return np.append(sorted_codes, -1)[at] == codes


@pytest.mark.timeout(600 + 4 * int(SECONDS))
@pytest.mark.parametrize("member", SHARED, ids=named)
def test_no_pair_is_lost_or_repeated_by_more_threads_than_cores(member, capsys):
    totals, rounds, seed = np.zeros(4, np.int64), 0, int.from_bytes(os.urandom(3), "little")
    until = time.monotonic() + SECONDS
    pools = [Workers(n) for n in (2, THREADS)]
    while rounds < 2 or time.monotonic() < until:
        counts = round_of(member, seed + rounds, pools[rounds % 2])
        assert counts[1:] == (0, 0, 0), f"seed {seed + rounds}: lost, repeated, wrong {counts[1:]}"
        totals += counts
        rounds += 1
    for pool in pools:
        pool.close()
    assert totals[0] > 0
    if "EDGED_STRESS_S" in os.environ:
        due, lost, repeated, wrong = totals.tolist()
        said = f"{due} pairs due, {lost} lost, {repeated} repeated, {wrong} wrong"
        with capsys.disabled():
            sys.stdout.write(f"\n{member.name}, {THREADS} threads, {rounds} rounds: {said}\n")
