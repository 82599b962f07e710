"""Populations past the log: rows become runs in files at once, and the records name them."""

import random
import shutil
from collections import Counter

import pytest

from edged.beat import table_loads
from edged.beat.recover import recover
from edged.errors import StoreCorrupt
from edged.store import Store
from edged.tables.compaction import RUNS_MAX
from tests.beat.support import T0, HandClock, changed, rows_of
from tests.beat.test_tables import JOB, WAITING, Tables, cut, killed
from tests.whole import count


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Beats of any size load."""
    monkeypatch.setattr(table_loads, "LOAD_SHARE", 1 << 40)


def some_rows(rng, size):
    """Changes of devices, some of which take back what is there or is not."""
    names = [f"d{i}" for i in range(40)]
    return [
        (rng.choice(names), rng.choice([None, "n", "s"]), rng.choice([1, 1, 2, -1]))
        for _ in range(size)
    ]


def populate(live, n, seed, size=60):
    """A beat of the population; from beat 12 on the tables are populated."""
    rng = random.Random(1000 * seed + n)
    live.send("devices", some_rows(rng, size))
    live.send("sites", [(rng.choice("nse"), rng.choice(["oslo", "bern"])) for _ in range(9)])
    live.send("r", [(f"d{rng.randrange(40)}", T0 + n, rng.random()) for _ in range(15)])
    if n == 12:
        live.end("devices")
        live.end("sites")
    return live.beat(flush=n % 3 == 0)


def log_bytes(live):
    """Bytes of inputs in the log's records since the last snapshot."""
    with Store.open(shutil.copytree(live.path, live.path.parent / "copy")) as store:
        size = sum(b.nbytes for record in store.recover().records for b in record.inputs)
    shutil.rmtree(live.path.parent / "copy")
    return size


def changes(live):
    """The sum of all changes that the join has given out."""
    total = Counter()
    for *row, _, weight in rows_of(live.plan, live.all_pages(), "changes"):
        total[tuple(row)] += weight
    return {row: n for row, n in total.items() if n}


def test_rows_of_a_population_are_in_no_record_and_come_out_as_others_do(tmp_path, monkeypatch):
    document = changed(JOB, streams={"r": {**JOB["streams"]["r"], "late": "process"}})
    with Tables(document, tmp_path / "loads") as loads:
        for n in range(1, 12):
            facts = populate(loads, n, 5)
            assert facts.streams["devices"].loaded[1] == 60
            assert facts.streams["devices"].logged_rows == facts.streams["devices"].take_rows == 0
            assert facts.loads["located"]["rows"][0]["crc"]
        with_loads = log_bytes(loads)
        for n in range(12, 16):
            facts = populate(loads, n, 5)
            assert bool(facts.streams["devices"].loaded) == (n == 12)
        loads.beat(flush=True)
        found, rows = changes(loads), rows_of(loads.plan, loads.all_pages(), "rows")
        assert loads.job.streams["devices"].rows == 15 * 60
    monkeypatch.setattr(table_loads, "LOAD_SHARE", 1e-9)
    with Tables(document, tmp_path / "logs") as logs:
        for n in range(1, 12):
            assert not populate(logs, n, 5).loads
        assert with_loads < log_bytes(logs) / 2
        for n in range(12, 16):
            populate(logs, n, 5)
        logs.beat(flush=True)
        assert changes(logs) == found
        assert rows_of(logs.plan, logs.all_pages(), "rows") == rows


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_population_gives_the_pages_of_one_that_was_not(tmp_path, seed):
    """Kills with records since the last snapshot, during and after the population."""
    got, expected = killed(
        tmp_path, lambda live, n: populate(live, n, seed), (1, 4, 5, 11, 14, 19), snapshot_every=7
    )
    assert got == expected


@pytest.mark.parametrize("seed", range(count(3, 60)))
def test_power_cuts_in_a_population_lose_nothing_that_was_committed(seed):
    cut(lambda live, n: populate(live, n, seed, 20), 15, 4, seed)


