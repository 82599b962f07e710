"""The event loop: sleeps until input, a deadline or control needs the thread; it never polls.

Three epolls serve three kinds of wait: for input, with the sources muted, and for a commit.  All
three serve control descriptors.  The first readiness of a source starts the beat's timer.  From
then on source descriptors are left out, so that data accumulates in the kernel's buffers and the
cores sleep until the wake.

Control may take long: a status document takes 20 ms on a core that has slept.  It is left waiting
where it would make a beat late: in the last part of a timed wait, of the length that control has
lately taken, and in the first CONTROL_WAITS_US of the wait for a commit.

A timeout of epoll does not count the time of a suspend.  The loop's waits end after each one, and
callers compute their deadlines again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from edged.platform.clock import Clock, suspended_us
from edged.platform.timers import ClockJump

Handler = Callable[[], object]
BeforeWait = Callable[[int | None, bool], int | None]
Events = list[tuple[int, int]]
"""Descriptors that are readable, as epoll returns them."""
CONTROL_WAITS_US = 100_000
JUMP_US_MIN = 10_000
"""A shorter jump of the clocks is no suspend."""
_WAIT_S_MAX = 86_400.0
"""epoll takes at most 24 days; a caller plans again after a wait that ends early."""


class PollableSource(Protocol):
    """The part of a source that the loop uses."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is input."""

    def control_fileno(self) -> int:
        """A descriptor that is readable when `serve_control` has work; -1: there is none."""

    def serve_control(self, monotonic_us: int) -> None:
        """Serve handshakes and the like; never waits."""


