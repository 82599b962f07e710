"""The control door: its answers, its limits, and that no request does harm."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import statistics
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edged.beat.jobs import describe
from edged.control.door import (
    CLIENTS_MAX,
    DISCARDED_BYTES_MAX,
    IDLE_S_MAX,
    REQUEST_BYTES_MAX,
    VALUES_MAX,
    ask,
    values_bound,
    watch,
)
from edged.daemon.commands import DoorCommands
from edged.daemon.daemon import Daemon
from edged.daemon.settings import DaemonSettings
from edged.daemon.status import status_document
from edged.errors import CommandError, EdgedError
from edged.events.log import EVENTS_MAX, SESSION, LineLog
from edged.job.plan import parse_job
from tests.beat import support
from tests.beat.loop import Loop, batch, now_us
from tests.beat.support import changed, copy_job, join_job
from tests.beat.test_changes import at, free_port
from tests.beat.test_heart_daemon import switches
from tests.whole import examples


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A daemon in this process whose heart does not run."""
    path, lines = tmp_path_factory.mktemp("still"), []
    log = LineLog(lambda *line: lines.append(line))
    daemon = Daemon(DaemonSettings(path, "dev", 1), [parse_job(join_job())], log)
    yield daemon
    daemon.close()


def answers(daemon, **request):
    """The answer of one request, the door served by hand."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(daemon.door.path))
        s.sendall(json.dumps(request).encode() + b"\n")
        daemon.door.serve(), daemon.door.serve()
        s.settimeout(120)
        return json.loads(s.makefile().readline())


REFUSED = [
    ({"cmd": "dance"}, "unsupported", ""),
    ({"cmd": ["status"]}, "unsupported", ""),
    ({"cmd": "job"}, "invalid", "name"),
    ({"cmd": "job", "name": "nobody"}, "missing", "name"),
    ({"cmd": "job.pause", "name": "nobody"}, "missing", "name"),
    ({"cmd": "job.pause", "name": "joining", "if_version": "1"}, "invalid", "if_version"),
    ({"cmd": "job.delete", "name": "joining"}, "conflict", ""),
    ({"cmd": "job.put", "document": join_job()}, "conflict", ""),
    ({"cmd": "job.put", "document": {}, "origin": "file:/etc"}, "invalid", "origin"),
    ({"cmd": "events", "since": -1}, "invalid", "since"),
    ({"cmd": "events", "limit": 1001}, "invalid", "limit"),
    ({"cmd": "watch", "interval_ms": 249}, "invalid", "interval_ms"),
    ({"cmd": "watch", "since": "x"}, "invalid", "since"),
    ({"cmd": "log", "level": "loud"}, "invalid", "level"),
    ({"cmd": "stop", "drain": "yes"}, "invalid", "drain"),
    ({"cmd": "uplink.retry"}, "conflict", ""),
    ({"cmd": "governor"}, "conflict", ""),
    ({"cmd": "kernel", "job": "nobody", "operator": "x", "kernel": "y"}, "missing", "job"),
]


@pytest.mark.parametrize(("request_", "kind", "where"), REFUSED)
def test_a_refusal_says_its_kind_and_where(still, request_, kind, where):
    answer = answers(still, **request_)
    assert (answer["kind"], answer["where"]) == (kind, where)
    assert answer["kind"] in CommandError.KINDS
    assert answer["error"] and answer["what"] and "do" in answer
    assert still.parts.heart.state == "running"


@pytest.mark.parametrize(
    "request_",
    [{"cmd": "job.put", "document": copy_job()}, {"cmd": "job.pause", "name": "joining"},
     {"cmd": "replace", "job": join_job(lateness="1s")}],
)  # fmt: skip
def test_while_the_store_is_full_changes_are_refused_and_not_queued(still, monkeypatch, request_):
    monkeypatch.setattr(still.parts.committer.gate, "_waiting", {"commit"})
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(0.01)
        s.connect(str(still.door.path))
        s.sendall(json.dumps(request_).encode() + b"\n")
        answer, deadline = b"", time.monotonic() + 120
        while not answer:
            assert time.monotonic() < deadline
            still.door.serve()
            with contextlib.suppress(TimeoutError):
                answer = s.recv(1 << 16)
    assert json.loads(answer)["kind"] == "busy"
    assert not still.parts.heart.changes


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["name", "document", "if_version", "origin", "drain", "since", "limit", "level", "policy",
     "settings", "job", "operator", "kernel", "interval_ms", "within_s"]
)  # fmt: skip


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), more=st.dictionaries(KEYS, VALUES))
def test_any_request_is_answered_or_refused(still, data, more):
    commands = DoorCommands(still.parts, None, None, still.stop)
    known = sorted(set(commands._commands) - {"stop"})
    cmd = data.draw(st.sampled_from(known))
    try:
        commands({**more, "cmd": cmd})
    except EdgedError as problem:
        assert str(problem)


def test_a_defect_in_a_command_is_an_answer(still, monkeypatch):
    monkeypatch.setitem(still.door._handler._commands, "jobs", lambda _: 1 // 0)
    answer = answers(still, cmd="jobs")
    assert answer["kind"] == "failed" and "ZeroDivisionError" in answer["error"]


def test_a_client_is_served_after_descriptors_ran_out(still):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = []
    with socket.socket(socket.AF_UNIX) as s, socket.socket(socket.AF_UNIX) as t:
        resource.setrlimit(resource.RLIMIT_NOFILE, (t.fileno() + 1, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    filled.append(os.dup(0))
            s.connect(str(still.door.path))
            s.sendall(b'{"cmd": "log"}\n')
            still.door.serve()
        finally:
            for fd in filled:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        t.connect(str(still.door.path))
        still.door.serve(), still.door.serve()
        assert "level" in json.loads(s.makefile().readline())


def values(document):
    """How many values there are in a document, by walking it."""
    inner = document.values() if isinstance(document, dict) else document
    return 1 + (sum(map(values, inner)) if isinstance(document, (dict, list)) else 0)


@given(VALUES)
def test_no_text_has_more_values_than_the_bound(document):
    assert values(document) <= values_bound(json.dumps(document).encode())


LARGE = {
    "bytes": b'{"cmd": "log", "level": "%s"}\n' % (b"x" * REQUEST_BYTES_MAX),
    "values": b'{"cmd": "log", "level": [%s0]}\n' % (b"[]," * VALUES_MAX),
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_request_that_is_too_large_is_refused_unparsed_with_a_reason(still, kind, monkeypatch):
    monkeypatch.setattr("edged.control.door.json.loads", None)  # parsing fails the test
    kept = []
    with socket.socket(socket.AF_UNIX) as s:
        s.setblocking(False)
        s.connect(str(still.door.path))
        left, answer, deadline = memoryview(LARGE[kind]), b"", time.monotonic() + 120
        while not answer:
            assert time.monotonic() < deadline
            with contextlib.suppress(BlockingIOError):
                left = left[s.send(left) :]
            still.door.serve()
            kept += [len(client.request) for client in still.door._clients.values()]
            with contextlib.suppress(BlockingIOError):
                answer = s.recv(1 << 16)
    monkeypatch.undo()
    refusal = json.loads(answer)
    assert refusal["kind"] == "invalid" and kind in refusal["what"] and "split" in refusal["do"]
    assert not left and max(kept) <= REQUEST_BYTES_MAX


def test_a_client_that_never_ends_a_request_is_disconnected(still):
    with socket.socket(socket.AF_UNIX) as s:
        s.setblocking(False)
        s.connect(str(still.door.path))
        sent, part = 0, b"x" * (1 << 18)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent <= 2 * DISCARDED_BYTES_MAX:
                with contextlib.suppress(BlockingIOError):
                    sent += s.send(part)
                still.door.serve()
        assert sent <= DISCARDED_BYTES_MAX + (1 << 20)


def test_the_largest_request_is_parsed_within_milliseconds():
    """CPU time of this thread: 1.5 ms here."""
    worst, took = b"[%s0]" % (b"[]," * (VALUES_MAX // 2 - 2)), []
    assert values_bound(worst) <= VALUES_MAX
    for _ in range(5):
        before = time.thread_time()
        json.loads(bytearray(worst))
        took.append(time.thread_time() - before)
    assert min(took) < 0.02


def test_idle_clients_are_dropped_for_new_ones_and_waiting_clients_are_not(still, monkeypatch):
    ahead_s = [0.0]
    now_s = time.monotonic
    monkeypatch.setattr("edged.control.door.time.monotonic", lambda: now_s() + ahead_s[0])

    def connect(data=b""):
        s = stack.enter_context(socket.socket(socket.AF_UNIX))
        s.settimeout(120)
        s.connect(str(still.door.path))
        s.sendall(data)
        still.door.serve(), still.door.serve()
        return s

    with contextlib.ExitStack() as stack:
        waits = connect(b'{"cmd": "job.pause", "name": "joining"}\n')  # the heart does not beat
        watches = connect(b'{"cmd": "watch"}\n')
        silent = [connect(b'{"cmd": ') for _ in range(CLIENTS_MAX - 2)]
        ahead_s[0] = IDLE_S_MAX - 1
        assert connect().recv(1) == b"", "all places are taken, and no client is idle"
        ahead_s[0] = IDLE_S_MAX + 1
        silent[0].sendall(b'"log"}\n')  # just in time
        connect(b"{")  # takes the place that is free by that
        assert "level" in json.loads(silent[0].makefile().readline())
        assert "level" in json.loads(connect(b'{"cmd": "log"}\n').makefile().readline())
        assert all(s.recv(1) == b"" for s in silent[1:])
        assert b"snapshot" in watches.recv(1 << 20)
        still.parts.heart.changes._requests.pop().answer.set_result({"job": {}})
        still.door.serve()
        assert json.loads(waits.makefile().readline()) == {"job": {}}
    still.door.serve(), still.door.serve()


@pytest.mark.parametrize(
    "text", [b"\n", b"{\n", b"[]\n", b"\xff\xff\n", b'"x"\n', b"[" * 9999 + b"\n"]
)
def test_text_that_is_not_a_request_is_refused(still, text):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(still.door.path))
        s.sendall(text)
        still.door.serve(), still.door.serve()
        assert json.loads(s.makefile().readline())["kind"] == "invalid"


def test_the_status_document_is_json_and_quickly_made(still):
    took = []
    for _ in range(30):
        before = time.perf_counter()
        text = json.dumps(status_document(still.parts))
        took.append(time.perf_counter() - before)
    assert statistics.median(took) < 0.005
    answer = json.loads(text)
    assert answer["schema"] == 2
    assert answer["jobs"]["joining"]["state"] == "running"
    for leg in answer["legs"].values():
        assert len(leg["counts"]) == len(leg["bounds_us"]) + 1 == 15


def watcher(daemon, **more):
    s = socket.socket(socket.AF_UNIX)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(120)
    s.connect(str(daemon.door.path))
    s.sendall(json.dumps({"cmd": "watch", "interval_ms": 250, **more}).encode() + b"\n")
    daemon.door.serve(), daemon.door.serve()
    return s


def test_a_subscriber_that_does_not_read_blocks_nothing_and_gets_the_number_missed(still):
    s, lines_read = watcher(still), []
    many = 3 * EVENTS_MAX
    for n in range(many):
        still.parts.events.add("daemon.tested", f"number {n} " + "x" * 100)
        if n % 100 == 0:
            still.door.serve()
    waiting = sum(len(c.out) for c in still.door._clients.values())
    assert waiting < 1 << 16, "one batch of lines at most"
    s.setblocking(False)
    lines = b""
    deadline = time.monotonic() + 120
    while f"number {many - 1} ".encode() not in lines:
        assert time.monotonic() < deadline
        still.door.serve()
        try:
            lines += s.recv(1 << 16)
        except BlockingIOError:
            continue
    s.close()
    still.door.serve()
    for line in lines.split(b"\n")[:-1]:
        lines_read.append(json.loads(line))
    events = [line["event"]["id"] for line in lines_read if "event" in line]
    missed = sum(line.get("missed", 0) for line in lines_read)
    assert events == sorted(set(events))
    assert missed > 0 and len(events) + missed == many
    assert not still.door._clients


def test_a_subscriber_with_an_id_of_another_store_gets_all_events_of_this_one(
    still,
):
    still.parts.events.add("daemon.tested", "once")
    with watcher(still, since=10**17) as s, s.makefile() as lines:
        assert {"event", "missed"} & set(json.loads(lines.readline())), "no snapshot first"
    still.door.serve()


def test_events_are_paged_and_their_ids_rise_over_restarts(still):
    first = still.parts.events.page(0, 10)
    assert len(first["events"]) == 10
    after = still.parts.events.page(first["next"], 1000)["events"]
    assert after[0]["id"] == first["next"] + 1 > SESSION
    assert after[-1]["id"] < 2**53, "what JavaScript takes for whole"
    assert still.parts.events.page(after[-1]["id"], 10)["events"] == []


def test_an_idle_daemon_wakes_for_subscribers_only(tmp_path):
    """A status a second for a subscriber; no wakes after it has gone."""
    document = changed(copy_job(), promises={"latency": "50ms"})
    with support.Daemon(tmp_path, document) as daemon:
        pid = daemon.process.pid
        lines = watch(daemon.door, 1000)
        assert "snapshot" in next(lines)
        next(lines)
        before, wakes = switches(pid, ["voluntary"]), None
        for _ in range(3):
            line = next(lines)
            wakes = line["snapshot"]["wakes"]
        while_watched = switches(pid, ["voluntary"]) - before
        lines.close()
        time.sleep(0.5)
        before = switches(pid)
        time.sleep(2.5)
        idle = switches(pid) - before
        assert while_watched <= 12
        assert idle <= 2
        assert daemon.status()["wakes"] - wakes <= 6, "his going and the question"


def test_a_stop_that_drains_processes_all_rows_and_ends_when_the_centre_has_all_pages(tmp_path):
    port, now = free_port(), now_us()
    document = at(port, join_job(before="1s", after="1h", idle_after="1h"))
    with Loop(document, tmp_path / "store") as loop:
        job, loop.host.pages = loop.job, 3
        with loop.producer("r") as r, loop.producer("s") as s:
            s.send(batch([1], [now])), s.flush()
            r.send(batch([1, 2], [now, now + 1])), r.flush()
            r.send(batch([3], [now + 60 * 10**6])), r.flush()
            loop.until(lambda: job.streams["r"].rows == 2)
            loop.call(lambda: loop.heart.drain(60 * 10**6))
            loop.until(lambda: loop.host.watched == [True] and job.staged() == job.open_rows() == 0)
            assert loop.heart.state == "draining"
            assert describe(job)["state"] == "running", "the stop is no change of the job"
            loop.host.pages = 0
            loop.event_loop.wake()
            assert loop.ended() is None


def test_a_stop_that_drains_ends_in_time_though_the_centre_is_away(tmp_path):
    with Loop(at(free_port(), copy_job()), tmp_path / "store") as loop:
        loop.host.pages = 1
        loop.call(lambda: loop.heart.drain(300_000))
        assert loop.ended() is None


def test_without_a_daemon_a_request_is_unreachable(tmp_path):
    with pytest.raises(CommandError, match="is it running") as refused:
        ask(tmp_path / "door", "status")
    assert refused.value.kind == "unreachable"
