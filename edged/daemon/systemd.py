"""The daemon as a systemd service: readiness, watchdog, reload and status (sd_notify(3)).

The heart's own waits feed the watchdog, by a timer at half of systemd's interval.  A beat that does
not return feeds nothing, and systemd kills and restarts the daemon.  Without $NOTIFY_SOCKET, as in
a terminal, nothing is sent and there is no watchdog (`edged.platform.notify`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from edged.platform.clock import Clock
from edged.platform.event_loop import EventLoop
from edged.platform.notify import Notifier
from edged.platform.timers import TimerFd

START_STEP_S = 180
"""Time that one step of the start may take: to compile a kernel, or to replay the log."""


class SystemdService:
    """The service's state as systemd sees it.  Never raises.

    `feed` of the watchdog drops its message where systemd's queue is full; other messages wait for
    room, with a limit.
    """

    def __init__(self, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._clock = clock
        self._notifier = Notifier(environ)
        self._watchdog_us = _watchdog_us(environ) if self._notifier.is_supervised else 0
        self._timer: TimerFd | None = None
        self._describe: Callable[[], str] = lambda: ""

    def starting(self, step: str) -> None:
        """A step of the start begins; it may take START_STEP_S."""
        self._notifier.send_nowait(
            STATUS=f"starting: {step}", EXTEND_TIMEOUT_USEC=START_STEP_S * 1_000_000
        )

    def ready(self, event_loop: EventLoop, describe: Callable[[], str] = lambda: "") -> None:
        """The sources are open and the control door answers; `event_loop` feeds from now on.

        `describe` returns a line of status for `systemctl status`; it is called at each feed.
        """
        self._describe = describe
        self._notifier.send(READY=1, STATUS=describe())
        if self._watchdog_us and self._timer is None:
            self._timer = TimerFd()
            event_loop.add_control(self._timer.fileno(), self._feed)
            self._feed()

    def reloading(self) -> None:
        """A reload has begun; `reloaded` must follow."""
        self._notifier.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def reloaded(self, result: str) -> None:
        """The reload was applied or refused."""
        self._notifier.send(READY=1, STATUS=result)

    def stopping(self, within_us: int = 0) -> None:
        """A stop has begun.  It may take `within_us` from now, where that is not 0."""
        more = {"EXTEND_TIMEOUT_USEC": within_us} if within_us else {}
        self._notifier.send(STOPPING=1, STATUS="stopping", **more)

    def close(self) -> None:
        """Release the descriptors."""
        if self._timer is not None:
            self._timer.close()
        self._notifier.close()

    def _feed(self) -> None:
        assert self._timer is not None
        status = self._describe()
        self._notifier.send_nowait(WATCHDOG=1, **({"STATUS": status} if status else {}))
        self._timer.arm(self._clock.monotonic_us() + self._watchdog_us // 2)


def _watchdog_us(environ: Mapping[str, str]) -> int:
    """systemd's interval (sd_watchdog_enabled(3)); 0: this process has no watchdog."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    interval = environ.get("WATCHDOG_USEC", "")
    return int(interval) if interval.isdigit() else 0
