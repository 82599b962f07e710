"""Code that raises, crashes, hangs or grows in a `python` operator, and wrong documents."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from edged.beat.recover import recover
from edged.errors import JobError
from edged.job.explain import explain
from edged.job.plan import parse_job
from edged.store import Store
from tests.beat.support import HandClock, changed
from tests.operators.python_jobs import (
    LivePython,
    directory,  # noqa: F401
    expected,
    rows,
    totals_job,
)

pytestmark = pytest.mark.usefixtures("directory")


@pytest.mark.parametrize(
    ("value", "reason", "timeout"),
    [
        (1000, "ValueError: a thousand", "30s"),
        (1001, "its process was ended by SIGSEGV", "30s"),
        (1002, "takes longer than its timeout", "300ms"),
        (1003, "MemoryError", "30s"),
        (1004, "its process has ended with 3", "30s"),
    ],
)
def test_rows_on_which_code_fails_are_set_aside_and_all_else_goes_on(
    tmp_path, value, reason, timeout
):
    """With its state, and over a restart."""
    path = tmp_path / "store"
    document = totals_job(file="faulty.py", timeout=timeout)
    with LivePython(document, path) as live:
        live.take(rows(0, 14))
        bad = [(3, time_us, value) for _, time_us, _ in rows(14, 1)]
        aside = live.take([*rows(14, 14), *bad])
        ((values, text),) = aside
        assert value in values and text.startswith(reason)
        assert live.facts[-1].ran["sums_of"]["aside"]
        live.take(rows(28, 14))
        live.beat(flush=True)
        good = [row for row in rows(0, 42) if not (row[0] == 3 and 14 <= row[2] < 28)]
        live.settle()
        assert live.sums() == expected(good)
        if value == 1001:
            check_replay(live, path)


def check_replay(live, path):
    live.store.close()
    live.store = Store.open(path)
    live.job.schedules.close()
    found = recover(live.store, [live.plan], live.context, HandClock())
    assert found.replayed_beats, "and the pages were equal"
    found.jobs[0].schedules.close()


def test_a_child_that_fails_starts_again_with_backoff_and_its_rows_wait():
    document = totals_job(file="faulty.py", keys=["key"], partitions=1)
    with LivePython(document) as live:
        live.take([(1, 1_750_000_000_000_001, 1004)])
        assert not live.operator.ready() and live.operator.due_us() > 0
        live.send("r", rows(3, 5))
        live.beat()
        assert live.job.schedules.rows("sums_of") == 5 and not live.facts[-1].ran
        live.settle()
        assert live.sums() == expected(rows(3, 5))


def test_on_error_stop_names_the_problem():
    with LivePython(totals_job(file="faulty.py", on_error="stop")) as live:
        assert live.take([(1, 1_750_000_000_000_001, 1000)])
        assert "ValueError: a thousand" in live.operator.problem


def test_signals_that_end_the_daemon_do_not_end_its_children():
    with LivePython(totals_job()) as live:
        live.take(rows(0, 5))
        (child,) = live.operator.children()
        for ends in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child.pid, ends)
        assert live.take(rows(5, 5)) == [] and live.operator.counters()["restarts"] == 0
        live.settle()
        assert live.sums() == expected(rows(0, 10))


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_child_for_which_there_are_no_descriptors_starts_later_and_leaks_none():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with LivePython(totals_job()) as live:
        before = descriptors()
        for room in range(6):
            live.operator._retry_us = 0
            free = os.dup(0)
            os.close(free)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, limits[1]))
                assert not live.operator.ready()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert "cannot start" in live.operator.counters()["problem"]
            assert descriptors() == before
        live.take(rows(0, 5))
        live.settle()
        assert live.sums() == expected(rows(0, 5))


def test_a_child_that_answers_garbage_at_its_start_is_refused(directory):  # noqa: F811
    (directory / "garbage.py").write_text(
        "import os, struct, sys\n"
        "text = b'{\"ready\": 3}'\n"
        "os.write(int(sys.argv[1]), struct.pack('<I', len(text)) + text)\n"
        "def on_batch(b, c): 0\n"
    )
    with LivePython(totals_job(file="garbage.py")) as live:
        live.operator.ready()
        live.operator._children[0].await_start()
        assert "answers garbage" in live.operator._children[0].refused


def test_code_that_does_not_load_keeps_its_rows_waiting(directory):  # noqa: F811
    (directory / "broken.py").write_text(
        "import nothing_of_this_name\n" + "def on_batch(b, c): 0\n"
    )
    with LivePython(totals_job(file="broken.py")) as live:
        live.send("r", rows(0, 3))
        live.beat()
        child = live.operator._children[0]
        child.await_start()
        assert not live.operator.ready()
        assert "nothing_of_this_name" in live.operator.counters()["problem"]
        assert live.job.schedules.rows("sums_of") == 3


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("def on_batch(batch, context)\n    pass\n", "1:", "expected ':'"),
        ("x = 1\n", "1:1", "defines no operator"),
        ("class Operator:\n    pass\n", "1:1", "has no on_batch"),
        ("def on_batch(batch): pass\n", "1:1", "other parameters"),
        ("class Operator:\n    def on_batch(self, b): pass\n    def save(self): pass\n", "3:5",
         "save without load"),
    ],
)  # fmt: skip
def test_wrong_code_is_refused_with_line_and_column(directory, text, at, what):  # noqa: F811
    (directory / "wrong.py").write_text(text)
    with pytest.raises(JobError, match=what) as refused:
        parse_job(totals_job(file="wrong.py"))
    assert refused.value.path == "operators.sums_of.file"
    assert f"wrong.py:{at}" in str(refused.value)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"keys": ["none"]}, "keys[0]"),
        ({"partitions": 3}, "partitions"),
        ({"processes": 65}, "processes"),
        ({"partitions": 2, "processes": 3}, "processes"),
        ({"columns": {"key": "int64"}}, "time"),
        ({"columns": {"time": "int64"}}, "time"),
        ({"outputs": {"A": {}}}, "columns"),
        ({"on_error": "weep"}, "on_error"),
        ({"memory": "1KiB"}, "memory"),
        ({"file": "../totals.py"}, "file"),
        ({"files": {"model": "no.onnx"}}, "files.model"),
    ],
)
def test_wrong_keys_are_refused_with_their_path(more, path):
    with pytest.raises(JobError) as refused:
        parse_job(totals_job(**more))
    assert refused.value.path == f"operators.sums_of.{path}"


def test_weighted_rows_are_refused():
    document = totals_job()
    document["streams"]["r"]["columns"]["w"] = "int32"
    document["streams"]["r"]["weight"] = "w"
    with pytest.raises(JobError, match="weights") as refused:
        parse_job(document)
    assert refused.value.path == "operators.sums_of.input"


def test_a_file_that_changes_changes_the_signature(directory):  # noqa: F811
    (directory / "model.bin").write_bytes(b"one")
    document = changed(totals_job(files={"model": "model.bin"}))
    before = parse_job(document).operators["sums_of"]
    assert before.pins()["files_sha256"]["model"]
    does = explain(parse_job(document))["operators"]["sums_of"]["does"]
    assert any("class Operator of totals.py" in line for line in does)
    (directory / "model.bin").write_bytes(b"two")
    assert parse_job(document).operators["sums_of"].signature() != before.signature()
    pinned = changed(document)
    pinned["operators"]["sums_of"]["files_sha256"] = before.pins()["files_sha256"]
    with pytest.raises(JobError, match="has changed"):
        parse_job(pinned)
