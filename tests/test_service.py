"""The messages that systemd gets from the service, through real sockets of the test."""

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.daemon.systemd import SystemdService
from edged.events import journal
from edged.events.journal import Journal, ToJournal
from edged.platform.clock import SystemClock
from edged.platform.event_loop import EventLoop


@pytest.fixture
def systemd(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(120)
        yield listener


@pytest.fixture
def event_loop():
    made = EventLoop(SystemClock())
    yield made
    made.close()


def received(listener):
    """The next datagram as a table."""
    return dict(line.split("=", 1) for line in listener.recv(1 << 16).decode().splitlines())


@pytest.fixture
def made():
    """Makes services that are closed after the test."""
    services = []

    def make(listener, **environ):
        environ.setdefault("NOTIFY_SOCKET", listener.getsockname())
        services.append(SystemdService(SystemClock(), environ))
        return services[-1]

    yield make
    for service in services:
        service.close()


def test_a_start_reports_its_steps_and_then_ready(systemd, event_loop, made):
    service = made(systemd)
    service.starting("kernel 3 of 9")
    service.ready(event_loop, lambda: "2 jobs\nbeat 7")
    service.close()
    step = received(systemd)
    assert step == {"STATUS": "starting: kernel 3 of 9", "EXTEND_TIMEOUT_USEC": "180000000"}
    assert received(systemd) == {"READY": "1", "STATUS": "2 jobs beat 7"}


def test_a_reload_says_when_it_began_on_the_monotonic_clock(systemd, made):
    service, before = made(systemd), time.monotonic_ns() // 1000
    service.reloading()
    service.reloaded("refused: store.byte_max")
    begun = received(systemd)
    assert before <= int(begun.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
    assert begun == {"RELOADING": "1"}
    assert received(systemd) == {"READY": "1", "STATUS": "refused: store.byte_max"}


def test_a_stop_may_ask_for_more_time(systemd, made):
    made(systemd).stopping(5_000_000)
    assert received(systemd) == {
        "STOPPING": "1", "STATUS": "stopping", "EXTEND_TIMEOUT_USEC": "5000000"
    }  # fmt: skip


def test_names_in_the_abstract_namespace_work_too(event_loop, made):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"edged-test-{os.getpid()}"
        listener.bind("\0" + name)
        listener.settimeout(120)
        made(listener, NOTIFY_SOCKET="@" + name).ready(event_loop)
        assert received(listener)["READY"] == "1"


def test_only_waits_of_the_event_loop_feed_the_watchdog(systemd, event_loop, made):
    interval_us = 400_000
    service = made(systemd, WATCHDOG_USEC=str(interval_us), WATCHDOG_PID=str(os.getpid()))
    service.ready(event_loop)
    assert received(systemd)["READY"] == "1"
    assert received(systemd) == {"WATCHDOG": "1"}
    systemd.settimeout(1.0)
    with pytest.raises(TimeoutError):  # no wait is under way, as in a beat that does not return
        received(systemd)
    systemd.settimeout(120)
    began = SystemClock().monotonic_us()
    for _ in range(4):
        event_loop.until_input(None)
        assert received(systemd) == {"WATCHDOG": "1"}
    assert SystemClock().monotonic_us() - began >= 3 * interval_us // 2
    assert event_loop.wakes == 4, "two wakeups an interval, and no others"


@pytest.mark.parametrize(
    "environ", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}]
)
def test_without_a_watchdog_there_is_no_timer(systemd, event_loop, environ, made):
    made(systemd, **environ).ready(event_loop)
    assert received(systemd)["READY"] == "1"
    assert not event_loop.until_input(SystemClock().monotonic_us() + 100_000)
    assert event_loop.wakes == 1


@pytest.mark.parametrize("socket_name", ["", "relative", "/nowhere/notify"])
def test_without_systemd_nothing_is_sent_and_nothing_fails(event_loop, socket_name):
    environ = {"NOTIFY_SOCKET": socket_name, "WATCHDOG_USEC": "1000"} if socket_name else {}
    service = SystemdService(SystemClock(), environ)
    service.starting("x")
    service.reloading()
    service.stopping()
    service.close()
    service.stopping()


def test_a_systemd_that_does_not_read_blocks_nothing(systemd, made):
    service = made(systemd)
    for _ in range(1000):  # far more than its buffer holds
        service.starting("x" * 900)
    before = SystemClock().monotonic_us()
    service.stopping()
    assert SystemClock().monotonic_us() - before < 10_000_000


def test_messages_that_must_arrive_wait_for_a_slow_systemd(systemd, made):
    service, seen = made(systemd), []
    for _ in range(1000):
        service.starting("x")
    reader = threading.Timer(0.2, lambda: seen.extend(received(systemd) for _ in range(2)))
    reader.start()
    service.stopping()
    reader.join()
    while "STOPPING" not in (last := received(systemd)):
        seen.append(last)
    assert last["STOPPING"] == "1"


