"""The daemon as a process under a service manager that the test plays."""

import itertools
import queue
import socket
import threading
import time

import pytest

from tests.beat.loop import batch
from tests.beat.support import Daemon, changed, copy_job

INTERVAL_US = 1_000_000


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """The manager's socket; the daemon's process inherits the variables."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(INTERVAL_US))
        datagrams = queue.SimpleQueue()
        threading.Thread(target=listen, args=(listener, datagrams), daemon=True).start()
        yield datagrams
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"END=1", str(tmp_path / "notify"))


def listen(listener, datagrams):
    """Note when each datagram came, and what it said, until one says END."""
    said = {}
    while "END" not in said:
        text = listener.recv(1 << 16).decode()
        said = dict(line.split("=", 1) for line in text.splitlines())
        datagrams.put((time.monotonic(), said))


def until(datagrams, key):
    """The first that says `key`, and all before it."""
    before = []
    while key not in (said := datagrams.get(timeout=120))[1]:
        before.append(said)
    return said, before


def test_ready_means_that_it_works_a_stuck_beat_feeds_nothing_and_a_stop_is_told(tmp_path, systemd):
    document = changed(
        copy_job(),
        operators={"stalled": {"type": "stall", "input": "r"}},
        promises={"latency": "100ms"},
        sinks={"rows": {"type": "pages", "input": "stalled"}},
    )
    with Daemon(tmp_path, document, module="tests.beat.crashing") as daemon:
        (_, ready), before = until(systemd, "READY")
        assert ready["STATUS"] == "beat 0, 1 job, 0 pages wait"
        assert before[0][1]["STATUS"].startswith("starting: kernels: ")
        with daemon.producer() as producer:  # at once: what is ready takes input
            fed = [until(systemd, "WATCHDOG")[0][0] for _ in range(3)]
            producer.send(batch([2_000_000]))  # a beat of two seconds
            while fed[-1] - fed[-2] < 1.5:
                fed.append(until(systemd, "WATCHDOG")[0][0])
                assert fed[-1] - fed[0] < 30, "the beat took two seconds and was not noticed"
            producer.flush()
        gaps = [b - a for a, b in itertools.pairwise(fed)]
        assert sorted(gaps)[len(gaps) // 2] < 1.0, "half of the interval when it is well"
        daemon.process.terminate()
        _, stopping = until(systemd, "STOPPING")[0]
        assert stopping["STATUS"] == "stopping"
        assert daemon.process.wait(120) == 0
