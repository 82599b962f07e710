"""Rows that an operator refuses: set aside with their reasons; a job that stops by them is paused,
and goes on where it was when it is resumed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from edged.beat.quarantine import REASON
from edged.config.code_directories import DIRECTORY_VARIABLE
from tests.beat.loop import Loop, batch
from tests.beat.support import changed, copy_job

TEXT = """
class State:
    sum: int64

class Outputs:
    class sums:
        time: timestamp
        key: int64
        value: int64

def on_row(row, state, out):
    if row.value == 13:
        raise ValueError("thirteen")
    state.sum += row.value
    out.sums(time=row.time, key=row.key, value=state.sum)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job with a kernel, which says what errors do."""
    directory = tmp_path / "operators"
    directory.mkdir()
    (directory / "sums.py").write_text(TEXT)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
    table = {"type": "kernel", "input": "r", "file": "sums.py"}

    def made(on_error):
        sums = {**table, "on_error": on_error}
        document = changed(copy_job(), operators={"sums": sums})
        (sink,) = document["sinks"].values()
        sink["input"] = "sums"
        return document

    return made


def refused(path):
    """The rows of every file of the quarantine, in order of beats."""
    found = []
    for file in sorted(path.glob("quarantine/beat-*-sums.arrow")):
        with pa.ipc.open_file(file) as opened:
            found += opened.read_all().select(["value", REASON]).to_pylist()
    return found


def send(loop, producer, values):
    producer.send(batch(values))
    producer.flush()
    loop.until(lambda: producer.acked == producer.sent, producer=producer)


def test_rows_are_set_aside_and_the_job_goes_on(tmp_path, job):
    store = tmp_path / "store"
    with Loop(job("set_aside"), store) as loop:
        with loop.producer() as producer:
            send(loop, producer, [1, 13, 2])
        assert refused(store) == [{"value": 13, REASON: "ValueError: thirteen"}]
        (event,) = [e for e in loop.events.page(0, 100)["events"] if "refused" in e["kind"]]
        assert event["job"] == loop.plan.name and "thirteen" in event["text"]
        assert loop.heart.quarantine.rows == 1 and loop.job.meta.state == "running"
        assert loop.job.operators["sums"].counters()["rows_in_error"] == 1


def test_a_job_that_stops_is_paused_with_the_reason_and_can_go_on(tmp_path, job):
    store = tmp_path / "store"
    document = job("stop")
    with Loop(document, store) as loop:
        with loop.producer() as producer:
            send(loop, producer, [1, 13, 2])
        loop.until(lambda: loop.job.meta.state == "paused" and loop.job.problem)
        assert loop.job.problem == "operators.sums: ValueError: thirteen"
        loop.change("state", loop.plan.name, state="running")
        assert loop.job.problem == ""
        with loop.producer(id="q") as producer:
            send(loop, producer, [4])
        assert loop.job.operators["sums"].records()[1] == [[7]]
    with Loop(document, store) as loop:
        assert loop.job.operators["sums"].records()[1] == [[7]]