class EventLoop:
    """Sleeps until input is ready, a deadline passes, or a control descriptor is readable.

    Only `wake` and `call` may be called from other threads and from signal handlers.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._control: dict[int, Handler] = {}
        self._on_signal: dict[int, Handler] = {}
        self._signal_sockets: tuple[socket.socket, ...] = ()
        self._all = select.epoll()
        self._muted = select.epoll()
        self._commit = select.epoll()
        self._hurried = select.epoll()
        self._hurried_commit = select.epoll()
        """The muted and the commit's epoll without control that may take long."""
        self._short = set[int]()
        self.control_us = 0.0
        """How long control takes: the longest lately; it falls by a hundredth with each served."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Handler] = deque()
        self._add_short(self._wake_fd, self._on_wake)
        self._jump, self._suspended_us = ClockJump(), suspended_us()
        self._add_short(self._jump.fileno(), self._on_jump)
        self.on_resumed: Callable[[int], None] = lambda _: None
        """Called after a suspend of the machine, by whatever process, with its length in µs."""
        self.before_wait: Callable[[int | None, bool], int | None] = lambda deadline_us, _: (
            deadline_us
        )
        """Called before a wait, with its deadline and whether the sources are muted.  It may
        suspend the machine; it returns when the wait is to end, at the deadline or before."""
        self._served = 0
        self.wakes = 0
        """Waits that ended so far."""
        self.unready_us = 0
        """Monotonic time at which a look at the sources last found none ready."""

    def add_control(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever `fd` is readable, in every kind of wait, unless it would make a
        beat late."""
        self._control[fd] = handler
        for poller in (self._all, self._muted, self._commit):
            poller.register(fd, select.EPOLLIN)

    def _add_short(self, fd: int, handler: Handler) -> None:
        """Control that takes no time and never waits."""
        self.add_control(fd, handler)
        self._short.add(fd)
        for poller in (self._hurried, self._hurried_commit):
            poller.register(fd, select.EPOLLIN)

    def add_source(self, source: PollableSource) -> None:
        """End `until_input` when the source is ready; serve its control in every kind of wait."""
        self._all.register(source.fileno(), select.EPOLLIN)
        if (control := source.control_fileno()) >= 0:
            self.add_control(control, lambda: source.serve_control(self._clock.monotonic_us()))

    def remove_source(self, source: PollableSource) -> None:
        """Remove a source, before it is closed."""
        self._all.unregister(source.fileno())
        if (control := source.control_fileno()) >= 0:
            self.remove_control(control)

    def add_commit(self, fd: int) -> None:
        """End `until_commit` when `fd` is readable."""
        for poller in (self._commit, self._hurried_commit):
            poller.register(fd, select.EPOLLIN)

    def wake(self) -> None:
        """End the wait that is under way; safe from signal handlers and other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def call(self, handler: Handler) -> None:
        """Call `handler` on the loop's thread, in its next wait; any thread."""
        self._calls.append(handler)
        self.wake()

    def remove_control(self, fd: int) -> None:
        """Remove a descriptor of `add_control`, before it is closed."""
        del self._control[fd]
        for poller in (self._all, self._muted, self._commit):
            poller.unregister(fd)

    def catch_signals(self, numbers: Sequence[signal.Signals], handler: Handler) -> None:
        """Call `handler` after any of the signals, on the loop's thread."""
        if not self._on_signal:
            reader, writer = socket.socketpair()
            for end in (reader, writer):
                end.setblocking(False)
            signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            self._signal_sockets = (reader, writer)
            self._add_short(reader.fileno(), self._on_signals)
        for number in numbers:
            self._on_signal[number] = handler
            signal.signal(number, lambda *_: None)

    def until_input(self, deadline_us: int | None, muted: bool = False) -> bool:
        """Wait for a source to be ready; False where control or the deadline ended the wait, as
        they do with `muted` sources in any case.

        Control is served after the look at the sources: the data of a connection that it admits
        arrived no earlier than the connection, which ended the wait.
        """
        poller = self._muted if muted else self._all
        return self._wait(poller, self.before_wait(deadline_us, muted))

    def ready_now(self) -> bool:
        """Whether a source is ready now, or once control is served."""
        served = self._served
        if self._wait(self._all, 0):
            return True
        return self._served != served and self._wait(self._all, 0)

    def serve_control(self) -> None:
        """Serve control without waiting, for a caller that does not sleep."""
        self._wait(self._muted, 0)

    def until(self, deadline_us: int, stop: Callable[[], bool]) -> None:
        """Sleep until the deadline or until `stop()`, with the sources muted; control is served as
        long as it is likely to end in time."""
        while not stop() and deadline_us - self._clock.monotonic_us() >= 1_000:
            events = self._poll(self._muted, self.before_wait(deadline_us, True))
            if events and deadline_us - self._clock.monotonic_us() <= self.control_us:
                events = self._short_of(events) or self._poll(self._hurried, deadline_us)
            self._serve(events)

    def until_commit(self, deadline_us: int | None = None) -> None:
        """Wait for a descriptor of `add_commit`, with the sources muted; control is served once the
        wait takes long."""
        events = self._poll(self._commit, deadline_us)
        short = self._short_of(events)
        if events and not short:
            until_us = self._clock.monotonic_us() + CONTROL_WAITS_US
            until_us = until_us if deadline_us is None else min(until_us, deadline_us)
            short = self._poll(self._hurried_commit, until_us)
        self._serve(short or events)

    def close(self) -> None:
        """Release the descriptors."""
        for poller in (
            self._all, self._muted, self._commit, self._hurried, self._hurried_commit
        ):  # fmt: skip
            poller.close()
        os.close(self._wake_fd)
        self._jump.close()
        if self._signal_sockets:
            signal.set_wakeup_fd(-1)
        for end in self._signal_sockets:
            end.close()

    def _wait(self, poller: select.epoll, deadline_us: int | None) -> bool:
        """Wait once and serve control; whether a source is ready."""
        events = self._poll(poller, deadline_us)
        source = any(fd not in self._control for fd, _ in events)
        if poller is self._all and not source:
            self.unready_us = self._clock.monotonic_us()
        self._serve(events)
        return source

    def _short_of(self, events: Events) -> Events:
        """The events without control that may take long."""
        return [(fd, e) for fd, e in events if fd not in self._control or fd in self._short]

    def _serve(self, events: Events) -> None:
        """Serve the control among the events, and learn how long it takes."""
        began_us, served = self._clock.monotonic_us(), self._served
        for fd, _ in events:
            if (handler := self._control.get(fd)) is not None:
                self._served += 1
                handler()
        if self._served != served:
            took_us = self._clock.monotonic_us() - began_us
            self.control_us = max(float(took_us), 0.99 * self.control_us)

    def _poll(self, poller: select.epoll, deadline_us: int | None) -> Events:
        timeout = -1.0
        if deadline_us is not None:
            timeout = (deadline_us - self._clock.monotonic_us()) / 1e6
            timeout = min(max(0.0, timeout), _WAIT_S_MAX)
        events = poller.poll(timeout)
        self.wakes += timeout != 0.0
        return events

    def _on_signals(self) -> None:
        """Call the handlers.  Python writes the number of each signal as a byte; repeated signals
        are handled once."""
        for number in set(self._signal_sockets[0].recv(64)):
            if number in self._on_signal:
                self._on_signal[number]()

    def _on_jump(self) -> None:
        """The machine has resumed, or its wall clock was set."""
        self._jump.clear()
        was_us, self._suspended_us = self._suspended_us, suspended_us()
        if self._suspended_us - was_us >= JUMP_US_MIN:
            self.on_resumed(self._suspended_us - was_us)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a nested wait has read it
            os.eventfd_read(self._wake_fd)
        while self._calls:
            self._calls.popleft()()
