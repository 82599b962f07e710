"""Collector, daemon and producers as processes on loopback, and the check of the landing: the law.

The law: what was acknowledged is neither lost nor repeated.
"""

import contextlib
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import duckdb
import pyarrow as pa

from edged.control.door import ask
from edged.data.schema import Schema
from edged.errors import ConfigError
from edged.pages.format import parse_header, verify
from edged.pages.read import read_page
from edged.platform.processes import ChildProcess, free_port
from edged.uplink import telemetry
from tests.central.support import read_landing
from tests.system import producers

DEVICE = "edge-1"


def law_job(address, latency="200ms", memory="256MiB"):
    """Two streams are joined into pages, one is windowed into pages."""
    source = {"type": "tcp", "listen": address}
    times = {"time": "time", "lateness": producers.LATENESS_US, "idle_after": "10min"}
    columns = {"id": "int64", "key": "int32", "time": "timestamp"}
    return {
        "name": "law",
        "promises": {"latency": latency, "memory": memory, "durability": "exactly_once"},
        "streams": {
            "a": {"source": source, "columns": {**columns, "note": "string?"}, **times},
            "b": {"source": source, "columns": columns, **times},
        },
        "operators": {
            "joined": {
                "type": "interval_join",
                "left": "a",
                "right": "b",
                "on": ["key"],
                "before": "400ms",
                "after": "200ms",
                "columns": {
                    "key": "left.key",
                    "time": "left.time",
                    "a_id": "left.id",
                    "b_id": "right.id",
                    "note": "left.note",
                },
            },
            "counted": {
                "type": "window",
                "input": "a",
                "keys": ["key"],
                "size": "10s",
                "aggregates": {"n": "count(*)", "notes": "count(note)", "ids": "sum(id)"},
            },
        },
        "sinks": {
            "pairs": {
                "type": "pages",
                "input": "joined",
                "stream": "pairs",
                "partitions": 4,
                "partition_by": ["key"],
                "page": "64KiB",
            },
            "counts": {"type": "pages", "input": "counted", "stream": "counts", "page": "64KiB"},
        },
    }


PAIRS = """SELECT a.key AS key, a.time AS time, a.id AS a_id, b.id AS b_id, note
FROM a JOIN b ON a.key = b.key
 AND b.time - a.time BETWEEN INTERVAL '-400 milliseconds' AND INTERVAL '200 milliseconds'"""
COUNTS = """SELECT key, time_bucket(INTERVAL '10 seconds', time) AS window_start,
 count(*) AS n, count(note) AS notes, sum(id) AS ids FROM a GROUP BY ALL"""


class System:
    """Collector, daemon and producers in one directory; leaving the `with` ends all processes."""

    def __init__(self, directory):
        self.directory = directory
        self.landing, self.store = directory / "landing", directory / "store"
        self.door, self.journal = directory / "door", directory / "journal.jsonl"
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        self.collector_address = f"127.0.0.1:{free_port()}"
        self.parts = {}
        self.config = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, trace):
        if kind is not None:
            with contextlib.suppress(ConfigError):
                say(json.dumps(ask(self.door, "status", timeout_s=3), indent=1))
        for part in reversed(self.parts.values()):
            part.stop(5.0 if kind is None else 0.5)
        if kind is not None:
            for log in sorted(self.logs.iterdir()):
                tail = log.read_text(errors="replace").splitlines()[-15:]
                say(f"--- {log.name}", *tail)

    def part(self, name, *arguments):
        """Start `python -m …`; it is stopped with the system."""
        made = ChildProcess(name, arguments, self.logs)
        self.parts[name] = made
        return made

    def collect(self, *options):
        """Start the collector; returns when it is ready."""
        part = self.part("collector", *self.collect_command(*options))
        part.ready()
        return part

    def collect_command(self, *options):
        return ("edged", "central", "collect", "--landing", str(self.landing),
                "--listen", self.collector_address, "--json", *options)  # fmt: skip

    def run(self, job, *options, name="daemon", store=None, door=None):
        """Start the daemon; returns when it is ready."""
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(job))
        part = self.part(
            name, "edged", "run", str(path), "--store", str(store or self.store), "--json",
            "--device", DEVICE, "--uplink", f"http://{self.collector_address}",
            "--door", str(door or self.door), *options,
        )  # fmt: skip
        part.ready(300)
        return part

    def produce(self, of=2, batch=400, period_s=0.1, **more):
        """Start `of` producers a stream; returns when each has a committed batch."""
        named = [{"id": f"{s}{i}", "stream": s} for s in "ab" for i in range(of)]
        self.config = {
            "address": self.address,
            "producers": [{**p, "number": n + 1} for n, p in enumerate(named)],
            "batch": batch,
            "period_s": period_s,
            "began_s": time.time(),
            "batches_max": 1 << 30,
            "unacked_bytes_max": 64 << 20,
            "journal": str(self.journal),
            **more,
        }
        path = self.directory / "producers.json"
        path.write_text(json.dumps(self.config))
        part = self.part("producers", "tests.system.producers", str(path))
        until(lambda: len(self.acked()) == len(named), 120, "first acks", part)
        return part

    def acked(self):
        """Producer -> its last acknowledged batch, from the producers' journal."""
        found = {}
        if self.journal.exists():
            for line in self.journal.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # torn by a kill of the writer
                    entry = json.loads(line)
                    found[entry["producer"]] = max(entry["acked"], found.get(entry["producer"], 0))
        return found

    def end_streams(self, timeout_s=120):
        """Make the producers end their streams; returns producer -> batches sent."""
        process = self.parts["producers"].process
        deadline = time.monotonic() + 120
        while not _catches(process.pid, signal.SIGUSR1):  # it may have been started just now
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        return self.end_streams_by_themselves(timeout_s)

    def end_streams_by_themselves(self, timeout_s=120):
        """Wait until the producers have sent `batches_max` batches each; as `end_streams`."""
        parts = self.parts["producers"], self.parts["daemon"], self.parts["collector"]
        return await_event("ended", timeout_s, *parts)["ended"]

    def status(self):
        return ask(self.door, "status")

    def replace_job(self, job):
        return ask(self.door, "replace", job=job)

    def drain(self, timeout_s=120):
        """Wait until the jobs have ended and all pages are acknowledged; the last status."""
        last = {}

        def drained():
            with contextlib.suppress(ConfigError):
                last.update(self.status())
                ended = all(j["ended"] for j in last["jobs"].values())
                return ended and last["store"]["backlog_pages"] == 0
            return False

        until(drained, timeout_s, lambda: f"drained: {last}", self.parts["daemon"])
        return last


