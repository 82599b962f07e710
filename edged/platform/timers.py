"""Linux timerfds: descriptors that become readable at a time, or where the clock has jumped.

The event loop polls them beside the sockets, so that timed work needs no thread.  A timer counts
on CLOCK_BOOTTIME, the clock of `edged.platform.clock`: one that comes due in a suspend is readable
after it.  A timeout of epoll counts on CLOCK_MONOTONIC, which stands still in a suspend;
`ClockJump` ends such a wait.  The system calls are made through libc; Python has them only from
3.13 on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

_CLOCK_REALTIME, _CLOCK_BOOTTIME = 0, 7
_NONBLOCK = os.O_NONBLOCK
_CLOEXEC = os.O_CLOEXEC
_ABSTIME, _CANCEL_ON_SET = 1, 2
_FAR_S = 1 << 31


class _Setting(ctypes.Structure):
    """`struct itimerspec`: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None, use_errno=True)


class TimerFd:
    """One timer, initially disarmed.  Arming again replaces the time and clears readability."""

    def __init__(self) -> None:
        self._fd = _checked(_libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK | _CLOEXEC))
        self.due_us: int | None = None
        """The armed time; None: disarmed."""

    def fileno(self) -> int:
        """The descriptor: readable from the armed time on, until armed again or disarmed."""
        return self._fd

    def arm(self, monotonic_us: int) -> None:
        """Become readable at `monotonic_us`, or at once if that has passed."""
        self.due_us = monotonic_us
        seconds, us = divmod(max(monotonic_us, 0), 1_000_000)
        self._set(seconds, max(us * 1000, 1) if seconds == 0 else us * 1000)

    def disarm(self) -> None:
        """Cancel the timer and clear readability."""
        self.due_us = None
        self._set(0, 0)

    def close(self) -> None:
        """Release the descriptor; closing again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _set(self, seconds: int, ns: int) -> None:
        setting = _Setting(0, 0, seconds, ns)
        _checked(_libc.timerfd_settime(self._fd, _ABSTIME, ctypes.byref(setting), None))


class ClockJump:
    """A descriptor that is readable once the wall clock was set or the machine has resumed from a
    suspend: the kernel cancels such a timer (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET)."""

    def __init__(self) -> None:
        self._fd = _checked(_libc.timerfd_create(_CLOCK_REALTIME, _NONBLOCK | _CLOEXEC))
        self._arm()

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def clear(self) -> None:
        """Wait for the next jump."""
        with contextlib.suppress(OSError):  # ECANCELED, which is the news
            os.read(self._fd, 8)
        self._arm()

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self._fd)

    def _arm(self) -> None:
        setting = _Setting(0, 0, int(time.time()) + _FAR_S, 0)
        flags = _ABSTIME | _CANCEL_ON_SET
        _checked(_libc.timerfd_settime(self._fd, flags, ctypes.byref(setting), None))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
