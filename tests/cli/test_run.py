"""`edged run` on a terminal and with --until-end, as processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner

from edged.cli import run
from edged.client import Producer
from edged.control.door import ask
from edged.daemon.until_end import waits_for
from edged.errors import CommandError, ConfigError
from edged.platform.processes import ChildProcess, free_port
from tests.central.support import collecting

COLUMNS = {"n": "int64", "time": "timestamp"}
ARROW = pa.schema([("n", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
ROWS = 20


def document(source, sinks):
    return {
        "name": "replay",
        "promises": {"latency": "50ms"},
        "streams": {"a": {"source": source, "columns": COLUMNS, "time": "time"}},
        "sinks": sinks,
    }


FILE = {"type": "file", "path": "in.csv"}
INTO_FILES = {"out": {"type": "file", "input": "a", "path": "results"}}
INTO_PAGES = {"curve": {"type": "pages", "input": "a"}}


def prepare(tmp_path, source=FILE, sinks=INTO_FILES):
    """The words of a run in `tmp_path`, and its job's file."""
    (tmp_path / "job.json").write_text(json.dumps(document(source, sinks)))
    lines = [f"{n},2024-01-01T00:00:{n:02}Z" for n in range(ROWS)]
    (tmp_path / "in.csv").write_text("\n".join(["n,time", *lines, ""]))
    return ["run", "job.json", "--store", "st", "--workers", "1", "--board", "none"]


def edged(tmp_path, words):
    return subprocess.run(
        [sys.executable, "-m", "edged", *words], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def until(holds):
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def events(door):
    """Kinds of events so far; none where the daemon does not answer yet."""
    with suppress(CommandError):
        return [event["kind"] for event in ask(door, "events")["events"]]
    return []


def test_a_replay_ends_with_0_when_its_results_are_written(tmp_path):
    words = [*prepare(tmp_path), "--until-end"]
    done = edged(tmp_path, words)
    assert done.returncode == 0, done.stderr
    found = duckdb.sql(f"SELECT n FROM read_parquet('{tmp_path}/results/*') ORDER BY n")
    assert [row[0] for row in found.fetchall()] == list(range(ROWS))
    assert f"reads file, in.csv (format by suffix), at full speed ({tmp_path}/in.csv)" in (
        done.stderr
    )
    assert f"writes parquet files in results ({tmp_path}/results)" in done.stderr
    assert f"store {tmp_path}/st" in done.stderr
    assert "all delivered after" in done.stderr and f"{ROWS} rows in" in done.stderr
    assert "\x1b" not in done.stderr and done.stdout == ""  # no terminal: lines only


def test_a_tcp_stream_ends_when_every_producer_that_was_seen_has_said_so(tmp_path, monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    words = [*prepare(tmp_path, {"type": "tcp", "listen": address}), "--until-end", "--json"]
    monkeypatch.chdir(tmp_path)
    daemon = ChildProcess("daemon", ["edged", *words], tmp_path)
    try:
        daemon.ready()
        batch = pa.record_batch([[1, 2], [10**12, 10**12 + 1]], schema=ARROW)
        with (
            Producer(address, "a", ARROW, producer="one") as one,
            Producer(address, "a", ARROW, producer="two") as two,
        ):
            one.send(batch)
            two.send(batch)
            one.end()
            two.flush()
            assert ask(tmp_path / "st" / "door", "status")["state"] == "running"
            two.end()
        assert daemon.process.wait(120) == 0
        ended = daemon.events.get(timeout=120)
        assert (ended["ended"], ended["rows"], ended["pages"]) == (True, 4, 0)
    finally:
        daemon.stop()


def test_the_end_waits_for_the_centre_and_a_signal_ends_it_at_once_with_75(tmp_path, monkeypatch):
    port, door = free_port(), tmp_path / "st" / "door"
    words = prepare(tmp_path, sinks=INTO_PAGES)
    words += ["--until-end", "--json", "--uplink", f"http://127.0.0.1:{port}"]
    monkeypatch.chdir(tmp_path)
    daemon = ChildProcess("daemon", ["edged", *words], tmp_path)
    try:
        until(lambda: "sources.ended" in events(door))
        assert ask(door, "status")["state"] == "draining"
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(120) == 75
        assert "stopped before the end" in daemon.log.read_text()
        daemon.restart()
        until(lambda: "sources.ended" in events(door))
        with collecting(tmp_path / "landing", port=port):
            assert daemon.process.wait(120) == 0
    finally:
        daemon.stop()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"type": "http"}, "rows may come over the REST API at any time"),
        ({"type": "generator", "rate": 5}, "set rows"),
    ],
)
def test_a_source_that_never_ends_is_refused(tmp_path, monkeypatch, source, reason):
    monkeypatch.chdir(tmp_path)
    words = [*prepare(tmp_path, source)[1:], "--until-end"]
    refused = CliRunner().invoke(run.command, words)
    assert isinstance(refused.exception, ConfigError)
    assert "streams.a.source" in str(refused.exception) and reason in str(refused.exception)
    assert not (tmp_path / "st").exists()


def test_a_file_that_cannot_be_read_to_its_end_exits_with_65(tmp_path):
    words = [*prepare(tmp_path, {"type": "file", "path": "in.ndjson"}), "--until-end", "--quiet"]
    (tmp_path / "in.ndjson").write_text('{"n": "x", "time": "2024-01-01T00:01:00Z"}\n')
    done = edged(tmp_path, words)
    assert done.returncode == 65, done.stderr
    assert "in.ndjson" in done.stderr.splitlines()[-1]
    assert "ready" not in done.stderr


def test_a_terminal_shows_figures_below_the_lines_and_a_summary(tmp_path):
    rows = {"type": "generator", "rate": 1000, "rows": 1500}
    words = [*prepare(tmp_path, rows), "--until-end"]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "120"}
        os.execv(sys.executable, [sys.executable, "-m", "edged", *words])
    shown = b""
    with suppress(OSError):  # the end of the terminal
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, shown
    text = shown.decode()
    figures, event, summary = (
        text.find(words) for words in ("━", "all sources have ended", "all delivered after")
    )
    assert 0 < figures < event < summary, text
    assert "replay stream" in text and "pages sealed" in text


def test_a_delivery_says_what_it_waits_for():
    sink = SimpleNamespace(open_rows=lambda: 2)
    plan = SimpleNamespace(name="replay")
    job = SimpleNamespace(plan=plan, staged=lambda: 5, sinks={"out": sink})
    down = {"state": "down", "problem": "centre:7500: refused"}
    assert waits_for([job], 3, down) == [
        "7 rows of job replay",
        "the centre to acknowledge 3 pages (down: centre:7500: refused)",
    ]
    assert waits_for([], 3, None) == []
