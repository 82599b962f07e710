"""The heart waits for no disk and no network: what does is the commit thread's alone."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import pytest

from edged.client import Producer
from edged.config.sections import TelemetrySection
from edged.control.door import ask
from edged.daemon.daemon import Daemon
from edged.daemon.settings import DaemonSettings
from edged.events.log import LineLog
from edged.job.plan import parse_job
from edged.platform.clock import SystemClock
from edged.platform.event_loop import EventLoop
from edged.store import Store
from tests.beat.loop import GateDisk, batch
from tests.beat.support import ARROW, changed, copy_job
from tests.central.support import collecting
from tests.system.support import until

QUICK = changed(copy_job(), promises={"latency": "40ms"})


class Running:
    """A whole daemon in this process, on a disk with a gate; its centre is a real one."""

    def __init__(self, path, url, monkeypatch, *documents, **telemetry):
        self.disk = GateDisk()
        monkeypatch.setattr(Store, "open", partial(Store.open, disk=self.disk))
        told = TelemetrySection(**telemetry)
        settings = DaemonSettings(path / "store", "dev", 1, uplink_url=url, telemetry=told)
        plans = [parse_job(document) for document in documents or [QUICK]]
        self.daemon = Daemon(settings, plans, LineLog(lambda *_: None))
        self._thread = threading.Thread(target=self.daemon.run)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.disk.gate.set()
        self.daemon.parts.heart.stop()
        self._thread.join(120)

    def status(self):
        return ask(self.daemon.door.path, "status")

    def producer(self, stream="r", id="p"):
        (source,) = self.daemon.sources
        return Producer(f"127.0.0.1:{source.port}", stream, ARROW, id)

    def rows(self):
        return self.status()["jobs"]["copying"]["streams"]["r"]["rows"]

    def calls(self, function):
        """Whether the heart's thread does this and goes on."""
        done = threading.Event()
        self.daemon.parts.event_loop.call(lambda: (function(), done.set()))
        return done.wait(120)


@pytest.fixture
def running(tmp_path, monkeypatch):
    with (
        collecting(tmp_path / "landing") as centre,
        Running(tmp_path, centre.url, monkeypatch) as running,
    ):
        yield running


def test_while_a_sync_hangs_the_next_race_the_door_and_all_that_the_uplink_wants_go_on(running):
    daemon, disk = running.daemon, running.disk
    with running.producer() as producer:
        producer.send(batch([0]))
        producer.flush(120)  # kernels are compiled now, if ever
        until(lambda: running.status()["beats"] == 1, 120, "the beat that was acknowledged counts")
        before = running.status()
        disk.close_gate()
        producer.send(batch([1]))
        producer.poll()
        assert disk.syncing.wait(120)
        os.kill(running.status()["uplink"]["pid"], signal.SIGKILL)
        producer.send(batch([2, 3]))
        producer.poll()
        until(lambda: running.rows() == 4, 120, "the next race")
        for wish in (
            partial(daemon.parts.uplink.watch_acks, True),
            partial(daemon.parts.uplink.watch_acks, False),
            daemon.parts.job_host.on_jobs_changed,
            daemon.parts.uplink.retry,
            daemon.centre._on_result,
            partial(daemon.centre.set_telemetry, TelemetrySection()),
            daemon.centre.reporter._on_timer,
        ):
            assert running.calls(wish), wish
        status = running.status()
        assert (status["beats"], producer.poll()) == (before["beats"], 1), "the gate is shut"
        assert status["beat"] == before["beat"] + 2
        disk.gate.set()
        until(lambda: producer.poll() == 3, 120, "acks")
    # what was wanted meanwhile is done now: another process sends the pages
    until(lambda: running.status()["store"]["backlog_pages"] == 0, 120, running.status)
    assert running.status()["uplink"]["starts"] == 2


def test_a_deadline_of_a_year_is_a_long_wait_and_no_error():
    clock = SystemClock()
    loop = EventLoop(clock)
    loop.wake()
    assert loop.until_input(clock.monotonic_us() + 365 * 86_400_000_000) is False
    loop.close()
