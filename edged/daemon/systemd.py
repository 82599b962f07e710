"""What systemd is told, and what it is asked: readiness, watchdog, reload.

`Service` speaks the protocol of sd_notify(3): datagrams of `KEY=VALUE` lines to $NOTIFY_SOCKET.
Without that variable, as in a terminal, it says nothing and keeps no watchdog.

The watchdog is fed from the heart's own waits, by a timer at half of systemd's interval: a beat
that does not come back feeds nothing, and systemd kills and restarts the daemon.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping

from edged.platform.clock import Clock
from edged.platform.event_loop import Waiter
from edged.platform.timers import TimerFd

WAIT_S = 1.0
START_STEP_S = 180
"""What one step of a start may take: compiling a kernel, or replaying the log."""


class Service:
    """Tells systemd what the daemon does.  Never raises; waits only if systemd's queue is full, for
    WAIT_S at most, and only with what must not be lost."""

    def __init__(self, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._clock = clock
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        self._watchdog_us = _watchdog_us(environ) if self._address else 0
        self._timer: TimerFd | None = None
        self.describe: Callable[[], str] = lambda: ""
        """One line of how things stand, for `systemctl status`; asked when the watchdog is fed."""

    def starting(self, what: str) -> None:
        """A step of the start begins: it may take START_STEP_S."""
        self._hint(STATUS=f"starting: {what}", EXTEND_TIMEOUT_USEC=START_STEP_S * 1_000_000)

    def ready(self, waiter: Waiter) -> None:
        """Everything works: sources are open, the door answers.  From now on `waiter` feeds."""
        self._tell(READY=1, STATUS=self.describe())
        if self._watchdog_us and self._timer is None:
            self._timer = TimerFd()
            waiter.add_control(self._timer.fileno(), self._feed)
            self._feed()

    def reloading(self) -> None:
        """A reload has begun; `reloaded` must follow."""
        self._tell(RELOADING=1, MONOTONIC_USEC=self._clock.monotonic_us())

    def reloaded(self, what: str) -> None:
        """The reload is over, applied or refused."""
        self._tell(READY=1, STATUS=what)

    def stopping(self, within_us: int = 0) -> None:
        """A stop has begun, and may take `within_us` from now where that is said."""
        more = {"EXTEND_TIMEOUT_USEC": within_us} if within_us else {}
        self._tell(STOPPING=1, STATUS="stopping", **more)

    def close(self) -> None:
        """Release the descriptors."""
        if self._timer is not None:
            self._timer.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _feed(self) -> None:
        assert self._timer is not None
        status = self.describe()
        self._hint(WATCHDOG=1, **({"STATUS": status} if status else {}))
        self._timer.arm(self._clock.monotonic_us() + self._watchdog_us // 2)

    def _tell(self, **facts: object) -> None:
        self._send(WAIT_S, facts)

    def _hint(self, **facts: object) -> None:
        self._send(0.0, facts)

    def _send(self, wait_s: float, facts: Mapping[str, object]) -> None:
        if self._socket is None:
            return
        lines = "\n".join(f"{key}={_one_line(str(value))}" for key, value in facts.items())
        self._socket.settimeout(wait_s)
        with contextlib.suppress(OSError):  # nobody listens, or not in time
            self._socket.sendto(lines.encode(), self._address)


def _address(named: str) -> str:
    """The socket's address: a path, or with @ a name in the abstract namespace."""
    if named.startswith("@"):
        return "\0" + named[1:]
    return named if named.startswith("/") else ""


def _watchdog_us(environ: Mapping[str, str]) -> int:
    """systemd's interval (sd_watchdog_enabled(3)), 0 where it wants none from this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    interval = environ.get("WATCHDOG_USEC", "")
    return int(interval) if interval.isdigit() else 0


def _one_line(text: str) -> str:
    return text.replace("\n", " ")[:1000]
