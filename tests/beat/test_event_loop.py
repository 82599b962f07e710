"""The event loop: control that takes long waits where it would make a beat late."""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from edged.platform.clock import SystemClock
from edged.platform.event_loop import EventLoop

SLOW_S = 0.05


class Control:
    """A descriptor with work, which takes SLOW_S each time that it is served."""

    def __init__(self):
        self.fd, self.served = os.eventfd(1, os.EFD_NONBLOCK), 0

    def serve(self):
        os.eventfd_read(self.fd)
        self.served += 1
        time.sleep(SLOW_S)


@pytest.fixture
def loop():
    with contextlib.closing(EventLoop(SystemClock())) as loop:
        yield loop


@pytest.fixture
def control(loop):
    control = Control()
    loop.add_control(control.fd, control.serve)
    loop.until(SystemClock().monotonic_us() + 10_000_000, lambda: control.served > 0)
    assert control.served == 1
    os.eventfd_write(control.fd, 1)
    yield control
    os.close(control.fd)


def test_control_that_would_end_after_a_wake_is_served_behind_it(loop, control):
    loop.until(SystemClock().monotonic_us() + 20_000, lambda: False)
    assert control.served == 1
    assert not loop.ready_now() and control.served == 2


def test_a_wake_from_another_thread_ends_a_wait_that_control_does_not(loop, control):
    called = []
    loop.call(lambda: called.append(True))
    loop.until(SystemClock().monotonic_us() + 20_000, lambda: bool(called))
    assert called and control.served == 1


def test_control_waits_for_a_commit_that_is_quick_and_not_for_a_slow_one(loop, control):
    commit = os.eventfd(1, os.EFD_NONBLOCK)
    loop.add_commit(commit)
    loop.until_commit()
    assert control.served == 1
    os.eventfd_read(commit)
    loop.until_commit()
    assert control.served == 2
    os.close(commit)
