"""`edged bench durability`: its rows on a real daemon and a real RocksDB, and its ratios."""

from __future__ import annotations

import pytest

from edged.bench import durability
from edged.bench.durability_peer import measure_rocksdb

KEYS = {
    "engine", "durability", "batch", "tuples_per_s", "ms_p50", "ms_p99", "recovered_mb",
    "bytes_written_per_input_byte", "recovery_mb_per_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(on_disk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durability, "WARM_S", 0.3)
        own = durability.measure("exactly_once", 1000, 0.5)
    return own, measure_rocksdb("exactly_once", 1000, 0.2)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("bench")))
        yield


@pytest.mark.parametrize("engine", [0, 1])
def test_a_row_has_its_keys_and_every_tuple_is_written_at_least_once(rows, engine):
    row = rows[engine]
    assert set(row) == KEYS
    assert row["tuples_per_s"] > 0
    assert row["bytes_written_per_input_byte"] > 0.5
    assert row["recovered_mb"] > 0


def test_the_log_of_a_killed_rocksdb_is_what_it_wrote(rows):
    row = rows[1]
    assert row["recovered_mb"] * 1e6 == pytest.approx(16 * row["tuples_per_s"] * 0.2, rel=0.5)


def test_ratios_are_of_the_same_batch_and_of_edged_alone():
    speeds = {("exactly_once", 10): 70, ("none", 10): 100, ("none", 20): 100, ("results", 10): 9}
    made = [
        {"engine": "edged", "durability": d, "batch": b, "tuples_per_s": speed}
        for (d, b), speed in speeds.items()
    ]
    other = {"engine": "rocksdb", "durability": "none", "batch": 10, "tuples_per_s": 1}
    assert durability.ratios([*made, other]) == {"10": 0.7}
