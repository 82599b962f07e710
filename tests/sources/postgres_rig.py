"""A PostgreSQL server of the test's own, and a source that reads a table of it without a daemon."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2

from edged.data.staging import Staging
from edged.job.plan import parse_job
from edged.platform.clock import boot_us
from edged.platform.processes import free_port

SECONDS = 120.0
WALL_US = 1_800_000_000_000_000
SETTINGS = """
wal_level = logical
fsync = off
max_wal_senders = 20
max_replication_slots = 20
shared_buffers = 16MB
autovacuum = off
wal_receiver_status_interval = 1s
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
"""


def program(name):
    """A program of the newest PostgreSQL of Debian."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else name


class PostgresServer:
    """A server in a directory of its own; as root it runs as `postgres` or `nobody`."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="edged-pg-"))
        self.port = free_port()
        self._user = None
        if os.getuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            self._user = "postgres" if "postgres" in names else "nobody"
            shutil.chown(self.directory, self._user)
        data = self.directory / "data"
        self._call("initdb", "-D", data, "-A", "trust", "-U", "edged", "-E", "UTF8", "--no-sync",
                   "--locale", "C", "--no-instructions")  # fmt: skip
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"{SETTINGS}port = {self.port}\n")
        self.start()

    def start(self):
        """Start the server, and wait for it."""
        log = self.directory / "log"
        self._call("pg_ctl", "start", "-w", "-D", self.directory / "data", "-l", log)

    def stop(self, mode="immediate"):
        """Stop the server; `immediate` is a crash."""
        self._call("pg_ctl", "stop", "-w", "-m", mode, "-D", self.directory / "data")

    def close(self):
        """Stop the server and delete its directory."""
        with suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self.directory)

    @contextmanager
    def session(self):
        """A cursor whose statements are transactions of their own."""
        db = psycopg2.connect(host="127.0.0.1", port=self.port, user="edged", dbname="postgres")
        db.autocommit = True
        with db.cursor() as cursor:
            yield cursor
        db.close()

    def run(self, *statements):
        """Run statements, each a transaction of its own."""
        with self.session() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query):
        """The rows of a query."""
        with self.session() as cursor:
            cursor.execute(query)
            return cursor.fetchall()

    def _call(self, name, *words):
        done = subprocess.run(
            [program(name), *map(str, words)], user=self._user, group=self._user and "nogroup",
            extra_groups=[] if self._user else None, cwd=self.directory, timeout=SECONDS,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()


def source_of(port, table="public.t", slot="s", **more):
    """The source's part of a document."""
    return {
        "type": "postgres", "port": port, "database": "postgres", "user": "edged", "table": table,
        "publication": "edged", "slot": slot, **more,
    }  # fmt: skip


def job_of(source, columns, **more):
    """A job with this table, which nothing reads."""
    table = {"source": source, "columns": columns, "changes": "postgres", **more}
    stream = {
        "source": {"type": "http"}, "columns": {"at": "timestamp"}, "time": "at",
    }  # fmt: skip
    sink = {"type": "pages", "input": "s"}
    return {"name": "j", "tables": {"t": table}, "streams": {"s": stream}, "sinks": {"o": sink}}


class Rig:
    """A source of a table; a commit keeps what was taken, a crash loses what was not committed."""

    def __init__(self, document, directory, bytes_max=1 << 20):
        self.plan = parse_job(document).streams["t"]
        self.directory, self.bytes_max = directory, bytes_max
        self.rows, self._saved = [], None
        self._taken = []
        self._open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.source.close()

    def _open(self):
        self.staging = Staging("t", self.plan.schema, "", self.bytes_max, 2**60)
        if self._saved is not None:
            self.staging.load(self._saved)
        self.source = self.plan.source.build({"t": self.staging}, {"t": self.plan.source})
        self.source.place(self.directory, self.directory)
        self.refused = []
        self.source.on_refused = lambda *what: self.refused.append(what)
        self.source.start()

    def crash(self):
        """The process is killed and starts again from what is committed."""
        self.source.close()
        self._taken = []
        self._open()

    def beat(self, commit=True, take=True):
        """Read, and take what is there."""
        self.source.ingest(boot_us(), WALL_US)
        if not take:
            return
        batch = self.staging.pending()
        table = batch.to_arrow().to_pylist()
        self._taken += [tuple(row.values()) for row in table]
        self.staging.mark_logged()
        self.staging.consume(len(self.staging.chunks()), self.staging.rows)
        if not commit:
            return
        ticket = self.source.seal()
        self.rows += self._taken
        self._taken, self._saved = [], self.staging.save()
        self.source.committed(ticket)

    def until(self, condition, commit=True, take=True):
        """Read, take and commit until a condition holds."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.source.problem()
            self.beat(commit, take)
            time.sleep(0.01)

    @property
    def populated(self):
        """Whether all first rows are staged."""
        return self.staging.producers.populated()

    def table(self, key=None):
        """What the committed rows make: a multiset, or by the key at `key` the rows."""
        if key is None:
            found = Counter()
            for *row, weight in self.rows:
                found[tuple(row)] += weight
            return Counter({row: n for row, n in found.items() if n})
        rows = {}
        for *row, weight in self.rows:
            at = tuple(row[i] for i in key)
            if weight > 0:
                rows[at] = tuple(row)
            else:
                assert rows.pop(at, None) is not None, "a delete of nothing"
        return Counter(rows.values())