def test_files_that_records_name_stay_until_two_snapshots_are_behind_them(tmp_path):
    """An older snapshot and the log after it serve where the newest snapshot is damaged."""
    with Tables(WAITING, tmp_path / "store") as live:
        for n in range(1, 4):
            populate_devices(live, n)
        for state in live.job.operators["located"]._side.states.values():
            state.merge_all()
        live.snapshot()
        named = list((tmp_path / "store" / "tables" / "plant" / "located").rglob("*.run"))
        assert len(named) == 4, "three runs, and the merged one"
        newest = max((tmp_path / "store" / "snapshots").glob("*.snap"))
        shutil.copytree(tmp_path / "store", tmp_path / "damaged")
        damaged = tmp_path / "damaged" / "snapshots" / newest.name
        damaged.write_bytes(damaged.read_bytes()[:-100] + bytes(100))
        with Store.open(tmp_path / "damaged", segment_bytes=1 << 18) as store:
            context = live.context.__class__(
                "device", 7, "/nonexistent", live.workers, tables=str(tmp_path / "damaged/tables")
            )
            found = recover(store, [live.plan], context, HandClock())
            assert found.jobs[0].streams["devices"].rows == 3 * 60
        populate_devices(live, 4)
        live.snapshot()
        located = tmp_path / "store" / "tables" / "plant" / "located"
        assert len(list(located.rglob("*.run"))) == 2, "the merged run, and that of beat 4"


def populate_devices(live, n, size=60):
    """A beat of devices alone."""
    live.send("devices", [(f"d{n}-{i}", "n", 1) for i in range(size)])
    return live.beat()


def test_files_that_the_beat_of_their_load_has_merged_are_there_for_its_record(tmp_path):
    """A snapshot is adopted meanwhile: its turn to delete files comes after the record's."""
    with Tables(WAITING, tmp_path / "store") as live:
        for n in range(1, RUNS_MAX + 10):
            populate_devices(live, n, 3)
            live.snapshot(late=True)
        assert live.job.operators["located"].counters()["table_merges"] > 0
        live.reopen()
        assert live.job.streams["devices"].rows == 3 * (RUNS_MAX + 9)


def test_files_that_records_name_bring_a_snapshot_near_as_the_log_does(tmp_path):
    with Tables(WAITING, tmp_path / "store") as live:
        for n in range(1, 4):
            populate_devices(live, n)
        files = (tmp_path / "store" / "tables").rglob("*.run")
        assert live.files.loaded_bytes == sum(file.stat().st_size for file in files) > 0
        live.snapshot()
        assert live.files.loaded_bytes == 0


def test_a_replay_merges_runs_as_beats_do(tmp_path):
    with Tables(WAITING, tmp_path / "store") as live:
        for n in range(1, RUNS_MAX + 30):
            populate_devices(live, n, 3)
        live.reopen()
        assert live.job.operators["located"].counters()["table_runs"] <= RUNS_MAX + 1


def test_a_damaged_file_that_a_record_names_ends_the_start_with_its_name_and_rows(tmp_path):
    with Tables(JOB, tmp_path / "store") as live:
        populate(live, 1, 0)
        live.store.close()
        file = next((tmp_path / "store" / "tables" / "plant" / "towns").rglob("*.run"))
        file.write_bytes(bytes(10))
        live._open()
        with pytest.raises(StoreCorrupt, match=rf"{file.name}.*rows of the table go with it"):
            recover(live.store, [live.plan], live.context, HandClock())


def test_rows_that_the_log_has_already_are_not_loaded(tmp_path):
    with Tables(JOB, tmp_path / "store") as live:
        live.send("devices", [("d1", "n", 1)])
        assert live.beat(race=False).streams["devices"].logged_rows == 1
        live.send("devices", [("d2", "n", 1)])
        facts = live.beat()
        assert facts.streams["devices"].take_rows == 2
        assert not facts.streams["devices"].loaded
        live.send("devices", [("d3", "n", 1)])
        assert live.beat().streams["devices"].loaded == [1, 1]


def test_weights_that_leave_int32_are_refused_in_a_load_as_elsewhere(tmp_path):
    heavy = 2**31 - 1
    document = changed(JOB, operators={"located": JOB["operators"]["located"]})
    document = changed(document, sinks={"rows": JOB["sinks"]["rows"]})
    with Tables(document, tmp_path / "store") as live:
        live.send("devices", [("d1", "n", heavy), ("d1", "n", 1), ("d2", "n", 1)])
        live.beat()
        live.send("devices", [("d1", "n", 5), ("d3", "n", 1)])
        live.beat()
        located = live.job.operators["located"]
        assert located.counters()["table_refused"] == 2
        live.reopen()
        assert live.job.operators["located"].counters()["table_refused"] == 2
