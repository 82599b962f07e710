"""`edged bench join`: every row is checked, the check can fail, and the floor has a footprint."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.bench import join
from edged.bench.join_pages import measure_pages
from edged.bench.join_peers import measure_peer
from edged.bench.join_report import aims
from edged.calibration.join_data import (
    KEYS,
    PERIOD_MIN,
    BeatFeed,
    PairDigest,
    Pool,
    Products,
    draw,
    expected,
    zipf,
)
from edged.calibration.join_measure import MemberDriver, OperatorDriver, check, measure
from edged.calibration.join_roofline import Effort, Floor, Limit
from edged.joins.base import load_joins
from edged.joins.chain import ChainJoin
from kernels.cpu import roofline
from tests.whole import count

KEYS_OF_A_ROW = {
    "kernel", "device", "window", "batch", "threads", "match_rate", "keys", "tuples_per_s",
    "cpu_s_per_mtuple", "state_bytes_per_tuple", "exact", "fraction_of_limit",
}  # fmt: skip
QUICK = Effort(0.005, 1)
HOST = [member for member in load_joins().values() if member.device == "cpu"]


def small(window=500, rate=2.0, keys="uniform", batch=300):
    """A feed for a small window."""
    return BeatFeed(draw(window, rate, keys, (batch,)), batch)


@pytest.mark.whole
def test_a_quick_run_has_every_figure_and_every_row_is_exact(tmp_path):
    path, plot = tmp_path / "join.json", tmp_path / "join.png"
    command = [sys.executable, "-m", "edged", "bench", "join", "--quick", "--operator"]
    done = subprocess.run(
        [*command, "--json", path, "--plot", plot], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert {r["kernel"] for r in rows} == {m.name for m in HOST} | {"gather+pages"}
    assert {(r["keys"], r["threads"]) for r in rows if r["kernel"] == "chain"} == {
        (keys, threads) for keys in KEYS for threads in (1, 2)
    }
    for row in rows:
        assert set(row) >= KEYS_OF_A_ROW
        assert row["exact"] is True
        assert row["tuples_per_s"] > 0
        if row["kernel"] != "gather+pages":
            assert row["fraction_of_limit"] > 0
            assert row["matches_per_tuple"] == pytest.approx(1.0, rel=0.5)
    assert all(r["operator_tuples_per_s"] for r in rows if r["kernel"] in ("chain", "bucket"))
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "exact" in done.stderr


class Forgetful(ChainJoin):
    """Drops one pair of each beat."""

    def join(self, left, right, beat, workers):
        """All pairs but the last."""
        found = super().join(left, right, beat, workers)
        return found[0][:-1], found[1][:-1]


class Confused(ChainJoin):
    """Gives one pair another partner."""

    def join(self, left, right, beat, workers):
        """The pairs, one of them wrong."""
        found = super().join(left, right, beat, workers)
        found[1][-1] += 1
        return found


@pytest.mark.parametrize("member", [Forgetful, Confused])
def test_the_check_fails_when_a_pair_is_dropped_or_changed(member):
    assert measure(lambda: MemberDriver(ChainJoin, small(), 1), QUICK)["exact"]
    assert not measure(lambda: MemberDriver(member, small(), 1), QUICK)["exact"]


@pytest.mark.parametrize("batch", count([300], [50, 300, 2000]))
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("member", HOST, ids=lambda m: m.name)
def test_members_are_exact_whatever_the_batch(member, keys, batch):
    driver = MemberDriver(member, small(batch=batch, keys=keys), 1)
    assert check(driver, 3)
    driver.close()


class Elsewhere(ChainJoin):
    """Stands for a member that reads its records in memory of its own."""

    device = "elsewhere"

    def join(self, left, right, beat, workers):
        """Refuses records that lie anywhere else."""
        for side, records in enumerate((left, right)):
            assert records.data is self.buffer(side, records.rows)
        return super().join(left, right, beat, workers)


def test_members_with_memory_of_their_own_get_the_records_there():
    figures = measure(lambda: MemberDriver(Elsewhere, small(), 1), QUICK)
    assert figures["exact"]


def test_the_operator_is_checked_as_well():
    driver = OperatorDriver("chain", small(), 2)
    assert check(driver, 5)
    driver.close()


def test_periods_follow_each_other_without_a_gap():
    feed = small(window=100, batch=PERIOD_MIN // 2)
    driver = MemberDriver(ChainJoin, feed, 1)
    assert feed.beats == 2
    first = feed.start
    assert check(driver, 5)
    assert feed.start == first + 5 * feed.batch
    assert check(driver, 2)
    driver.close()


def pool_of(left, right, window):
    """A pool of given keys."""
    keys = np.array(left, np.int32), np.array(right, np.int32)
    none = np.zeros(len(left), np.uint64)
    return Pool(window, 1.0, keys, (none, none))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([PairDigest, Products]),
)
def test_the_independent_join_finds_what_two_loops_find(keys, window, start, rows, kind):
    pool = pool_of(*zip(*keys, strict=True), window)
    stop, n = start + rows, len(keys)
    pairs = [
        (i, j)
        for i in range(stop)
        for j in range(stop)
        if keys[i % n][0] == keys[j % n][1] and abs(i - j) <= window and max(i, j) >= start
    ]
    wanted = kind()
    wanted.add(*np.array(pairs, np.int64).reshape(-1, 2).T)
    assert expected(pool, start, stop, kind()) == wanted


def test_zipf_keys_fall_off_as_they_should():
    keys = zipf(np.linspace(0, 1, 200_001)[:-1], 1000)
    counts = np.bincount(keys, minlength=1000)
    assert counts.size == 1000
    assert counts[0] > counts[1] > counts[9] > counts[99] > counts[999] > 0
    assert counts[9] / counts[99] == pytest.approx((100 / 10) ** 1.1, rel=0.1)


@pytest.mark.parametrize(
    ("keys", "rate"),
    [
        ("uniform", 0.005),
        ("uniform", 1.0),
        ("uniform", 10.0),
        ("zipf", 1.0),
        ("zipf", 10.0),
        ("one", 1.0),
        ("one", 10.0),
    ],
)
def test_a_tuple_finds_as_many_partners_as_the_rate_says(rate, keys):
    pool = draw(20_000, rate, keys, (1000,))
    found = expected(pool, pool.period, pool.period + 50_000).pairs
    assert found / 100_000 == pytest.approx(rate, rel=0.25)


def test_a_longer_period_begins_like_a_shorter_one():
    short, long = draw(1000, 1.0, "zipf", (100,)), draw(1000, 1.0, "zipf", (PERIOD_MIN + 1,))
    assert long.period > short.period
    for side in (0, 1):
        assert np.array_equal(long.keys[side][: short.period], short.keys[side])


def test_the_floor_has_the_windows_footprint_and_matches():
    feed = small(window=64_000, batch=1000)
    at_work = Floor(feed, 1, 2.0)
    rings, heads = at_work._memory[1:], at_work._memory[0]
    for ring in rings:
        assert ring.nbytes == pytest.approx(20 * 65_000, rel=0.01)
    assert heads.nbytes == pytest.approx(32 * 65_000, rel=0.1)
    at_work.section(8, 0.0)
    tuples = 2 * 1000 * min(feed.beats, 2**20 // 2000)
    assert int(at_work._lanes[:, roofline.LANE.matches].sum()) == pytest.approx(2 * tuples, abs=1)
    at_work.close()


@pytest.mark.parametrize("keys", KEYS)
def test_the_floor_runs_with_every_distance_and_number_of_threads(keys):
    for threads in (1, 2):
        limit = Limit(small(keys=keys), threads, 0.5, QUICK)
        turn = limit.turn()
        limit.close()
        assert turn.tuples_per_s > 0
        assert turn.apart_tuples_per_s > 0
        assert limit.ahead in (0, 8, 16, 32, 64)


@pytest.mark.parametrize("keys", KEYS)
def test_duckdb_and_the_independent_join_agree(keys):
    figures = measure_peer("duckdb", 1000, 1.0, keys, 2, 1)
    assert figures["exact"]
    assert figures["batch"] == 100_000


def test_pages_hold_the_rows_that_were_gathered():
    figures = measure_pages(1000, 0.01, 1)
    assert figures["exact"]
    assert figures["sealed_matches_per_s"] > 0


def test_slow_members_are_left_out_and_said_to_be():
    plan = join.Plan(join.Grid(windows=(10**7,)), QUICK)
    bench = join.Bench(plan, load_joins())
    assert {c.kernel for c in bench.configurations} >= {"chain"}
    assert not {c.kernel for c in bench.configurations} & {"nested_loop", "handshake"}
    assert any("nested_loop at window 10,000,000" in line for line in bench.left_out)


def test_the_default_star_and_crossed_options():
    kernels = ["bucket", "chain"]
    star = join.Grid().configurations(kernels, full=False)
    assert {c.batch for c in star if c.kernel == "bucket"} == {10_000}
    assert {c.batch for c in star if c.kernel == "chain"} == {1_000, 10_000, 100_000}
    assert {(c.match_rate, c.keys) for c in star} == {
        (0.005, "uniform"), (1.0, "uniform"), (10.0, "uniform"), (0.005, "zipf"),
        (0.005, "one"),
    }  # fmt: skip
    crossed = join.Grid(("chain",), (7, 8), (3,), (1,), (1.0, 2.0), ("zipf",))
    assert len(crossed.configurations(kernels, full=False)) == 4
    full = join.Grid().configurations(kernels, full=True)
    assert len(full) == 2 * 4 * 3 * 2 * 3 * 3


def row(**more):
    """A row of the benchmark."""
    return {
        "kernel": "chain", "window": 10**6, "batch": 10_000, "threads": 1, "match_rate": 0.005,
        "keys": "uniform", "tuples_per_s": 60e6, "fraction_of_limit": 0.8,
        "floor_apart_tuples_per_s": 100e6, **more,
    }  # fmt: skip


def test_aims_compare_rows_of_the_same_configuration():
    rows = [
        row(),
        row(batch=1000, tuples_per_s=40e6, fraction_of_limit=0.6),
        row(threads=2, tuples_per_s=120e6, floor_apart_tuples_per_s=130e6),
        row(kernel="bucket", tuples_per_s=3e6),
        row(kernel="duckdb", batch=0, tuples_per_s=30e6),
    ]
    found = {a["aim"]: (a["worst"], a["best"], a["met"]) for a in aims(rows)}
    assert found["chain, window 1,000,000, a core: M tuples/s"] == (40.0, 60.0, False)
    assert found["chain: fraction of the limit"] == (0.6, 0.8, False)
    assert found["chain, 2 threads against 1, from 10^6 on"] == (2.0, 2.0, True)
    name = "the roofline, 2 independent threads, from 10^6 on"
    assert found[name] == (1.3, 1.3, False)
    assert found["chain against bucket, a core, from 10^6 on"] == (20.0, 20.0, True)
    assert found["chain against DuckDB's batch join"][:2] == pytest.approx((40 / 30, 2.0))


def test_an_unknown_kernel_is_refused_with_the_names_of_all():
    done = CliRunner().invoke(join.command, ["--kernel", "magic"])
    assert done.exit_code == 2
    assert all(member.name in done.output for member in HOST)
