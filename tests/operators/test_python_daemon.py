"""A `python` operator in a daemon: other jobs go on, children end with it, status and metrics."""

from __future__ import annotations

import time

import psutil
import pyarrow as pa
import pytest

from tests.beat.support import ARROW, Daemon, copy_job
from tests.operators.python_jobs import directory, totals_job, until  # noqa: F401

pytestmark = pytest.mark.usefixtures("directory")


def batch(*rows):
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)],
                           schema=ARROW)  # fmt: skip


def children(daemon):
    found = psutil.Process(daemon.process.pid).children()
    return [p for p in found if "edged.operators.python_child" in p.cmdline()]


def test_a_loop_without_end_costs_its_own_rows_alone(tmp_path):
    document = totals_job(file="faulty.py", timeout="400ms", partitions=1)
    document["name"] = "looping"
    document["streams"]["q"] = copy_job()["streams"]["r"]
    document["sinks"]["copies"] = {"type": "pages", "input": "q"}
    with Daemon(tmp_path, document) as daemon:
        until(lambda: len(children(daemon)) == 1)
        now = time.time_ns() // 1000
        with daemon.producer("r") as r, daemon.producer("q", id="other") as q:
            r.send(batch((1, now, 7)))
            r.flush()
            daemon.until(lambda s: _operator(s)["rows_out"] == 1)
            (first,) = children(daemon)
            r.send(batch((1, now + 1, 1002)))
            q.send(batch((1, now + 1, 1)))
            r.flush()
            q.flush()
            status = daemon.until(lambda s: _operator(s)["rows_in_error"] == 1)
            assert status["jobs"]["looping"]["streams"]["q"]["rows"] == 1
            assert "takes longer" in _operator(status)["problem"]
            (file,) = (tmp_path / "store" / "quarantine").glob("beat-*-looping-sums_of.arrow")
            (row,) = pa.ipc.open_file(file).read_all().to_pylist()
            assert row["value"] == 1002 and "takes longer" in row["_reason"]
            r.send(batch((1, now + 2, 5)))
            r.flush()
            status = daemon.until(lambda s: _operator(s)["rows_out"] == 2)
            assert _operator(status)["restarts"] == 1
            assert "no new privileges" in _operator(status)["enforced"]
        (second,) = children(daemon)
        assert second.pid != first.pid and not first.is_running()
        daemon.kill()
        until(lambda: not second.is_running())


def _operator(status):
    return status["jobs"]["looping"]["operators"]["sums_of"]
