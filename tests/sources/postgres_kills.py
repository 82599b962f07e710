"""`python -m tests.sources.postgres_kills`: SIGKILL for a daemon that replicates a table.

The server crashes now and then as well.  The table's rows go through a join that keeps them all,
into files: the sum of their weights is the table, whatever was killed.
"""

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tests.api.support import Daemon
from tests.sources.postgres_programs import change
from tests.sources.postgres_rig import SECONDS, PostgresServer, job_of, source_of

COLUMNS = {"id": "int64", "part": "string", "kw": "float64?", "note": "string?"}
CRASH = 0.2
"""Share of the kills beside which the server crashes."""


def document(port, directory):
    """A job that writes every change of the table."""
    job = job_of(source_of(port), COLUMNS, key=["id", "part"])
    names = directory / "names.csv"
    names.write_text("id\n")
    job["tables"]["none"] = {"source": {"type": "file", "path": str(names)},
                             "columns": {"id": "int64"}}  # fmt: skip
    job["operators"] = {
        "kept": {"type": "table_join", "left": "t", "right": "none", "on": ["id"], "how": "left"}
    }
    job["sinks"]["all"] = {"type": "file", "input": "kept", "format": "ndjson", "every": "200ms",
                           "path": str(directory / "out")}  # fmt: skip
    return {**job, "promises": {"latency": "100ms"}}


def written(directory):
    """The table that the files hold."""
    found = Counter()
    for file in (directory / "out").glob("*.ndjson"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            found[row["id"], row["part"], row["kw"], row["note"]] += row["weight"]
    return Counter({row: n for row, n in found.items() if n})


def campaign(seed, kills, server):
    """Kill a daemon so many times; raises AssertionError where a row is lost or there twice."""
    rng = random.Random(seed)
    server.run(
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t (id bigint, part text, kw double precision, note text,"
        " PRIMARY KEY (id, part))",
        "INSERT INTO t SELECT i, 'p', i, 'n' FROM generate_series(1, 20000) i",
    )

    def goal():
        return Counter(server.rows("SELECT id, part, kw, note FROM t"))

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with Daemon(directory, document(server.port, directory)) as daemon:
            for _ in range(kills):
                for _ in range(rng.randrange(1, 5)):
                    with server.session() as cursor:
                        change(cursor, rng, rng.choice([1, 30, 3000]))
                time.sleep(rng.random() * rng.choice([0.05, 1.5]))
                daemon.kill()
                if rng.random() < CRASH:
                    server.stop()
                    server.start()
                daemon.restart()
                daemon.ready(300)
            deadline, wanted = time.monotonic() + SECONDS, goal()
            while (found := written(directory)) != wanted:
                assert time.monotonic() < deadline, (len(wanted - found), len(found - wanted))
                time.sleep(0.2)
            assert min(found.values()) == 1


def main():
    """Run the campaign as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kills", type=int, default=60)
    asked = parser.parse_args()
    click.echo(f"seed {asked.seed}")
    server = PostgresServer()
    try:
        server.run("CREATE PUBLICATION edged FOR ALL TABLES")
        campaign(asked.seed, asked.kills, server)
    finally:
        server.close()
    click.echo(f"{asked.kills} kills: nothing is lost, nothing is there twice")


if __name__ == "__main__":
    main()
