"""A `file` source whose stream has ended goes on with the rows of a later file."""

from __future__ import annotations

import datetime

import pytest

from edged.sources.reading import Reader
from tests.beat.loop import Loop
from tests.beat.support import changed, copy_job

DAY = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)


def write(path, first, count=5):
    """Rows of consecutive minutes."""
    lines = [f"0,{(DAY + datetime.timedelta(minutes=first + i)).isoformat()},{first + i}"
             for i in range(count)]  # fmt: skip
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in ([] if file.tell() else [HEAD]) + lines))


HEAD = "key,time,value"


def job(path):
    document = copy_job(max_ahead="36500d")
    document["streams"]["r"]["source"] = {"type": "file", "path": str(path)}
    window = {"type": "window", "input": "r", "keys": ["key"], "size": "2min",
              "aggregates": {"n": "count(*)"}}  # fmt: skip
    sinks = {"counts": {"type": "pages", "input": "counted", "page": "4KiB"}}
    return changed(document, operators={"counted": window}, sinks=sinks)


@pytest.mark.parametrize("later", ["b.csv", "a.csv"])
def test_rows_of_a_later_file_open_the_stream_again_after_a_restart(tmp_path, later):
    files, store = tmp_path / "files", tmp_path / "store"
    files.mkdir()
    write(files / "a.csv", 0)
    for run, (rows, groups) in enumerate([(5, 3), (10, 6), (10, 6), (15, 9)]):
        if run in (1, 3):
            write(files / later, 5 * run - (5 if run == 3 else 0))
        with Loop(job(files), store) as loop:
            stream = loop.job.streams["r"]
            loop.until(lambda s=stream, n=rows: s.rows == n)
            loop.until(loop.inputs.sources[0].finished)
            loop.until(loop.job.ended)
            assert stream.late == 0
            counted = loop.job.operators["counted"].counters()
            assert (counted["groups"], counted["groups_emitted"]) == (0, groups)


def test_files_at_whose_end_the_stream_was_are_not_read_again(tmp_path, monkeypatch):
    write(tmp_path / "a.csv", 0)
    with Loop(job(tmp_path / "*.csv"), tmp_path / "store") as loop:
        loop.until(loop.job.ended)
    monkeypatch.setattr(Reader, "batches", lambda *_: pytest.fail("it is read"))
    with Loop(job(tmp_path / "*.csv"), tmp_path / "store") as loop:
        loop.until(lambda: loop.inputs.sources[0].finished())
        assert loop.job.ended() and loop.job.streams["r"].rows == 5
