"""The operator `python`: equal to plain Python, over children, kills and restarts."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from edged.beat.recover import recover
from edged.store import Store
from tests.beat.support import SECOND, T0, HandClock, changed
from tests.operators.python_jobs import (
    LivePython,
    directory,  # noqa: F401
    expected,
    rows,
    totals_job,
    until,
)

pytestmark = pytest.mark.usefixtures("directory")


def pages_of(live):
    return [(page.key, bytes(page.data)) for page in live.all_pages()]


def run(document, workers=1):
    with LivePython(document, workers=workers) as live:
        for start in range(0, 120, 30):
            live.take(rows(start, 30))
        live.settle()
        return live.sums(), pages_of(live)


def test_results_equal_plain_python_and_do_not_depend_on_children_or_workers():
    sums, pages = run(totals_job())
    assert sums == expected(rows(0, 120))
    assert run(totals_job(processes=3), workers=2)[1] == pages


def test_a_killed_child_goes_on_with_the_state_of_the_last_beat():
    with LivePython(totals_job(processes=2)) as live:
        for start in range(0, 60, 20):
            live.take(rows(start, 20))
        child = live.operator._children[0]
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: child._process.poll() is not None)
        assert live.take(rows(60, 20)) == [], "no rows are to blame"
        assert live.operator.counters()["restarts"] == 1 and live.job.schedules.waiting()
        live.take(rows(80, 20))
        live.settle()
        assert live.sums() == expected(rows(0, 100))


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_restart_replays_the_same_pages_and_goes_on_with_the_state(tmp_path, snapshot):
    path = tmp_path / "store"
    with LivePython(totals_job(), path) as live:
        for start in range(0, 60, 20):
            live.take(rows(start, 20))
            if snapshot and start == 20:
                live.snapshot()
        live.beat(flush=True)
        pages, saved = pages_of(live), live.job.save()
        live.store.close()
        live.store = Store.open(path)
        live.job.schedules.close()
        found = recover(live.store, [live.plan], live.context, HandClock())
        assert found.replayed_beats and pages
        live.job = found.jobs[0]
        again = live.job.save()
        assert {k: v.tobytes() for k, v in again.items() if k.startswith("operators/")} == {
            k: v.tobytes() for k, v in saved.items() if k.startswith("operators/")
        }
        live.take(rows(60, 20))
        live.settle()
        assert live.sums() == expected(rows(0, 80))


def test_outputs_of_code_that_is_not_deterministic_are_taken_from_the_log(tmp_path, directory):  # noqa: F811
    code = (directory / "totals.py").read_text()
    drawn = code.replace(
        "+ value +", "+ value + int.from_bytes(__import__('os').urandom(2), 'big') +"
    )
    (directory / "totals.py").write_text(drawn)
    path = tmp_path / "store"
    with LivePython(totals_job(deterministic=False), path) as live:
        for start in range(0, 60, 20):
            live.take(rows(start, 20))
        live.beat(flush=True)
        assert live.sums() != expected(rows(0, 60))
        live.store.close()
        live.store = Store.open(path)
        before = live.operator._states.saved
        found = recover(live.store, [live.plan], live.context, HandClock())
        assert found.replayed_beats, "and the pages were equal"
        assert found.jobs[0].operators["sums_of"]._states.saved == before
        assert found.jobs[0].operators["sums_of"].counters()["child_us"] == 0
        found.jobs[0].schedules.close()


def test_rows_whose_states_could_not_be_saved_are_kept_over_a_replay(tmp_path):
    path = tmp_path / "store"
    with LivePython(totals_job(file="faulty.py", deterministic=False), path) as live:
        live.take(rows(0, 14))
        assert live.take([*rows(14, 14), (3, T0 + 28, 1000)])
        assert live.operator._states.to_arrays()["batches"].size, "one partition raised"
        check_states(live, path)
        live.take(rows(28, 14))
        assert not live.operator._states.to_arrays()["batches"].size
        check_states(live, path)


def check_states(live, path):
    """The states of a replay are those of the beats."""
    live.store.close()
    live.store = Store.open(path)
    found = recover(live.store, [live.plan], live.context, HandClock())
    again = found.jobs[0].operators["sums_of"]._states.to_arrays()
    for name, array in live.operator._states.to_arrays().items():
        assert np.array_equal(array, again[name]), name
    found.jobs[0].schedules.close()


def test_named_outputs_late_rows_and_rows_behind(directory):  # noqa: F811
    (directory / "split.py").write_text(
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "def on_batch(batch, context):\n"
        "    back = pc.subtract(batch['time'].cast(pa.int64()), context.settings['back'])\n"
        "    moved = batch.set_column(1, 'time', back.cast(batch.schema.field('time').type))\n"
        "    return {'all': batch, 'early': moved.slice(0, 1)}\n"
    )
    columns = {"key": "int64", "time": "timestamp", "value": "int64"}
    table = {
        "type": "python", "input": "r", "file": "split.py", "settings": {"back": 5 * SECOND},
        "outputs": {"all": {"columns": columns}, "early": {"columns": columns}},
        "behind": "2s",
    }  # fmt: skip
    document = changed(totals_job(), operators={"sums_of": table})
    document["sinks"] = {
        "sums": {"type": "pages", "input": "sums_of.all"},
        "earlies": {"type": "pages", "input": "sums_of.early"},
    }
    with LivePython(document) as live:
        live.take([(1, T0 + i * SECOND, i) for i in range(4)])
        live.take([(1, T0 + i * SECOND, i) for i in range(10, 14)])
        assert live.operator.outputs["all"].watermark_us == T0 + 11 * SECOND
        assert live.operator.counters()["rows_late"] == 0
        live.take([(1, T0 + i * SECOND, i) for i in range(14, 15)])
        assert live.operator.counters()["rows_late"] == 1, "9 s is before the watermark, 11 s"
        live.settle()
        assert len(live.sums()) == 9 and len(live.rows("earlies")) == 2


def test_no_network_no_privileges_and_the_time_of_the_daemon_only(directory):  # noqa: F811
    (directory / "probe.py").write_text(
        "import os, socket, pyarrow as pa\n"
        "def tried(call):\n"
        "    try:\n"
        "        call()\n"
        "    except OSError as problem:\n"
        "        return type(problem).__name__\n"
        "    return 'reached'\n"
        "def on_batch(batch, context):\n"
        "    with open('/proc/self/status') as f:\n"
        "        status = dict(line.split(':', 1) for line in f)\n"
        "    words = [tried(lambda: socket.create_connection(('127.0.0.1', 1), 1)),\n"
        "             tried(lambda: socket.socket(socket.AF_UNIX)),\n"
        "             status['NoNewPrivs'].strip(), os.environ.get('SECRET', 'none')]\n"
        "    texts = pa.array([' '.join(words)] * batch.num_rows)\n"
        "    return pa.record_batch([batch['time'], texts], names=['time', 'text'])\n"
    )
    columns = {"time": "timestamp", "text": "string"}
    document = totals_job(file="probe.py", columns=columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET", "token")
        with LivePython(document) as live:
            assert live.take(rows(0, 1)) == []
            live.settle()
            assert live.sums() == [(T0, "PermissionError PermissionError 1 none")]
            enforced = live.operator.counters()["enforced"]
    assert "no new privileges" in enforced and "no sockets (seccomp)" in enforced
    assert "memory 256 MiB" in enforced
