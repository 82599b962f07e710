"""Tables of a real PostgreSQL: first rows and changes, once each, whatever ends in between."""

import os
import random
import select
import signal
from collections import Counter
from datetime import datetime, timezone

import numpy as np
import pytest

from edged.job.plan import faults
from edged.platform.backoff import Backoff
from tests.sources.postgres_kills import campaign
from tests.sources.postgres_programs import change
from tests.sources.postgres_rig import PostgresServer, Rig, job_of, source_of
from tests.whole import count

COLUMNS = {"id": "int64", "part": "string", "kw": "float64?", "note": "string?"}
KEY = ("id", "part")
UTC = timezone.utc


@pytest.fixture(scope="module")
def server():
    made = PostgresServer()
    made.run("CREATE PUBLICATION edged FOR ALL TABLES")
    yield made
    made.close()


@pytest.fixture
def table(server):
    server.run(
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t (id bigint, part text, kw double precision, note text, other int,"
        " PRIMARY KEY (id, part))",
    )
    yield server
    for (slot,) in server.rows("SELECT slot_name FROM pg_replication_slots"):
        server.run(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{slot}'"
        )
        drop(server, slot)


def drop(server, slot):
    for _ in range(1000):
        try:
            return server.run(f"SELECT pg_drop_replication_slot('{slot}')")
        except Exception as problem:
            assert "is active" in str(problem)


def wanted(server):
    return Counter(server.rows("SELECT id, part, kw, note FROM t"))


def rig(server, tmp_path, key=KEY, **source):
    more = {"key": list(key)} if key else {}
    return Rig(job_of(source_of(server.port, **source), COLUMNS, **more), tmp_path)


def same(server, found, key=(0, 1)):
    goal = wanted(server)
    found.until(lambda: found.table(key) == goal)


def test_first_rows_then_changes_by_key(table, tmp_path):
    table.run(
        "INSERT INTO t SELECT i, 'p', i, repeat('x', i % 7) FROM generate_series(1, 3000) i",
        "INSERT INTO t VALUES (-1, '', NULL, NULL), (-2, ' ,\"''\n\\', 'NaN', 'ä€'),"
        " (-3, 'x', 'Infinity', '')",
    )
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        assert len(found.rows) == 3003 and {row[-1] for row in found.rows} == {1}
        table.run(
            "UPDATE t SET kw = kw + 1 WHERE id % 3 = 0",
            "UPDATE t SET id = id + 100000 WHERE id % 100 = 1",
            "DELETE FROM t WHERE id % 5 = 0",
            "DELETE FROM t WHERE id = -2",
            "INSERT INTO t VALUES (7, 'new', NULL, NULL)",
        )
        same(table, found)
        assert found.source.problem() == ""
        found.until(lambda: not list(tmp_path.glob("postgres/*")))


def test_whole_old_rows_without_a_key(table, tmp_path):
    table.run(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, 'p', NULL, NULL FROM generate_series(1, 100) i",
    )
    with rig(table, tmp_path, key=None) as found:
        found.until(lambda: found.populated)
        table.run(
            "UPDATE t SET note = repeat(md5(id::text), 200) WHERE id < 50",
            "UPDATE t SET kw = 1 WHERE id < 70",
            "DELETE FROM t WHERE id % 2 = 0",
        )
        same(table, found, key=None)
        assert len(found.rows) == 100 + 98 + 138 + 50


@pytest.mark.parametrize("key", [["id"], None])
def test_every_type_comes_as_it_is_from_the_copy_and_from_changes(table, tmp_path, key):
    table.run(
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, yes boolean, small smallint, o oid, f real,"
        " n numeric(12, 3), day date, at timestamp, z timestamptz, b bytea, j jsonb)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    row = (
        "(%d, true, -7, 4000000000, 1.1, 12.345, '2024-02-29', '1999-12-31 23:59:59.999999',"
        " '2024-06-01 12:00:00.5+02', '\\x00ff7f', '{\"a\": 1}')"
    )
    nothing = f"(%d{', NULL' * 10})"
    table.run(f"INSERT INTO t VALUES {row % 1}, {nothing % 2}")
    columns = {
        "id": "int32", "yes": "bool?", "small": "int16?", "o": "uint32?", "f": "float32?",
        "n": "float64?", "day": "timestamp?", "at": "timestamp?", "z": "timestamp?",
        "b": "binary?", "j": "string?",
    }  # fmt: skip
    more = {"key": key} if key else {}
    with Rig(job_of(source_of(table.port), columns, **more), tmp_path) as found:
        found.until(lambda: found.populated)
        table.run(f"INSERT INTO t VALUES {row % 3}, {nothing % 4}", "DELETE FROM t WHERE id = 1")
        found.until(lambda: len(found.rows) == 5)
    values = {n: rest for n, *rest, weight in found.rows if weight == 1}
    assert values[1] == [
        True, -7, 4_000_000_000, np.float32(1.1), 12.345, datetime(2024, 2, 29, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(2024, 6, 1, 10, 0, 0, 500_000, UTC),
        b"\x00\xff\x7f", '{"a": 1}',
    ]  # fmt: skip
    assert values[3] == values[1]
    assert values[2] == values[4] == [None] * 10


def test_a_copy_holds_rows_of_one_null_and_rows_longer_than_a_block(table, tmp_path):
    table.run("INSERT INTO t SELECT i, 'p', NULL, CASE WHEN i %% 3 = 0 THEN"
              " repeat(md5(i::text), CASE WHEN i = 30 THEN 100000 ELSE 5 END) END"
              " FROM generate_series(1, 300) i".replace("%%", "%"))  # fmt: skip
    with Rig(job_of(source_of(table.port), {"note": "string?"}), tmp_path) as found:
        found.until(lambda: found.populated)
        found.beat()
        assert found.table() == Counter(table.rows("SELECT note FROM t"))


def test_a_child_that_ends_is_started_after_its_pause_whatever_else_beats(table, tmp_path):
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        found.source._backoff = Backoff(lambda: 1.0, base_s=3600.0, early_cap_s=3600.0)
        os.kill(found.source._child.pid, signal.SIGKILL)
        found.until(lambda: found.source._child is None)
        for _ in range(3):
            found.beat()
        assert found.source._child is None


def test_a_child_that_ends_wakes_nothing_while_rows_wait_for_room(table, tmp_path):
    table.run("INSERT INTO t SELECT i, 'p', i, 'n' FROM generate_series(1, 5000) i")
    job = job_of(source_of(table.port), COLUMNS, key=list(KEY))
    with Rig(job, tmp_path, bytes_max=1 << 14) as found:
        found.until(lambda: found.source._head is not None, take=False)
        child = found.source._child
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        found.beat(take=False)
        assert not select.select([found.source], [], [], 0)[0]
        same(table, found)


@pytest.mark.parametrize("seed", range(2))
def test_kills_of_either_process_lose_and_repeat_nothing(table, tmp_path, seed):
    rng = random.Random(seed)
    table.run("INSERT INTO t SELECT i, 'p', i, NULL FROM generate_series(1, 20000) i")
    with rig(table, tmp_path) as found:
        for n in range(12):
            with table.session() as cursor:
                change(cursor, rng, rng.choice([1, 30, 3000]))
            for _ in range(rng.randrange(4)):
                found.beat(commit=rng.random() < 0.6)
            if rng.random() < 0.5:
                found.crash()
            elif found.source._child is not None:
                os.kill(found.source._child.pid, signal.SIGKILL)
            if n == 6:
                table.stop()
                table.start()
        same(table, found)


def test_kills_of_a_daemon_lose_and_repeat_nothing(table):
    campaign(3, count(2, 10), table)


def test_the_slot_follows_the_commit(table, tmp_path):
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        found.beat()

        def confirmed():
            (row,) = table.rows(
                "SELECT confirmed_flush_lsn >= (SELECT pg_current_wal_lsn()) , confirmed_flush_lsn"
                " FROM pg_replication_slots WHERE slot_name = 's'"
            )
            return row

        before = confirmed()[1]
        table.run("INSERT INTO t VALUES (1, 'a', 1, NULL)")
        found.until(lambda: len(found._taken) == 1, commit=False)
        assert confirmed()[1] == before, "the row is not committed"
        found.beat()
        found.until(lambda: confirmed()[1] != before)
        table.run(
            "CREATE TABLE IF NOT EXISTS elsewhere (x int)", "INSERT INTO elsewhere VALUES (1)"
        )
        found.until(lambda: confirmed()[0])


def test_a_large_transaction_is_taken_in_parts(table, tmp_path):
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        table.run("INSERT INTO t SELECT i, 'p', i, 'n' FROM generate_series(1, 50000) i")
        found.until(lambda: found._taken, commit=False)
        found.beat()
        assert 0 < len(found.rows) < 50000
        found.crash()
        same(table, found)
        assert len(found.rows) == 50000


PROBLEMS = [
    ("DROP PUBLICATION edged", "publication edged has no table public.t: CREATE PUBLICATION"),
    ("ALTER TABLE t DROP COLUMN note", "public.t has no column note; it has id, part, kw, other"),
    ("ALTER TABLE t ALTER kw TYPE text", "public.t.kw is text, which is no float64"),
    ("ALTER TABLE t RENAME TO u", "there is no table public.t"),
    ("ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id)",
     "part of the job's key is no part of the primary key of public.t"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "problem"), PROBLEMS)
def test_a_table_that_does_not_fit_is_said_at_the_start(table, tmp_path, statement, problem):
    table.run(*statement.split(";"))
    try:
        with rig(table, tmp_path) as found:
            found.until(lambda: problem in found.source.problem())
            assert found.refused[-1] == ("stopped", found.source.problem())
    finally:
        table.run("DROP TABLE IF EXISTS u", "DROP PUBLICATION IF EXISTS edged",
                  "CREATE PUBLICATION edged FOR ALL TABLES")  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("ALTER TABLE t DROP COLUMN kw", "public.t has no column kw"),
        ("ALTER TABLE t ALTER kw TYPE text", "public.t.kw is of type 25, which is no float64"),
        ("TRUNCATE t", "public.t was truncated"),
    ],
)
def test_a_table_that_is_altered_stops_behind_its_last_good_row(
    table, tmp_path, statement, problem
):
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        table.run(
            "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD more int",
            "INSERT INTO t VALUES (2, 'a')", statement, "INSERT INTO t (id, part) VALUES (3, 'a')",
        )  # fmt: skip
        found.until(lambda: problem in found.source.problem())
        found.beat()
        assert [row[0] for row in found.rows] == [1, 2]


