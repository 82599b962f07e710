"""`edged bench shuffle`: its contract, its check against the naive partitioner, and its aims."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from edged.bench import shuffle, shuffle_contention, shuffle_grid, shuffle_measure
from edged.bench.shuffle_check import digests, expected, found, is_exact
from edged.bench.shuffle_grid import TUPLEWISE, ShuffleCell, chosen_part, whole_grid
from edged.bench.shuffle_report import shuffle_aims
from edged.pages.shuffle import MEMBERS, GeneratedInput, Shuffle, ShufflePlan
from edged.pages.shuffle_choice import chosen
from tests.naive.shuffle import partitioned

CONTRACT = {
    "member", "layout", "threads", "partitions", "tuple_bytes", "page_bytes", "buffer_bytes",
    "keys", "tuples_per_s", "gb_per_s", "fraction_of_memcpy", "ms_p99", "memory_ratio",
    "pages_ratio", "exact",
}  # fmt: skip


@pytest.mark.whole
def test_a_quick_run_keeps_the_contract_and_every_row_is_exact(tmp_path):
    path, plot = tmp_path / "shuffle.json", tmp_path / "shuffle.png"
    done = CliRunner().invoke(
        shuffle.command, ["--quick", "--json", str(path), "--plot", str(plot)]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    assert [r["member"] for r in result["rows"]] == list(MEMBERS)
    for r in result["rows"]:
        assert set(r) >= CONTRACT
        assert r["exact"] is True
        assert r["tuples_per_s"] > 0
        assert r["memory_ratio"] >= 1
        assert r["pages_ratio"] >= 1
        assert (r["buffer_bytes"] == 0) == (r["member"] in TUPLEWISE)
    for a in result["ablations"]:
        assert set(a) == {"name", "tuples_per_s_with", "tuples_per_s_without"}
    assert {"padding", "minimal locking", "two-step write", "batch insert", "mask"} <= {
        a["name"] for a in result["ablations"]
    }
    assert 0 < result["chosen"]["worst_fraction_of_best"] <= 1
    assert result["peers"] == []
    assert plot.stat().st_size > 10_000


def test_rows_of_the_members_that_jobs_use_keep_the_contract_and_are_exact():
    used = {chosen(cell.partitions, cell.tuple_bytes, 1) for _, cell in shuffle_grid.smoke()}
    pairs = [pair for pair in shuffle_grid.smoke() if pair[0] in used]
    rows, left_out = shuffle.ShuffleBench(pairs, shuffle_measure.SMOKE)._rows(lambda _: None)
    assert rows and not left_out
    for r in rows:
        assert set(r) >= CONTRACT and r["exact"] is True and r["tuples_per_s"] > 0


def test_contention_is_measured_on_powers_of_two_up_to_all_cores(tmp_path, monkeypatch):
    path, plot = tmp_path / "contention.json", tmp_path / "contention.png"
    monkeypatch.setattr(shuffle_contention.os, "cpu_count", lambda: 5)
    monkeypatch.setattr(shuffle_contention, "PARTITIONS", (16,))
    monkeypatch.setattr(shuffle_contention, "SECONDS", 0.0)
    for name, value in (("_THREAD_BYTES", 1 << 16), ("_SINGLE_TUPLES", 500), ("_POOL_BYTES", 1)):
        monkeypatch.setattr(shuffle_contention, name, value)
    done = CliRunner().invoke(
        shuffle.command, ["--part", "contention", "--json", str(path), "--plot", str(plot)]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    assert result["left_out"] == []
    places = [(r["member"], r["threads"], r["tuple_bytes"], r["keys"]) for r in result["rows"]]
    assert len(places) == len(set(places)) == 12 * 3 * 2 * 2
    assert {r["threads"] for r in result["rows"]} == {1, 2, 4}
    assert all(r["exact"] and r["tuples_per_s"] > 0 for r in result["rows"])
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    "source",
    [
        GeneratedInput(300, 21),
        GeneratedInput(300, 4, layout="dense"),
        GeneratedInput(300, 0, (0, 37)),
        GeneratedInput(300, 16, zipf=1.0),
    ],
)
def test_the_check_expects_what_the_naive_partitioner_finds(source):
    naive = partitioned(source, 7, "hash", source.key_table())
    rows = [(p, row) for p, counter in enumerate(naive) for _, row in counter.elements()]
    lengths = np.array([len(row) for _, row in rows])
    matrix = np.zeros((len(rows), lengths.max()), np.uint8)
    for line, (_, row) in zip(matrix, rows, strict=True):
        line[: len(row)] = np.frombuffer(row, np.uint8)
    pairs = sorted(zip((p for p, _ in rows), digests(matrix, lengths).tolist(), strict=True))
    assert expected(source, 7).tolist() == [list(pair) for pair in pairs]


def test_the_check_can_fail():
    plan, source = ShufflePlan("ranges", 4, page_bytes=4096), GeneratedInput(500, 21)
    assert is_exact(plan, source)
    run = Shuffle(plan, source).run()
    page = next(run.handed())
    page.raw[-1] ^= 1
    assert not np.array_equal(found(run, source), expected(source, 4))
    assert not np.array_equal(expected(source, 4), expected(GeneratedInput(499, 21), 4))


def test_the_grids_cover_the_dimensions():
    part, grid = chosen_part(), whole_grid()
    assert {m for m, _ in part} == {m for m, _ in grid} == set(MEMBERS)
    assert len(set(grid)) == len(grid) > 10_000
    for name in ("threads", "partitions", "tuple_bytes", "page_bytes", "keys", "layout",
                 "buffer_bytes", "morsel", "units"):  # fmt: skip
        every = {getattr(c, name) for _, c in grid}
        assert {getattr(c, name) for _, c in part} == every
    assert not any(c.layout == "dense" and not c.tuple_bytes for _, c in grid)


def row(**more):
    cell = ShuffleCell()
    return {
        "member": "merge", "threads": cell.threads, "partitions": 64, "tuple_bytes": 64,
        "page_bytes": cell.page_bytes, "keys": "uniform", "layout": "slotted", "asked_buffer": 0,
        "asked_morsel": 0, "units_of_cell": 1, "tuples_per_s": 100e6, "buffer_bytes": 4096,
        "fraction_of_memcpy": 0.8, "memory_ratio": 1.05, "pages_of_a_partition": 4, **more,
    }  # fmt: skip


def test_aims_take_the_best_member_of_each_cell():
    rows = [
        row(),
        row(member="ranges", tuples_per_s=50e6, fraction_of_memcpy=0.1),
        row(threads=2, tuples_per_s=150e6, memory_ratio=1.2, fraction_of_memcpy=0.6),
        row(threads=2, member="radix", tuples_per_s=140e6),
        row(tuple_bytes=16, tuples_per_s=200e6, pages_of_a_partition=3, memory_ratio=9.0),
    ]
    aims = {a["aim"]: a for a in shuffle_aims(rows)}
    share = aims["best member: share of the copy's speed"]
    assert (share["worst"], share["best"], share["met"], share["cells_met"]) == (0.6, 0.8, False, 1)
    assert aims["16 B, one thread, buffers in L2: M tuples/s"]["worst"] == 200
    assert aims["best member: 2 threads over one"]["worst"] == 1.5
    memory = aims["best member: memory over the least, four pages full"]
    assert (memory["worst"], memory["best"], memory["cells"]) == (1.2, 1.05, 2)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("tuple_bytes", [0, 4, 64])
def test_a_member_is_chosen_for_all_settings(threads, tuple_bytes):
    assert all(chosen(p, tuple_bytes, threads) in MEMBERS for p in (1, 16, 4096))


def test_an_unknown_member_is_refused_with_the_names_of_all():
    done = CliRunner().invoke(shuffle.command, ["--member", "magic"])
    assert done.exit_code == 2
    assert all(member in done.output for member in MEMBERS)
