"""Tables under kills: each row comes out once, whenever the daemon is killed, and joins end exact.

The job's memory is far below its tables, so that kills meet population past the log, files that are
written and merged, and snapshots.  EDGED_SEED repeats a run's random choices, `--whole` does 60
kills, of as many daemons as that takes:

    python -m pytest tests/system/test_table_kills.py --whole
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter

import duckdb

from tests.system.support import say, seed
from tests.whole import count

KILLS = count(5, 60)
CHANGES, READINGS = count(60_000, 150_000), count(6_000, 60_000)
DEVICES = 5_000


def job(directory):
    """A stream over a registry of changes, and the registry joined with a table of sites."""

    def file(name, **more):
        return {"type": "file", "path": str(directory / name), **more}

    def sink(name, link):
        return {"type": "file", "input": link, "path": str(directory / name), "format": "ndjson"}

    return {
        "name": "plant",
        "promises": {"memory": "1MiB", "latency": "50ms"},
        "streams": {
            "r": {
                "source": file("r.csv", pace="20x"),
                "columns": {"id": "int64", "device": "string", "time": "timestamp"},
                "time": "time",
                "late": "process",
                "max_ahead": "1000d",
            }
        },
        "tables": {
            "devices": {
                "source": file("devices.csv"),
                "columns": {"device": "string", "site": "string", "change": "int32"},
                "changes": "weight:change",
            },
            "sites": {
                "source": file("sites.csv"),
                "columns": {"site": "string", "town": "string"},
                "key": ["site"],
                "changes": "upsert",
            },
        },
        "operators": {
            "located": {"type": "enrich", "input": "r", "table": "devices", "on": ["device"],
                        "how": "left"},
            "towns": {"type": "table_join", "left": "devices", "right": "sites", "on": ["site"],
                      "how": "left"},
        },
        "sinks": {
            "rows": sink("rows", "located"),
            "changes": sink("changes", "towns"),
            "pages": {"type": "pages", "input": "towns", "page": "16KiB"},
        },
    }  # fmt: skip


def write_inputs(directory, dice):
    """The sources' files."""
    held, lines = [], ["device,site,change"]
    for _ in range(CHANGES):
        if held and dice.random() < 0.4:
            row, weight = held.pop(dice.randrange(len(held))), -1
        else:
            row, weight = (f"d{dice.randrange(DEVICES)}", f"s{dice.randrange(50)}"), 1
            held.append(row)
        lines.append(f"{row[0]},{row[1]},{weight}")
    (directory / "devices.csv").write_text("\n".join(lines))
    lines = [f"s{dice.randrange(45)},t{dice.randrange(9)}" for _ in range(2_000)]
    (directory / "sites.csv").write_text("\n".join(["site,town", *lines]))
    lines = [f"{i},d{dice.randrange(DEVICES)},{10**15 + 1000 * i}" for i in range(READINGS)]
    (directory / "r.csv").write_text("\n".join(["id,device,time", *lines]))


def start(directory):
    command = [
        *(sys.executable, "-m", "edged", "run", str(directory / "job.json"), "--until-end"),
        *("--store", str(directory / "store"), "--snapshot-bytes", str(1 << 20)),
    ]
    with (directory / "log").open("a") as log:
        return subprocess.Popen(command, stderr=log, stdout=log)


def lives(directory, dice, most):
    """Kill the daemon again and again, then let it come to its end; returns the kills."""
    kills = 0
    while kills < most:
        process = start(directory)
        until = time.monotonic() + dice.uniform(1.5, 4.0)
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is not None:
            assert process.returncode == 0, (directory / "log").read_text()[-3000:]
            return kills
        process.kill()
        process.wait()
        kills += 1
    assert start(directory).wait(300) == 0, (directory / "log").read_text()[-3000:]
    return kills


def read(directory):
    """The rows of a sink's files."""
    files = sorted(directory.iterdir())
    return [json.loads(line) for f in files for line in f.read_text().splitlines()]


def test_killed_daemons_lose_and_repeat_no_change(tmp_path):
    dice, kills = random.Random(seed()), 0
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir()
        kills += one_store(directory, dice, KILLS - kills)
        if kills >= KILLS or KILLS < 60:
            break
    say(f"{kills} kills of {number + 1} daemons, each with {CHANGES} changes and {READINGS} rows")


def one_store(tmp_path, dice, most):
    """Kill a daemon up to `most` times, and compare what came out; returns the kills."""
    write_inputs(tmp_path, dice)
    (tmp_path / "job.json").write_text(json.dumps(job(tmp_path)))
    kills = lives(tmp_path, dice, most)
    files = list((tmp_path / "store" / "tables").rglob("*.run"))
    assert files, "the tables are on disk"
    db = duckdb.connect()
    for name in ("devices", "sites", "r"):
        db.execute(f"CREATE TABLE {name} AS FROM read_csv('{tmp_path}/{name}.csv')")
    db.execute("CREATE TABLE d AS SELECT device, site, sum(change) AS n FROM devices GROUP BY ALL")
    expected = Counter()
    sql = "SELECT id, site, n FROM r LEFT JOIN (FROM d WHERE n > 0) d USING (device)"
    for id, site, n in db.execute(sql).fetchall():
        expected[id, site] += n or 1
    assert Counter((row["id"], row["site"]) for row in read(tmp_path / "rows")) == expected
    last = "SELECT site, last(town ORDER BY i) AS town FROM s GROUP BY site"
    db.execute("CREATE TABLE s AS SELECT *, row_number() OVER () AS i FROM sites")
    found = db.execute(f"SELECT device, site, town, n FROM d LEFT JOIN ({last}) USING (site)")
    expected = Counter({(d, s, t): n for d, s, t, n in found.fetchall() if n})
    changes = Counter()
    for row in read(tmp_path / "changes"):
        changes[row["device"], row["site"], row["town"]] += row["weight"]
    assert {k: n for k, n in changes.items() if n} == expected
    return kills