def test_a_slot_that_is_gone_or_anothers_is_said(table, tmp_path):
    table.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    with rig(table, tmp_path) as found:
        found.until(lambda: "slot s is there, and another consumer's" in found.source.problem())
        drop(table, "s")
        found.crash()
        found.until(lambda: found.populated)
        found.beat()
        found.source.close()
        drop(table, "s")
        found._open()
        found.until(lambda: "slot s is gone" in found.source.problem())


def test_a_server_that_is_away_is_awaited(table, tmp_path):
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        table.stop()
        found.until(lambda: found.source.problem())
        assert found.refused[-1][0] == "waits"
        table.start()
        table.run("INSERT INTO t VALUES (1, 'a')")
        same(table, found)
        assert found.source.problem() == ""


def test_a_large_value_that_an_update_leaves_is_refused_without_whole_old_rows(table, tmp_path):
    table.run("ALTER TABLE t ALTER note SET STORAGE EXTERNAL",
              "INSERT INTO t VALUES (1, 'a', 1, repeat('x', 9000))")  # fmt: skip
    with rig(table, tmp_path) as found:
        found.until(lambda: found.populated)
        table.run("UPDATE t SET kw = 2")
        found.until(lambda: "public.t.note holds a large value" in found.source.problem())


@pytest.mark.parametrize(
    ("source", "more", "problem"),
    [
        ({"slot": "S"}, {}, "tables.t.source.slot: 'S' is no name of a slot"),
        ({"table": 'a"b'}, {}, "tables.t.source.table"),
        ({"tls": "yes"}, {}, "tables.t.source.tls"),
        ({"port": 0}, {}, "tables.t.source.port"),
        ({"columns": {"x": "y"}}, {}, "tables.t.source.columns.x"),
        ({"table": 3}, {}, "tables.t.source.table"),
        ({"user": None}, {}, "tables.t.source.user"),
        ({}, {"changes": "upsert"}, "tables.t.changes: the source gives changes of its own"),
        ({"type": "http"}, {}, "tables.t.changes: only a source postgres gives such changes"),
        ({}, {"key": ["id"], "missing": "owe"}, "tables.t.missing: a delete by key owes no row"),
    ],
)
def test_what_is_wrong_in_a_document_is_named_with_its_path(source, more, problem):
    document = job_of({**source_of(5432), **source}, COLUMNS, **more)
    found = [str(fault) for fault in faults(document)]
    assert any(problem in text for text in found), found
