"""A device, a collector and three producers for tests of upgrades.

Device and collector are processes of any release: of this tree, or of an installed wheel
(`tests/upgrade/releases.py`).  The rows are a function of producer and batch, so that the results
can be computed and a store can be continued years later.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from edged.client import Producer
from edged.control.door import ask
from edged.data.schema import Schema
from edged.errors import ConfigError
from edged.pages.format import parse_header, verify
from edged.pages.read import read_page
from edged.platform.processes import free_port
from edged.uplink import telemetry
from tests.central.support import read_landing
from tests.system.support import assert_same

DEVICE = "golden"
STREAM_OF = {"a0": "a", "a1": "a", "b0": "b"}
START_US = 1_704_067_200_000_000
BATCH_ROWS, BATCH_US, KEYS = 40, 100_000, 100
TIMESTAMP = pa.timestamp("us", tz="UTC")
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("key", pa.int32(), nullable=False),
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("note", pa.string()),
    ]
)
TRUTHS = {
    "pairs": """SELECT a.key AS key, a.time AS time, a.id AS a_id, b.id AS b_id, a.note AS note
FROM a JOIN b ON a.key = b.key
 AND b.time - a.time BETWEEN INTERVAL '-200 milliseconds' AND INTERVAL '100 milliseconds'""",
    "counts": """SELECT key, time_bucket(INTERVAL '300 milliseconds', time) AS window_start,
 count(*) AS n, count(note) AS notes, sum(id) AS ids FROM a GROUP BY ALL""",
}
SMALL = {"latency": "100ms", "memory": "16MiB", "durability": "exactly_once"}
PAUSED = {
    "name": "paused",
    "promises": SMALL,
    "streams": {"g": {"source": {"type": "generator", "rate": 1, "rows": 5},
                      "columns": {"time": "timestamp", "x": "float64"}, "time": "time"}},
    "sinks": {"idle": {"type": "pages", "input": "g"}},
}  # fmt: skip
"""A job that an operator made and paused: it stays paused."""
PLUGGED = {
    "name": "plugged",
    "promises": SMALL,
    "streams": {"g": {"source": {"type": "generator", "rate": 100, "rows": 1000},
                      "columns": {"time": "timestamp", "x": "float64"}, "time": "time"}},
    "operators": {"big": {"type": "filter", "input": "g", "where": "twice(x) > -1e300"}},
    "sinks": {"plugged": {"type": "pages", "input": "big", "page": "4KiB"}},
}  # fmt: skip
"""A job that needs a plug-in."""


def job(address):
    """Two streams joined into pages, one of them counted in windows."""
    stream = {
        "source": {"type": "tcp", "listen": address},
        "columns": {"id": "int64", "key": "int32", "time": "timestamp", "note": "string?"},
        "time": "time",
        "lateness": "50ms",
        "idle_after": "12h",
    }
    joined = {
        "type": "interval_join", "left": "a", "right": "b", "on": ["key"],
        "before": "200ms", "after": "100ms",
        "columns": {"key": "left.key", "time": "left.time", "a_id": "left.id", "b_id": "right.id",
                    "note": "left.note"},
    }  # fmt: skip
    counted = {
        "type": "window", "input": "a", "keys": ["key"], "size": "300ms",
        "aggregates": {"n": "count(*)", "notes": "count(note)", "ids": "sum(id)"},
    }  # fmt: skip
    pages = {"type": "pages", "page": "4KiB"}
    return {
        "name": "upgraded",
        "promises": SMALL,
        "streams": {"a": stream, "b": stream},
        "operators": {"joined": joined, "counted": counted},
        "sinks": {
            "pairs": {**pages, "input": "joined", "partitions": 2, "partition_by": ["key"]},
            "counts": {**pages, "input": "counted"},
        },
    }


def rows(producer, seq):
    """Batch `seq` of a producer: unique ids, times out of order within the lateness."""
    number = 1 + list(STREAM_OF).index(producer)
    ids = (number << 32) + (seq << 16) + np.arange(BATCH_ROWS)
    mixed = _mix(ids)
    due = START_US + (seq - 1) * BATCH_US + np.arange(BATCH_ROWS) * BATCH_US // BATCH_ROWS
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array((mixed % KEYS).astype(np.int32)),
            pa.array(due - (mixed // KEYS % 50_000).astype(np.int64)).cast(TIMESTAMP),
            pa.array([None if i % 5 == 0 else f"note {i % 7}" for i in ids.tolist()]),
        ],
        schema=ARROW,
    )


def _mix(ids):
    """Pseudorandom numbers that no library's next version changes."""
    with np.errstate(over="ignore"):
        return (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)


