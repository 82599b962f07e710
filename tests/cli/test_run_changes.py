"""A job over changes as a process: files of Debezium's events to results, against DuckDB."""

from __future__ import annotations

import json
from random import Random

import duckdb
import pytest

from tests.cli.test_run import edged

SECOND = 1_000_000
JOB = {
    "name": "changes",
    "promises": {"latency": "50ms"},
    "streams": {
        "orders": {
            "source": {"type": "file", "path": "orders.ndjson"},
            "columns": {"id": "int64", "site": "string", "kwh": "float64?", "at": "timestamp"},
            "time": "at",
            "lateness": "1h",
            "changes": "debezium",
        },
        "prices": {
            "source": {"type": "file", "path": "prices.csv"},
            "columns": {"site": "string", "at": "timestamp", "price": "int64", "n": "int32"},
            "time": "at",
            "lateness": "1h",
            "weight": "n",
        },
    },
    "operators": {
        "large": {"type": "filter", "input": "orders", "where": "kwh > 20 OR kwh IS NULL"},
        "named": {
            "type": "map", "input": "large",
            "columns": {"at": "at", "site": "upper(site)", "kwh": "kwh"},
        },
        "hourly": {
            "type": "window", "input": "named", "keys": ["site"], "size": "1min",
            "aggregates": {"n": "count(*)", "kwh": "sum(kwh)", "v": "variance(kwh)"},
        },
        "priced": {
            "type": "interval_join", "left": "orders", "right": "prices", "on": ["site"],
            "before": "10s", "after": "10s",
        },
    },
    "sinks": {
        "hours": {"type": "file", "input": "hourly", "path": "hours"},
        "pairs": {"type": "file", "input": "priced", "path": "pairs"},
    },
}  # fmt: skip


def make(tmp_path):
    """Random changes in two files; returns the rows that are left of each."""
    random, orders, events = Random(7), {}, []
    for id in range(400):
        at = 1_700_000_000 * SECOND + random.randrange(600) * SECOND
        orders[id] = {"id": id, "site": random.choice("abc"), "kwh": random.choice([
            None, random.uniform(0, 100)]), "at": at}  # fmt: skip
        events.append({"op": "c", "before": None, "after": dict(orders[id])})
        if id and random.random() < 0.6:
            old = random.choice(list(orders))
            before = dict(orders[old])
            if random.random() < 0.5:
                events.append({"op": "d", "before": before, "after": None})
                del orders[old]
            else:
                orders[old]["kwh"] = random.uniform(0, 100)
                events.append({"op": "u", "before": before, "after": dict(orders[old])})
    lines = [json.dumps({"payload": event}) for event in events]
    (tmp_path / "orders.ndjson").write_text("\n".join(lines))
    prices = []
    for number in range(100):
        at = 1_700_000_000 * SECOND + random.randrange(600) * SECOND
        prices.append((random.choice("abc"), at, number, 2))
    changes = [*prices, *((*p[:3], -random.randint(1, 2)) for p in prices[::3])]
    rows = "\n".join(",".join(map(str, row)) for row in changes)
    (tmp_path / "prices.csv").write_text("site,at,price,n\n" + rows + "\n")
    return list(orders.values())


def test_a_job_over_changes_gives_what_is_left_of_its_rows(tmp_path):
    left = make(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    words = ["run", "job.json", "--store", "st", "--workers", "1", "--board", "none", "--until-end"]
    done = edged(tmp_path, words)
    assert done.returncode == 0, done.stderr
    (tmp_path / "left.ndjson").write_text("\n".join(map(json.dumps, left)))
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE orders AS FROM read_json('{tmp_path}/left.ndjson')")
        db.execute(f"CREATE TABLE prices AS FROM read_csv('{tmp_path}/prices.csv')")
        found = db.execute(
            "SELECT site, epoch_us(window_start), n, kwh, v_count, v_m2"
            f" FROM '{tmp_path}/hours/*.parquet' ORDER BY 1, 2"
        ).fetchall()
        wanted = db.execute(
            'SELECT upper(site), "at" // 60000000 * 60000000, count(*), fsum(kwh), count(kwh),'
            " var_pop(kwh) * count(kwh) FROM orders WHERE kwh > 20 OR kwh IS NULL"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        ).fetchall()
        assert [row[:3] for row in found] == [row[:3] for row in wanted]
        for a, b in zip(found, wanted, strict=True):
            assert a[4] == b[4]
            if a[4]:
                assert (a[3], a[5]) == pytest.approx((b[3], b[5]), rel=1e-9, abs=1e-9)
        pairs = db.execute(
            f"SELECT id, price, sum(_weight) FROM '{tmp_path}/pairs/*.parquet'"
            " GROUP BY ALL HAVING sum(_weight) <> 0 ORDER BY 1, 2"
        ).fetchall()
        assert (
            pairs
            == db.execute(
                "SELECT id, price, sum(n) FROM orders o JOIN prices p ON o.site = p.site"
                ' AND p."at" - o."at" BETWEEN -10000000 AND 10000000'
                " GROUP BY ALL HAVING sum(n) <> 0 ORDER BY 1, 2"
            ).fetchall()
        )
    assert len(pairs) > 100


def test_a_table_of_events_is_populated_by_its_snapshot_and_follows_its_changes(tmp_path):
    """More than one block, so that the snapshot ends before the file does."""
    rows = [{"id": i, "name": f"n{i}" + "x" * 900} for i in range(5000)]
    events = [{"op": "r", "after": row, "source": {"snapshot": "true"}} for row in rows]
    events[-1]["source"] = {"snapshot": "last"}
    for row in rows[::7]:
        new = {**row, "name": f"new {row['id']}"}
        events.append({"op": "u", "before": row, "after": new})
    events += [{"op": "d", "before": row} for row in rows[1::7]]
    events += [{"op": "c", "after": {"id": -i, "name": "y" * 900}} for i in range(1, 5000)]
    (tmp_path / "names.ndjson").write_text("\n".join(map(json.dumps, events)))
    ids = "\n".join(map(str, range(0, 5000, 3)))
    (tmp_path / "seen.csv").write_text(f"id\n{ids}\n")
    tables = {
        "names": {
            "source": {"type": "file", "path": "names.ndjson"}, "changes": "debezium",
            "columns": {"id": "int64", "name": "string"},
        },
        "seen": {"source": {"type": "file", "path": "seen.csv"}, "columns": {"id": "int64"}},
    }  # fmt: skip
    joined = {"type": "table_join", "left": "seen", "right": "names", "on": ["id"]}
    sink = {"type": "file", "input": "joined", "path": "out"}
    job = {"name": "tables", "promises": {"latency": "50ms"}, "tables": tables,
           "operators": {"joined": joined}, "sinks": {"out": sink}}  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    words = ["run", "job.json", "--store", "st", "--workers", "1", "--board", "none", "--until-end"]
    done = edged(tmp_path, words)
    assert done.returncode == 0, done.stderr
    found = duckdb.sql(
        f"SELECT id, name, sum(weight)::BIGINT FROM '{tmp_path}/out/*.parquet'"
        " GROUP BY ALL HAVING sum(weight) <> 0 ORDER BY id"
    ).fetchall()
    left = {row["id"]: row["name"] for row in rows}
    left |= {row["id"]: f"new {row['id']}" for row in rows[::7]}
    left = {id: name for id, name in left.items() if id % 7 != 1}
    assert found == [(i, left[i], 1) for i in range(0, 5000, 3) if i in left]
