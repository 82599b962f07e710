"""The event loop: sleeps until input, a deadline or control needs the thread; it never polls.

Three epolls serve three kinds of wait: for input, with the sources muted, and for a commit.  All
three serve control descriptors.  The first readiness of a source starts the beat's timer.  From
then on source descriptors are left out, so that data accumulates in the kernel's buffers and the
cores sleep until the wake.
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

from edged.platform.clock import Clock

Handler = Callable[[], object]
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
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Handler] = deque()
        self.add_control(self._wake_fd, self._on_wake)
        self._served = 0
        self.wakes = 0
        """Waits that ended so far."""
        self.unready_us = 0
        """Monotonic time at which `until_input` last found no source ready."""

    def add_control(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever `fd` is readable, in every kind of wait."""
        self._control[fd] = handler
        for poller in (self._all, self._muted, self._commit):
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
        self._commit.register(fd, select.EPOLLIN)

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
            self.add_control(reader.fileno(), self._on_signals)
        for number in numbers:
            self._on_signal[number] = handler
            signal.signal(number, lambda *_: None)

    def until_input(self, deadline_us: int | None) -> bool:
        """Wait for a source to be ready; False where control or the deadline ended the wait.

        Control is served after the look at the sources: the data of a connection that it admits
        arrived no earlier than the connection, which ended the wait.
        """
        return self._wait(self._all, deadline_us, self._note_unready)

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
        """Sleep until the deadline or until `stop()`, with the sources muted; control is served."""
        while not stop() and deadline_us - self._clock.monotonic_us() >= 1_000:
            self._wait(self._muted, deadline_us)

    def until_commit(self, deadline_us: int | None = None) -> None:
        """Wait for a descriptor of `add_commit`, with the sources muted; control is served."""
        self._wait(self._commit, deadline_us)

    def close(self) -> None:
        """Release the descriptors."""
        for poller in (self._all, self._muted, self._commit):
            poller.close()
        os.close(self._wake_fd)
        if self._signal_sockets:
            signal.set_wakeup_fd(-1)
        for end in self._signal_sockets:
            end.close()

    def _wait(
        self,
        poller: select.epoll,
        deadline_us: int | None,
        on_unready: Callable[[], None] = lambda: None,
    ) -> bool:
        timeout = -1.0
        if deadline_us is not None:
            timeout = (deadline_us - self._clock.monotonic_us()) / 1e6
            timeout = min(max(0.0, timeout), _WAIT_S_MAX)
        events = poller.poll(timeout)
        self.wakes += timeout != 0.0
        source = any(fd not in self._control for fd, _ in events)
        if not source:
            on_unready()
        for fd, _ in events:
            if (handler := self._control.get(fd)) is not None:
                self._served += 1
                handler()
        return source

    def _note_unready(self) -> None:
        self.unready_us = self._clock.monotonic_us()

    def _on_signals(self) -> None:
        """Call the handlers.  Python writes the number of each signal as a byte; repeated signals
        are handled once."""
        for number in set(self._signal_sockets[0].recv(64)):
            if number in self._on_signal:
                self._on_signal[number]()

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a nested wait has read it
            os.eventfd_read(self._wake_fd)
        while self._calls:
            self._calls.popleft()()