class Part:
    """A process of a release; its first line of JSON says that it is ready."""

    def __init__(self, words, directory, name, site=None):
        self.log = directory / f"{name}.log"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        code = Path(__file__).parents[2] if site is None else site
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edged", *map(str, words)],
                cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.ready = {}

    def wait(self):
        """Return when it is ready."""
        line = self.process.stdout.readline()
        if not line:
            code = self._reap()
            raise AssertionError(f"exit {code}: {self.log.read_text(errors='replace')[-3000:]}")
        self.ready = json.loads(line)
        return self

    def kill(self):
        self.process.kill()
        self._reap()

    def stop(self):
        """End it in order; returns the exit status."""
        self.process.terminate()
        return self._reap()

    def _reap(self):
        self.process.wait(120)
        self.process.stdout.close()
        return self.process.returncode


class Fleet:
    """One directory with store and landing; leaving the `with` ends all processes."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.store, self.landing = self.directory / "store", self.directory / "landing"
        self.door = self.directory / "door"
        self.collector_port = free_port()
        self.device = self.collector = None
        self._log = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for part in (self.device, self.collector):
            if part is not None and part.process.poll() is None:
                part.kill()

    @property
    def address(self):
        """Where the producers connect: the port of the first start, since the job names it."""
        file = self.directory / "job.json"
        if not file.exists():
            file.write_text(json.dumps(job(f"127.0.0.1:{free_port()}")))
        return json.loads(file.read_text())["streams"]["a"]["source"]["listen"]

    def collect(self, site=None):
        """Start the collector."""
        words = ("central", "collect", "--landing", self.landing, "--json", "--segment-bytes",
                 16384, "--listen", f"127.0.0.1:{self.collector_port}")  # fmt: skip
        self.collector = self._part(words, "collector", site)
        return self.collector

    def run(self, site=None, uplink=None):
        """Start the device; `uplink`: another port than the collector's."""
        assert self.address
        centre = f"http://127.0.0.1:{uplink or self.collector_port}"
        words = ("run", self.directory / "job.json", "--store", self.store, "--device", DEVICE,
                 "--door", self.door, "--uplink", centre, "--json", "--workers", 1,
                 "--store-max", 160 << 20, "--snapshot-bytes", 65536,
                 "--board", "none")  # fmt: skip
        self.device = self._part(words, "device", site)
        return self.device

    def _part(self, words, name, site):
        self._log += 1
        return Part(words, self.directory, f"{self._log}-{name}", site).wait()

    def send(self, last, end=False):
        """Send the batches up to `last` of every producer that are not committed yet; returns how
        many were committed before."""
        producers = {
            name: Producer(self.address, stream, ARROW, name, timeout_s=300)
            for name, stream in STREAM_OF.items()
        }
        with contextlib.ExitStack() as opened:
            for producer in producers.values():
                opened.enter_context(producer)
            found = {name: producer.connect() for name, producer in producers.items()}
            for seq in range(1 + min(found.values()), last + 1):
                for name, producer in producers.items():
                    if seq > found[name]:
                        producer.send(rows(name, seq))
                for producer in producers.values():
                    producer.flush()
            if end:
                for producer in producers.values():
                    producer.end()
        return found

    def status(self):
        return ask(self.door, "status")

    def until(self, holds):
        """Wait until `holds(status)`; returns that status."""
        deadline, status = time.monotonic() + 120, None
        while time.monotonic() < deadline:
            with contextlib.suppress(ConfigError):
                status = self.status()
                if holds(status):
                    return status
            assert self.device.process.poll() is None, self.device.log.read_text()[-3000:]
            time.sleep(0.05)
        raise AssertionError(status)

    def finish(self, last):
        """Send the rest, end the streams, wait for the last acknowledgement; returns the number of
        landed rows by stream, which are exactly those that DuckDB computes."""
        self.send(last, end=True)
        self.until(lambda s: s["jobs"]["upgraded"]["ended"] and s["store"]["backlog_pages"] == 0)
        return assert_landed(self.landing, last)


def assert_landed(landing, last):
    """The landing holds each page of the device once, without a gap, and exactly the rows that
    DuckDB computes from batches 1 to `last`.  Returns the number of rows by stream."""
    seqs, tables, epochs = defaultdict(list), defaultdict(list), set()
    for row, page in read_landing(landing):
        verify(page)
        header = parse_header(page)
        if header.stream == telemetry.STREAM or header.device != DEVICE:
            continue
        epochs.add(header.epoch)
        seqs[header.stream, header.partition].append(row[5])
        text = (Path(landing) / f"schemas/{header.stream}@{header.version}.json").read_text()
        tables[header.stream].append(read_page(page, Schema.from_json(text)))
    assert len(epochs) == 1, "the store is the same one"
    for key, found in seqs.items():
        assert sorted(found) == list(range(1, len(found) + 1)), key
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET threads = 1")
        for stream in "ab":
            sent = [
                rows(name, seq)
                for name, of in STREAM_OF.items()
                if of == stream
                for seq in range(1, last + 1)
            ]
            db.register(stream, pa.Table.from_batches(sent))
        counts = {}
        for stream, truth in TRUTHS.items():
            db.register("landed", pa.Table.from_batches(tables[stream]))
            counts[stream] = assert_same(db, stream, truth, "landed")
    return counts
