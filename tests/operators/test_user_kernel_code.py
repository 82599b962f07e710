"""Where code of users comes from, and what becomes of a job whose code changes."""

from __future__ import annotations

import importlib.metadata
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from edged.beat.recover import recover
from edged.cli import cli
from edged.config.code_directories import DIRECTORY_VARIABLE, KEPT_VARIABLE
from edged.data.workers import Workers
from edged.errors import JobError
from edged.graph.document import read
from edged.graph.jobs import jobs
from edged.graph.placement import place
from edged.graph.stages import cut
from edged.job.builder import Job, generator
from edged.job.plan import parse_job
from edged.job.state_carryover import compare
from edged.job.state_transfer import redistributed
from edged.operators.user import code as user_code
from edged.platform.clock import SystemClock
from edged.sinks.base import SinkContext
from edged.store import Store
from tests.beat.support import Live
from tests.graph.support import daemons

TEXT = """
class State:
    sum: int64

class Outputs:
    class sums:
        time: timestamp
        key: string
        sum: int64
    class odd:
        time: timestamp
        key: string

def on_row(row, state, out):
    if row.n == 13:
        raise ValueError("thirteen")
    state.sum += row.n
    out.sums(time=row.time, key=row.key, sum=state.sum)
    if row.n % 2 == 1:
        out.odd(time=row.time, key=row.key)
"""
COLUMNS = {"time": "timestamp", "key": "string", "n": "int64"}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """The directories of code and of kept texts, for one test."""
    found = tmp_path / "operators"
    found.mkdir(mode=0o755)
    (found / "sums.py").write_text(TEXT)
    (found / "sums.py").chmod(0o644)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(found))
    monkeypatch.delenv(KEPT_VARIABLE, raising=False)
    return found


def document(**changes):
    made = Job("j")
    rows = made.stream("r", generator("full", rows=9), COLUMNS, time="time")
    sums = rows.kernel("sums", file="sums.py", keys=["key"])
    sums.pages("sums_out")
    sums.output("odd").pages("odd_out")
    found = made.document()
    found["operators"]["sums"] |= changes
    return found


def fault(**changes):
    with pytest.raises(JobError) as caught:
        parse_job(document(**changes))
    return str(caught.value)


def test_a_job_runs_the_code_and_pins_it(tmp_path):
    with Live(document()) as live:
        live.send("r", [(1, "a", 2), (2, "b", 3), (3, "a", 13), (4, "a", 5)])
        live.drain()
        assert live.rows("sums_out") == [(1, "a", 2), (2, "b", 3), (4, "a", 7)]
        assert live.rows("odd_out") == [(2, "b"), (4, "a")]
        assert len(live.plan.document["operators"]["sums"]["sha256"]) == 64


def test_files_outside_and_files_that_others_write_are_refused(directory):
    assert "operators.sums.file: '../sums.py' is no name" in fault(file="../sums.py")
    assert "is no name of a file" in fault(file="/etc/passwd")
    assert "operators.sums.file: " in fault(file="none.py") and "No such file" in fault(
        file="no.py"
    )
    assert "names both" in fault(package="x")
    (directory / "sums.py").chmod(0o666)
    assert "can be written by others" in fault()
    (directory / "sums.py").chmod(0o644)
    directory.chmod(0o777)
    assert "can be written by others" in fault()
    directory.chmod(0o755)
    (directory / "link.py").symlink_to("/etc/hostname")
    assert "leads out of" in fault(file="link.py")


def test_code_of_packages_is_found_by_its_entry_point():
    found = document()
    del found["operators"]["sums"]["file"]
    found["operators"]["sums"]["package"] = "pairs"
    with pytest.raises(
        JobError, match=r"operators.sums.package: no installed package has the code"
    ):
        parse_job(found)


