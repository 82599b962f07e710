"""Jobs with a `python` operator, driven beat by beat with real child processes."""

from __future__ import annotations

import time

import pytest

from tests.beat.support import SECOND, T0, Live, stream

TOTALS = '''
import struct

import pyarrow as pa


class Operator:
    """The sum of `value` by key so far, in each row."""

    def __init__(self, context):
        self.totals = {}
        self.more = context.settings.get("more", 0)

    def on_batch(self, batch):
        out = []
        for key, value in zip(*(batch.column(n).to_pylist() for n in ("key", "value"))):
            self.totals[key] = self.totals.get(key, 0) + value + self.more
            out.append(self.totals[key])
        columns = [batch.column("time"), batch.column("key"), pa.array(out, pa.int64())]
        return pa.record_batch(columns, names=["time", "key", "total"])

    def save(self):
        return b"".join(struct.pack("<qq", *item) for item in sorted(self.totals.items()))

    def load(self, data):
        self.totals = dict(struct.iter_unpack("<qq", data))
'''
FAULTY = (
    TOTALS.replace(
        "        out = []\n",
        """        out = []
        for value in batch.column("value").to_pylist():
            fault(value)
""",
    )
    + '''

def fault(value):
    """What large values do."""
    import os, signal, time
    if value == 1000:
        raise ValueError("a thousand")
    if value == 1001:
        os.kill(os.getpid(), signal.SIGSEGV)
    while value == 1002:
        pass
    if value == 1003:
        bytearray(1 << 30)
    if value == 1004:
        os._exit(3)
'''
)
COLUMNS = {"time": "timestamp", "key": "int64", "total": "int64"}


def totals_job(**more):
    """Sums by key; more keys of the operator."""
    table = {"type": "python", "input": "r", "file": "totals.py", "keys": ["key"],
             "columns": COLUMNS, "timeout": "30s", **more}  # fmt: skip
    sinks = {"sums": {"type": "pages", "input": "sums_of", "page": "4KiB"}}
    return {"name": "sums", "streams": {"r": stream()}, "operators": {"sums_of": table},
            "sinks": sinks}  # fmt: skip


def rows(start, n, keys=7):
    """Rows of increasing time."""
    return [(i % keys, T0 + i, i % 50) for i in range(start, start + n)]


def expected(given, totals=None):
    """What the totals of these rows are, as a set of rows."""
    totals, found = {} if totals is None else totals, []
    for key, at, value in given:
        totals[key] = totals.get(key, 0) + value
        found.append((at, key, totals[key]))
    return sorted(found)


def until(condition, seconds=120.0):
    """Poll for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class LivePython(Live):
    """Beats of a job with one `python` operator."""

    @property
    def operator(self):
        (found,) = self.job.operators.values()
        return found

    def __exit__(self, *_):
        self.job.schedules.close()
        super().__exit__()

    def ready(self):
        """Wait for the children."""
        until(lambda: self.operator.ready())

    def take(self, given, producer="p"):
        """One beat with these rows; returns what was set aside, as (values, reason)."""
        self.ready()
        if given:
            self.send("r", given, producer)
        self.clock.advance(SECOND)
        self.beat()
        return [
            (sorted(refused.batch["value"].values.tolist()), refused.reasons[0])
            for refused in self.operator.set_aside
        ]

    def settle(self):
        """Beat until nothing waits, and seal the pages."""
        for _ in range(20):
            self.ready()
            self.beat()
            if not self.job.schedules.waiting():
                break
        assert not self.job.schedules.waiting()
        self.beat(flush=True)

    def sums(self):
        return sorted(self.rows("sums"))


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The directory of operator files, with the two above."""
    path = tmp_path / "operators"
    path.mkdir(mode=0o755)
    (path / "totals.py").write_text(TOTALS)
    (path / "faulty.py").write_text(FAULTY)
    monkeypatch.setenv("EDGED_OPERATORS", str(path))
    monkeypatch.delenv("EDGED_OPERATORS_KEPT", raising=False)
    for file in path.iterdir():
        file.chmod(0o644)
    return path
