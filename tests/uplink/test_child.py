"""The uplink's child as a process: killed, hung, stopped, idle."""

import errno
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from edged.central import segments
from edged.pages.sealed import PageKey
from edged.store.page_index import PageRef
from edged.uplink.child import Child
from tests.central.support import (
    DEVICE,
    SCHEMA,
    Collector,
    by_partition,
    collecting,
)
from tests.uplink.support import Daemon, check_landed


def test_registering_waits_for_no_child_that_hangs(landing):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.until(lambda: (landing / "schemas" / "power@1.json").exists())
        os.kill(daemon.uplink.status()["pid"], signal.SIGSTOP)
        daemon.uplink.register([("later", 1, SCHEMA)])  # otherwise it would wait for ever
        os.kill(daemon.uplink.status()["pid"], signal.SIGCONT)
        daemon.until(lambda: (landing / "schemas" / "later@1.json").exists())


def test_the_child_killed_at_random_moments_costs_nothing(landing, spool):
    rng = random.Random(4)
    more = {"request_bytes": 2000, "restart_s_max": 0.0}
    with collecting(landing) as collector, Daemon(collector.url, **more) as daemon:
        seq = 1
        for _ in range(20):
            end = time.monotonic() + rng.uniform(0.0, 0.25)
            while time.monotonic() < end:
                daemon.offer(spool.add(range(seq, seq + 3), partitions=range(2)))
                seq += 3
                daemon.poll(0.005)
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
        daemon.drain()
        assert daemon.uplink.status()["starts"] > 15
    check_landed(landing, spool)


def _sleeps_until_restarted(daemon, timeout_s=120.0):
    """Restart only on events of `watch_fileno()`; returns how often that woke the caller."""
    wakes, end = 0, time.monotonic() + timeout_s
    while True:
        assert select.select([daemon.uplink.watch_fileno()], [], [], end - time.monotonic())[0]
        wakes += 1
        for stream, partition, seq in daemon.uplink.poll():
            daemon.acks[stream, partition] = seq
        if daemon.uplink.restart_if_dead():
            daemon.uplink.offer([daemon.pending[k] for k in sorted(daemon.pending)])
            return wakes


def test_children_that_die_young_are_followed_by_others_though_nothing_else_happens(landing, spool):
    port = Collector(landing)
    port.stop()
    with Daemon(port.url) as daemon:
        daemon.offer(spool.add(range(1, 50)))
        watched = daemon.uplink.watch_fileno()
        for _ in range(4):
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
            assert _sleeps_until_restarted(daemon) <= 3, "it sleeps through the backoff"
            assert daemon.uplink.watch_fileno() == watched
        assert daemon.uplink.status()["starts"] == 5
        with collecting(landing, port=port.port):
            daemon.uplink.retry()
            daemon.drain()
    check_landed(landing, spool)


