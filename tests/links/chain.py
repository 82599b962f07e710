"""Daemons in a row, each the receiver of the one before, and what their rows say."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq

from tests.beat.loop import now_us
from tests.beat.support import Daemon, changed, stream

LATENCY = {"latency": "20ms"}


def rows(values):
    """Rows of the present with these values."""
    return {
        "key": pa.array([v % 7 for v in values], pa.int64()),
        "time": pa.array([now_us()] * len(values), pa.timestamp("us", tz="UTC")),
        "value": pa.array(values, pa.int64()),
    }


def hop_job(to, **link):
    """Rows of `r` go on to stream `r` at `to`."""
    given = {"type": "edge", "input": "r", "stream": "r", "to": to, **link}
    return {
        "name": "hop", "streams": {"r": stream()}, "sinks": {"out": given},
        "promises": dict(LATENCY),
    }  # fmt: skip


def last_job(**promises):
    """Rows of `r` are written to files below `out`, a file for each beat with rows."""
    sink = {"type": "file", "input": "r", "path": "out", "every": "10ms"}
    job = {"name": "last", "streams": {"r": stream()}, "sinks": {"out": sink}}
    return changed(job, promises={**LATENCY, **promises})


class Last(Daemon):
    """The last daemon of a chain: `values` are those that it has written, in order."""

    def __init__(self, path, document=None, **more):
        path.mkdir()
        document = last_job() if document is None else document
        document["sinks"]["out"]["path"] = str(path / "out")
        self.before = []
        super().__init__(path, document, **more)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def drained(self, count):
        """Whether the stream has taken so many rows in all, and all are written."""
        return len(self.values()) >= count

    def values(self):
        files = sorted(
            (self.path / "out").glob("*.parquet"), key=lambda p: int(p.stem.split("-")[-1])
        )
        return self.before + [v for f in files for v in pq.read_table(f)["value"].to_pylist()]

    def lose_store(self):
        """Delete the store, and the files, whose values are kept: names begin with beat 1 again."""
        self.before = self.values()
        for directory in (self.store, self.path / "out"):
            shutil.rmtree(directory)


class Hop(Daemon):
    """A daemon that sends on."""

    def __init__(self, path, document, arguments=(), **more):
        path.mkdir()
        super().__init__(path, document, *arguments, **more)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def links(self):
        """State and figures of each instance."""
        return self.status()["jobs"]["hop"]["sinks"]["out"].get("links", [])