def await_event(event, timeout_s, part, *others):
    """The first event of `part` with the key `event`; fails where one of `others` dies."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            found = part.events.get(timeout=0.1)
            if event in found:
                return found
        for each in (part, *others):
            each.check()
    raise AssertionError(f"{part.name} does not say {event!r} within {timeout_s} s")


def until(done, timeout_s, what, *parts):
    """Wait until `done()`; fails after `timeout_s`, or where one of `parts` has died."""
    end = time.monotonic() + timeout_s
    while not done():
        for part in parts:
            part.check()
        assert time.monotonic() < end, (
            f"not within {timeout_s} s: {what() if callable(what) else what}"
        )
        time.sleep(0.05)


class Killer(threading.Thread):
    """Kills a process with SIGKILL at random moments, its start included, and restarts it.

    `progress` is a number that grows while the process works; every third life lasts until it has
    grown, however slow the machine is.
    """

    def __init__(self, part, kills, seed, reach_s, progress=None):
        super().__init__(daemon=True)
        self.part, self.kills, self.reach_s = part, kills, reach_s
        self.progress = progress
        self.dice = random.Random(seed)
        self.done = 0
        self.found_dead = []

    def run(self):
        for life in range(self.kills):
            if self.progress is not None and life % 3 == 0:
                self._let_work()
            time.sleep(self.dice.uniform(0.05, self.reach_s))
            if not self.part.running():
                self.found_dead.append(self.part.process.returncode)
            self.part.kill()
            self.done += 1
            time.sleep(self.dice.choice((0.0, 0.0, 0.0, 0.5)))
            self.part.restart()

    def _let_work(self):
        before, end = self.progress(), time.monotonic() + 120
        while self.progress() <= before and time.monotonic() < end:
            time.sleep(0.2)


def assert_exactly_once(landing, config, batches, **more):
    """The landing holds what DuckDB computes from all sent rows; each page is whole and in order.

    `more` are further streams of pages and their queries.  Returns the landed rows by stream.
    """
    seqs, tables = defaultdict(list), defaultdict(list)
    for row, page in read_landing(landing):
        verify(page)
        header = parse_header(page)
        seqs[header.device, header.epoch, header.stream, header.partition].append(header.seq)
        assert (row[5], row[4]) == (header.seq, header.partition)
        if header.stream == telemetry.STREAM:  # telemetry, no result of a job
            continue
        text = (Path(landing) / f"schemas/{header.stream}@{header.version}.json").read_text()
        tables[header.stream].append(read_page(page, Schema.from_json(text)))
    assert len({(device, epoch) for device, epoch, _, _ in seqs}) == 1
    for key, found in seqs.items():
        if key[2] == telemetry.STREAM:
            assert len(set(found)) == len(found), "reports are numbered with gaps, never twice"
            continue
        assert sorted(found) == list(range(1, len(found) + 1)), f"seqs of {key}"
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET threads = 2")
        for stream in "ab":
            db.register(stream, producers.all_rows(stream, config, batches))
        rows = {}
        truths = {"pairs": PAIRS, "counts": COUNTS, **more}
        assert tables.keys() == truths.keys()
        for stream, truth in truths.items():
            db.register("landed", pa.Table.from_batches(tables[stream]))
            rows[stream] = assert_same(db, stream, truth, "landed")
    return rows


def assert_same(db, name, truth, have):
    """The table `have` and the query `truth` hold the same rows as often; returns their number."""
    db.execute(f"CREATE OR REPLACE TEMP TABLE truth AS {truth}")
    names = ", ".join(c[0] for c in db.execute("DESCRIBE truth").fetchall())
    have = f"SELECT {names} FROM {have}"
    for more, less, what in ((have, "FROM truth", "too much"), ("FROM truth", have, "missing")):
        rest = f"({more}) EXCEPT ALL ({less})"
        found = db.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({rest}) LIMIT 5").fetchall()
        assert not found, f"{what} in {name}: {found}"
    count = db.execute("SELECT count(*) FROM truth").fetchall()[0][0]
    assert count > 0, f"{name}: nothing to compare"
    return count


def seed():
    """EDGED_SEED, which an earlier run has printed, or a fresh seed."""
    number = int(os.environ.get("EDGED_SEED") or random.SystemRandom().randrange(1 << 32))
    say(f"EDGED_SEED={number}")
    return number


def say(*lines):
    """Print lines, which pytest shows where the test fails."""
    sys.stdout.write("\n".join([*lines, ""]))


def _catches(pid, number):
    """Whether the process has a handler for the signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)