def test_what_a_living_child_says_does_not_wake_who_watches_for_its_death(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.offer(spool.add(range(1, 50)))
        assert select.select([daemon.uplink], [], [], 20.0)[0]
        assert select.select([daemon.uplink.watch_fileno()], [], [], 0.0)[0] == []
        daemon.drain()


def test_children_that_keep_dying_are_started_ever_more_rarely(tmp_path, monkeypatch):
    """Each child dies at its start; the restarts must not load the machine."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with Daemon("http://127.0.0.1:9", restart_s_max=2.0) as daemon:
        begin = time.monotonic()
        while (elapsed_s := time.monotonic() - begin) < 6.0 or daemon.uplink.status()["starts"] < 3:
            assert elapsed_s < 120, daemon.uplink.status()
            select.select([daemon.uplink], [], [], 0.5)
            daemon.uplink.poll()
            daemon.uplink.restart_if_dead()
        assert daemon.uplink.status()["starts"] <= 40 + elapsed_s


def test_between_two_children_the_descriptor_is_one_to_sleep_on(tmp_path, monkeypatch):
    """Otherwise a wait for room in the store would spin."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with Daemon("http://127.0.0.1:9") as daemon:
        while daemon.uplink.status()["pid"] is not None:
            select.select([daemon.uplink], [], [], 20.0)
            daemon.uplink.poll()
            daemon.uplink.restart_if_dead()
        starts = daemon.uplink.status()["starts"]
        assert select.select([daemon.uplink], [], [], 40.0)[0]
        daemon.uplink.restart_if_dead()
        assert daemon.uplink.status()["starts"] == starts + 1
        daemon.uplink.close()
        assert daemon.uplink.fileno() == -1


def test_a_daemon_that_sleeps_is_woken_before_its_unread_acks_stop_the_uplink(landing, spool):
    pages = 500  # one request each: their answers do not fit into the socket
    with collecting(landing) as collector, Daemon(collector.url, request_bytes=1) as daemon:
        daemon.offer(spool.add(range(1, pages + 1)))
        end, wakes = time.monotonic() + 120, 0
        while sum(segments.positions(landing).values()) < pages:
            assert time.monotonic() < end, "the uplink stands still"
            if select.select([daemon.uplink.watch_fileno()], [], [], 0.2)[0]:
                daemon.uplink.clear_notice()
                daemon.poll()
                wakes += 1
        assert 1 <= wakes <= pages // 20
        daemon.drain()
    check_landed(landing, spool)


def test_a_child_that_cannot_be_started_again_is_tried_later(landing, spool, monkeypatch):
    def no_memory(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with collecting(landing) as collector, Daemon(collector.url, restart_s_max=0.5) as daemon:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", no_memory)
            os.kill(daemon.uplink.status()["pid"], signal.SIGKILL)
            daemon.until(lambda: "did not start" in daemon.uplink.status()["problem"])
            assert daemon.uplink.status()["next_try_us"] is not None
        daemon.offer(spool.add([1, 2]))
        daemon.drain()
    check_landed(landing, spool)


def _threads(pid):
    return list(Path(f"/proc/{pid}/task").iterdir())


def _switches(pid):
    total = 0
    for task in _threads(pid):
        for line in (task / "status").read_text().splitlines():
            total += int(line.split()[1]) if "ctxt_switches" in line else 0
    return total


def test_an_idle_child_sleeps_without_a_timer(landing, spool):
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        daemon.offer(spool.add(range(1, 20)))
        daemon.drain()
        pid = daemon.uplink.status()["pid"]
        end, before = time.monotonic() + 120, -100
        while (now := _switches(pid)) - before > 1:  # a second without a wake, once it is idle
            assert time.monotonic() < end, "the idle child keeps waking"
            before = now
            time.sleep(1.0)
        status = Path(f"/proc/{pid}/status").read_text()
        [rss] = [int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS")]
        assert rss < 40_000  # KiB


_PARENT = """
import sys, time
from edged.uplink import Uplink
uplink = Uplink("http://127.0.0.1:9", "d", None, 1, (1, 1), [("s", 1, "[]")])
uplink.start()
print(uplink.status()["pid"], flush=True)
time.sleep(60)
"""


def test_the_child_ends_when_the_daemon_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE)
    with parent:
        pid = int(parent.stdout.readline())
        assert _running(pid)
        parent.kill()
    end = time.monotonic() + 120
    while _running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _running(pid)


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def places(seqs, file="gone", offset=0):
    """References to unreadable pages of partition 9."""
    return [PageRef(PageKey("power", 9, seq), file, offset, 100) for seq in seqs]


def test_what_waits_for_a_stopped_child_is_bounded_and_goes_on_by_itself(landing, spool):
    pages = 30_000
    with collecting(landing) as collector, Daemon(collector.url) as daemon:
        refs = spool.add(range(1, 20))
        pid = daemon.uplink.status()["pid"]
        os.kill(pid, signal.SIGSTOP)
        for turn in range(3):
            daemon.uplink.offer(places(range(1, pages), offset=turn))  # moved repeatedly
        daemon.offer(refs)
        for turn in range(1000):
            daemon.uplink.report([turn], 1000, False)
            daemon.uplink.retry()
            daemon.uplink.set_windows([])
        daemon.poll()
        assert daemon.uplink.wants_write()
        assert len(daemon.uplink._out) <= pages + len(refs) + 5
        assert daemon.uplink._out.bytes < 100_000
        readable = select.select([daemon.uplink.watch_fileno()], [], [], 0)[0]
        assert not readable, "it sleeps as long as the child does"
        os.kill(pid, signal.SIGCONT)
        while daemon.uplink.wants_write():
            assert select.select([daemon.uplink.watch_fileno()], [], [], 120)[0]
            daemon.poll()
        daemon.drain()
    assert list(by_partition(landing)[DEVICE, "power", 0]) == list(range(1, 20))


def test_after_a_suspend_every_pause_ends_and_every_lane_computes_its_wait_again(tmp_path):
    ours, theirs = socket.socketpair()
    config = {"schemas": [], "request_bytes": 1000, "url": "", "lanes": 0, "token": "",
              "device": "d", "epoch": 1, "session": [1, 1]}  # fmt: skip
    with ours, theirs:
        child = Child(theirs, config)
        lanes = [threading.Condition(child._lock) for _ in range(2)]
        child._idle = list(lanes)
        child._sender._hold_until_s = float("inf")
        child.command({"resumed": True})
        assert child._sender._hold_until_s == 0 and not child._idle