def test_two_signals_have_two_handlers(event_loop):
    ran = []
    before = [signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGUSR1)]
    try:
        event_loop.catch_signals((signal.SIGUSR1,), lambda: ran.append("stop"))
        event_loop.catch_signals((signal.SIGHUP,), lambda: ran.append("reload"))
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        event_loop.until_input(SystemClock().monotonic_us() + 10_000_000)
        assert sorted(ran) == ["reload", "stop"], "many signals of a kind run once"
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip((signal.SIGHUP, signal.SIGUSR1), before, strict=True):
            signal.signal(number, handler)


def entry(datagram):
    """A parsed journal entry (systemd, JOURNAL_NATIVE_PROTOCOL)."""
    fields = {}
    while datagram:
        name, _, datagram = datagram.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
        else:
            key, (size,) = name, struct.unpack("<Q", datagram[:8])
            value, datagram = datagram[8 : 8 + size], datagram[8 + size + 1 :]
        fields[key.decode()] = value.decode()
    return fields


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(TEXTS, st.dictionaries(st.sampled_from(["job", "event", "path"]), TEXTS))
def test_the_journal_gets_every_line_whole_with_its_fields(tmp_path_factory, text, fields):
    path = tmp_path_factory.getbasetemp() / "journal"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        written = Journal(path)
        written("warning", text, fields)
        written.close()
        got = entry(listener.recv(1 << 20))
    wanted = {"MESSAGE": text, "PRIORITY": "4", "SYSLOG_IDENTIFIER": "edged"}
    assert got == {**wanted, **{f"EDGED_{k.upper()}": v for k, v in fields.items()}}


def test_records_of_pythons_logging_keep_level_fields_and_trace(tmp_path):
    path, logger = tmp_path / "journal", logging.getLogger("edged.tested")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(120)
        handler = ToJournal(Journal(path, "edged-collector"))
        logger.addHandler(handler)
        try:
            logger.warning("%s waits", "t7", extra={"fields": {"device": "t7"}})
            logger.critical("no\nlanding", exc_info=ValueError("why"))
            first, second = (entry(listener.recv(1 << 20)) for _ in range(2))
        finally:
            logger.removeHandler(handler)
            handler.close()
    assert first == {
        "MESSAGE": "t7 waits", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "edged-collector",
        "EDGED_DEVICE": "t7",
    }  # fmt: skip
    assert second["PRIORITY"] == "3"
    assert second["MESSAGE"].startswith("no\nlanding") and "ValueError: why" in second["MESSAGE"]


def test_without_a_journal_the_line_goes_to_standard_error(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    written = Journal(tmp_path / "nowhere")
    written("error", "the store failed", {"job": "a"})
    written.close()
    assert capsys.readouterr().err == "edged: the store failed\n"


def test_the_journal_is_used_only_where_standard_error_is_it():
    assert journal.writer({"JOURNAL_STREAM": "1:2"}) is journal.to_stderr
    assert journal.writer({}) is journal.to_stderr


def test_a_log_without_a_reader_blocks_nothing_and_counts_lost_lines(monkeypatch):
    reader, end = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as reads, os.fdopen(end, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        for n in range(2000):  # a pipe holds 64 KiB
            journal.to_stderr("info", f"line {n} {'x' * 100}", {})
        taken = reads.read(1 << 20)
        journal.to_stderr("info", "last", {})
        kept = taken.count(b"\n")
        assert 100 < kept < 2000
        lines = reads.read(1 << 20).decode().splitlines()
        assert f"{2000 - kept} lines were lost" in lines[0] and lines[1].endswith("last")


@pytest.mark.parametrize(
    "words",
    [
        ("edged", "central", "collect", "--landing", "{tmp}", "--listen", "0.0.0.0:7500"),
        ("edged", "run", "--config", "{tmp}/bad.toml"),
        ("api", "--config", "{tmp}/bad.toml"),
    ],
)
def test_the_error_that_ends_a_service_has_that_priority_in_the_journal(tmp_path, words):
    """Standard error is the journal's where $JOURNAL_STREAM names it (systemd.exec(5))."""
    (tmp_path / "bad.toml").write_text("[stor]\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        facts = os.fstat(theirs.fileno())
        done = subprocess.run(
            [sys.executable, "-m", *(word.format(tmp=tmp_path) for word in words)],
            stderr=theirs,
            env={**os.environ, "JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino}"},
        )
        theirs.close()
        output = b"".join(iter(lambda: ours.recv(1 << 16), b"")).decode()
    assert done.returncode == 78
    assert output.startswith("<3>") and output.count("\n") == 1, output
