"""Waiting without polling: one epoll for everything, one for control while the reader is muted,
and one for control while a commit is awaited.

The first readiness of a source starts the beat's timer; from then on the sources' descriptors are
left alone, so that bytes pile up in the kernel and the cores sleep until the wake.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence

from edged.platform.clock import Clock
from edged.sources.base import Source

Handler = Callable[[], object]


class Waiter:
    """Sleeps until input is ready, a deadline passes, or control wants something."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._control: dict[int, Handler] = {}
        self._on_signal: dict[int, Handler] = {}
        self._signal_sockets: tuple[socket.socket, ...] = ()
        self._all = select.epoll()
        self._muted = select.epoll()
        self._commit = select.epoll()
        self._kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Handler] = deque()
        self.add_control(self._kick, self._kicked)
        self.wakes = 0

    def add_control(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever `fd` is readable, muted or not."""
        self._control[fd] = handler
        for poller in (self._all, self._muted, self._commit):
            poller.register(fd, select.EPOLLIN)

    def add_source(self, source: Source) -> None:
        """Let the source's readiness end `until_input`, and serve its control muted or not."""
        self._all.register(source.fileno(), select.EPOLLIN)
        if (control := source.control_fileno()) >= 0:
            self.add_control(control, lambda: source.serve_control(self._clock.monotonic_us()))

    def remove_source(self, source: Source) -> None:
        """Forget a source, before it is closed."""
        self._all.unregister(source.fileno())
        if (control := source.control_fileno()) >= 0:
            self.remove_control(control)

    def add_commit(self, fd: int) -> None:
        """Let `fd` end `until_commit`."""
        self._commit.register(fd, select.EPOLLIN)

    def kick(self) -> None:
        """End whatever wait is under way; safe from signal handlers and other threads."""
        os.eventfd_write(self._kick, 1)

    def call(self, handler: Handler) -> None:
        """Call `handler` soon on the loop's thread, in the next wait; any thread."""
        self._calls.append(handler)
        self.kick()

    def remove_control(self, fd: int) -> None:
        """Forget a descriptor of `add_control`, before it is closed."""
        del self._control[fd]
        for poller in (self._all, self._muted, self._commit):
            poller.unregister(fd)

    def catch_signals(self, numbers: Sequence[signal.Signals], handler: Handler) -> None:
        """Run `handler` soon after any of the signals, on the loop's thread."""
        if not self._on_signal:
            ours, pythons = socket.socketpair()
            for end in (ours, pythons):
                end.setblocking(False)
            signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
            self._signal_sockets = (ours, pythons)
            self.add_control(ours.fileno(), self._heard)
        for number in numbers:
            self._on_signal[number] = handler
            signal.signal(number, lambda *_: None)

    def until_input(self, deadline_us: int | None) -> bool:
        """Wait for a source to be ready; False when control or the deadline came first."""
        return self._wait(self._all, deadline_us)

    def ready_now(self) -> bool:
        """Whether a source is ready at this moment."""
        return self._wait(self._all, 0)

    def serve_control(self) -> None:
        """Serve what control wants, without waiting: for loops that do not sleep."""
        self._wait(self._muted, 0)

    def until(self, deadline_us: int, stop: Callable[[], bool]) -> None:
        """Sleep with the sources muted until the deadline; control is served meanwhile."""
        while not stop() and deadline_us - self._clock.monotonic_us() >= 1_000:
            self._wait(self._muted, deadline_us)

    def until_commit(self, deadline_us: int | None = None) -> None:
        """Wait for news of the commit, with the sources muted; control is served."""
        self._wait(self._commit, deadline_us)

    def close(self) -> None:
        """Release the descriptors."""
        for poller in (self._all, self._muted, self._commit):
            poller.close()
        os.close(self._kick)
        if self._signal_sockets:
            signal.set_wakeup_fd(-1)
        for end in self._signal_sockets:
            end.close()

    def _wait(self, poller: select.epoll, deadline_us: int | None) -> bool:
        timeout = -1.0
        if deadline_us is not None:
            timeout = max(0.0, (deadline_us - self._clock.monotonic_us()) / 1e6)
        events = poller.poll(timeout)
        self.wakes += timeout != 0.0
        source = False
        for fd, _ in events:
            handler = self._control.get(fd)
            if handler is None:
                source = True
            else:
                handler()
        return source

    def _heard(self) -> None:
        """Python has written the number of each signal as a byte; many at once run once."""
        for number in set(self._signal_sockets[0].recv(64)):
            if number in self._on_signal:
                self._on_signal[number]()

    def _kicked(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a handler that waits itself has taken it
            os.eventfd_read(self._kick)
        while self._calls:
            self._calls.popleft()()