def test_code_of_a_package_is_its_module_as_text(directory, monkeypatch):
    (directory / "packaged_sums.py").write_text("import nothing_at_all\n")
    monkeypatch.syspath_prepend(str(directory))
    point = importlib.metadata.EntryPoint("sums", "packaged_sums", user_code.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    found = user_code.find("operators.sums", {"package": "sums"})
    assert found.text == "import nothing_at_all\n" and found.origin == "packaged_sums"
    with pytest.raises(JobError, match=r"operators.sums.package: .*did you mean sums"):
        user_code.find("operators.sums", {"package": "sum"})


def test_a_stored_job_keeps_the_text_that_it_ran_with(directory, tmp_path, monkeypatch):
    monkeypatch.setenv(KEPT_VARIABLE, str(tmp_path / "kept"))
    old = parse_job(document())
    (directory / "sums.py").write_text(TEXT.replace("+=", "-="))
    again = parse_job(old.document)
    assert again.operators["sums"].declared.code.text == TEXT
    assert compare(old, again).kept == ("streams.r", "operators.sums", "sinks.sums_out",
                                        "sinks.odd_out")  # fmt: skip
    new = parse_job(document())
    (refused,) = compare(old, new).refused
    assert "its state does not fit: sha256 was" in str(refused)
    (directory / "sums.py").unlink()
    assert parse_job(old.document).operators["sums"].declared.code.text == TEXT
    monkeypatch.delenv(KEPT_VARIABLE)
    with pytest.raises(JobError, match=r"operators.sums.file"):
        parse_job(old.document)


def test_code_without_state_is_replaced_at_will(directory):
    text = TEXT.replace("class State:\n    sum: int64\n", "").replace(
        "state.sum += row.n\n", "k = 1\n"
    )
    text = text.replace("sum=state.sum", "sum=k")
    (directory / "sums.py").write_text(text)
    old = parse_job(document())
    (directory / "sums.py").write_text(text.replace("k = 1", "k = 2"))
    assert not compare(old, parse_job(document())).refused


def test_a_graph_pins_the_code_for_all_daemons():
    found = document()
    found["daemons"] = daemons(("gate", "site"))
    found["streams"]["r"]["place"] = "gate"
    found["operators"]["sums"]["place"] = ["gate", "site"]
    found["links"] = {"by-key": {"from": "r", "to": "sums", "by": ["key"]}}
    plan, wrong = read(found)
    assert not wrong
    made = cut(plan)
    documents = [
        j.document for j in jobs(made, place(made, 1 << 20, {})[0])[0] if j.stage == "sums"
    ]
    digest = plan.whole.operators["sums"].declared.code.sha256
    assert [d["operators"]["sums"]["sha256"] for d in documents] == [digest, digest]
    assert parse_job(documents[0]).document == documents[0]


def test_records_are_dealt_out_to_new_instances():
    with Live(document()) as live:
        live.send("r", [(i, chr(97 + i % 9), i) for i in range(40)])
        live.beat()
        state = live.job.save()
        parts = redistributed(live.plan, {"r": ["key"]}, [state], 3, lambda h: (h % 3).astype("i8"))
        whole = redistributed(live.plan, {"r": ["key"]}, parts, 1, lambda h: (h % 1).astype("i8"))
        assert sum(len(p["operators/sums/groups"]) for p in parts) == 9
        got = {tuple(row[-1:]) for row in whole[0]["operators/sums/groups"].tolist()}
        assert got == {tuple(row[-1:]) for row in state["operators/sums/groups"].tolist()}


def test_validate_names_line_and_column(directory, tmp_path):
    (directory / "sums.py").write_text(TEXT.replace("state.sum += row.n", "state.sum += row.m"))
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document()))
    done = CliRunner().invoke(cli, ["validate", str(path), "--json"])
    (found,) = json.loads(done.output)["faults"]
    assert found["path"] == "operators.sums.file"
    assert found["problem"] == "sums.py:17:18: the input has no column m"
    (directory / "sums.py").write_text(TEXT.replace("state.sum += row.n", "state.sum += row.n / 2"))
    done = CliRunner().invoke(cli, ["validate", str(path), "--json"])
    (found,) = json.loads(done.output)["faults"]
    assert found["problem"].startswith("sums.py:17:5: expected an integer, not float64")


def test_an_operator_alone_on_a_file(directory, tmp_path):
    table = pa.table(
        {
            "time": pa.array([1, 2, 3], pa.timestamp("us", tz="UTC")),
            "key": pa.array(["a", "a", "b"]),
            "n": pa.array([1, 13, 4], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    command = ["operator", "test", str(directory / "sums.py"), "--input",
               str(tmp_path / "rows.parquet"), "--keys", "key"]  # fmt: skip
    done = CliRunner().invoke(cli, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["rows"] == 3 and found["outputs"] == {"sums": 2, "odd": 1}
    assert found["first"]["sums"][1]["sum"] == 4 and found["rows_in_error"] == 1
    assert found["refused"][0]["reason"] == "ValueError: thirteen"
    assert found["state"] == [{"key": "a", "sum": 1}, {"key": "b", "sum": 4}]
    assert found["ns_a_row"] > 0
    shown = CliRunner().invoke(cli, command).output
    assert "ValueError: thirteen" in shown and "output odd: 1 rows" in shown
    assert os.environ[DIRECTORY_VARIABLE] == str(directory)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_replay_with_other_workers_gives_the_same_pages_and_state(tmp_path, snapshot):
    path = tmp_path / "store"
    with Live(document(), path, workers=3) as live:
        for number in range(6):
            rows = [(i, chr(97 + i * 7 % 11), i % 15) for i in range(number * 50, number * 50 + 50)]
            live.send("r", rows)
            live.beat(flush=number % 2 == 1)
            if snapshot and number == 2:
                live.snapshot()
        saved = live.job.save()
    workers, store = Workers(12), Store.open(path)
    context = SinkContext("device", store.device_epoch, "/nonexistent", workers)
    found = recover(store, [parse_job(document())], context, SystemClock())  # compares the pages
    again = found.jobs[0].save()
    for key in saved:
        if key.startswith("operators/"):
            assert np.array_equal(saved[key], again[key]), key
    store.close()
    workers.close()
