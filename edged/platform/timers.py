"""A Linux timerfd: a file descriptor that becomes readable at a time of CLOCK_MONOTONIC.

The event loop polls it beside the sockets, so that timed work needs no thread.  The system call is
made through libc; Python has it only from 3.13 on.
"""

from __future__ import annotations

import ctypes
import os

_CLOCK_MONOTONIC = 1
_NONBLOCK = os.O_NONBLOCK
_CLOEXEC = os.O_CLOEXEC
_ABSTIME = 1


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
        self._fd = _checked(_libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC))

    def fileno(self) -> int:
        """The descriptor: readable from the armed time on, until armed again or disarmed."""
        return self._fd

    def arm(self, monotonic_us: int) -> None:
        """Become readable at `monotonic_us`, or at once if that has passed."""
        seconds, us = divmod(max(monotonic_us, 0), 1_000_000)
        self._set(seconds, max(us * 1000, 1) if seconds == 0 else us * 1000)

    def disarm(self) -> None:
        """Cancel the timer and clear readability."""
        self._set(0, 0)

    def close(self) -> None:
        """Release the descriptor; closing again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _set(self, seconds: int, ns: int) -> None:
        setting = _Setting(0, 0, seconds, ns)
        _checked(_libc.timerfd_settime(self._fd, _ABSTIME, ctypes.byref(setting), None))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
