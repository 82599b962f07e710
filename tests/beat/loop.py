"""A heart in this process, built as the daemon builds it, on a disk that the test may have made."""

from __future__ import annotations

import os
import threading
import time

import pyarrow as pa

from edged.beat.changes import ChangeRequest
from edged.beat.committer import Committer
from edged.beat.heart import Heart
from edged.beat.inputs import Inputs
from edged.beat.jobs import Precondition
from edged.beat.recover import recover
from edged.beat.runtime import JobRuntime
from edged.beat.stats import Stats
from edged.client import Producer
from edged.data.workers import Workers
from edged.job.changes import Change
from edged.job.plan import parse_job
from edged.platform.clock import SystemClock
from edged.platform.disk import SystemDisk, SystemFile
from edged.platform.event_loop import EventLoop
from edged.sinks.base import SinkContext
from edged.store import Store
from governors.base import LeaveAlone
from tests.beat.support import ARROW, COMPILED_S, event_log, publisher


def now_us():
    return time.time_ns() // 1000


def batch(values, times=None):
    """Rows with these values and the current time."""
    times = [now_us()] * len(values) if times is None else times
    return {
        "key": pa.array([0] * len(values), pa.int64()),
        "time": pa.array(times, pa.int64()).cast(ARROW.field("time").type),
        "value": pa.array(values, pa.int64()),
    }


class GateFile(SystemFile):
    """A file whose sync waits while the disk's gate is closed, or fails."""

    def sync(self):
        disk = self.disk
        if disk.fails:
            raise OSError(5, "no such sector")
        disk.syncing.set()
        assert disk.gate.wait(120)
        super().sync()
        disk.syncs += 1


class GateDisk(SystemDisk):
    """The real disk, with a gate before every sync of a file."""

    def __init__(self):
        self.gate, self.syncing = threading.Event(), threading.Event()
        self.gate.set()
        self.syncs, self.fails = 0, False

    def close_gate(self):
        self.gate.clear()
        self.syncing.clear()

    def open(self, path, create=False):
        file = super().open(path, create)
        file.__class__ = GateFile
        file.disk = self
        return file


class LeapingClock(SystemClock):
    """The machine's clock, which a test may advance, so that producers become idle at once."""

    ahead_us = wall_ahead_us = 0

    def monotonic_us(self):
        return super().monotonic_us() + self.ahead_us

    def wall_us(self):
        return super().wall_us() + self.wall_ahead_us


class Host:
    """The daemon around the heart, as far as a test sets it."""

    def __init__(self):
        self.pages = 0
        self.watched = []
        """The calls of `watch_acks`."""

    def check(self, plans):
        pass

    def on_jobs_changed(self):
        pass

    def pages_pending(self, streams):
        return self.pages

    def watch_acks(self, wanted):
        self.watched.append(wanted)


class Loop:
    """A running heart; `problem` is the exception that ended it; None: it stopped."""

    def __init__(self, document, path, disk=None, profile=None, governor=None):
        self.plan, self.path = parse_job(document), path
        self.clock, self.workers = LeapingClock(), Workers(1)
        self.store = Store.open(path, disk)
        context = SinkContext("dev", self.store.device_epoch, str(path / "sinks"), self.workers)
        self.context = context
        self.recovered = recover(self.store, [self.plan], context, self.clock)
        self.events, self.host = event_log(), Host()
        published = publisher(self.events)
        self.event_loop = EventLoop(self.clock)
        self.committer = Committer(
            self.store, None, self.clock, published, wake_heart=self.event_loop.wake
        )
        self.stats = Stats(self.clock, None, published)
        self.inputs = Inputs(self.event_loop, self.workers, published)
        self.inputs.start(self.recovered.jobs)
        self.heart = Heart(
            self.recovered.registry, self.inputs, self.store, self.committer, self.event_loop,
            self.stats, self.clock, self.workers, governor or LeaveAlone(), published, self.host,
            beat=self.recovered.beat, directory=path, profile=profile,
        )  # fmt: skip
        if self.recovered.fresh:
            self.store.snapshot(self.recovered.beat, *self.heart.save())
        self.problem = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self.heart.run()
        except BaseException as problem:
            self.problem = problem

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def ended(self, seconds=120):
        """Wait until the heart has ended by itself; returns its exception."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return self.problem

    def stop(self):
        if self._thread.is_alive():
            self.heart.stop()
        self._thread.join()
        self.inputs.close()
        self.committer.close()
        self.event_loop.close()
        self.stats.close()
        self.store.close()
        self.workers.close()

    @property
    def job(self):
        return self.heart.jobs[0]

    def producer(self, stream="r", id="p", **options):
        (source,) = self.inputs.sources
        options = {"timeout_s": COMPILED_S, **options}
        return Producer(f"127.0.0.1:{source.port}", stream, ARROW, id, **options)

    def call(self, function):
        """Call `function` on the heart's thread between its waits, as the door does."""
        done, fd = threading.Event(), os.eventfd(1)

        def served():
            os.eventfd_read(fd)
            function()
            done.set()

        self.event_loop.add_control(fd, served)
        self.event_loop.wake()
        assert done.wait(120)

    def change(self, op, name, document=None, if_version=None, **more):
        """Request a change of the jobs, as the door does; the answer, once it is durable."""
        plan = None if document is None else parse_job(document)
        job = None if plan is None else JobRuntime(plan, self.context)
        change = Change(op, name, now_us(), plan and plan.document, **more)
        request = ChangeRequest(change, job, Precondition(if_version))
        self.heart.post(request)
        return request.answer.result(timeout=120)

    def leap(self, us):
        """Advance both clocks at once."""
        self.clock.ahead_us += us
        self.clock.wall_ahead_us += us
        self.event_loop.wake()

    def leap_until(self, us, condition, seconds=120.0, producer=None):
        """Leap repeatedly until the condition holds: a wait may begin only after the first leap."""

        def leapt():
            self.leap(us)
            return condition()

        return self.until(leapt, seconds, producer)

    def until(self, condition, seconds=120.0, producer=None):
        """Wait for a condition, polling a producer meanwhile; returns the seconds it took."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() < start + seconds
            if producer is not None:
                producer.poll()
            time.sleep(0.002)
        return time.monotonic() - start
