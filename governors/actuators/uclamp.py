"""Utilisation clamps: lower and upper bounds on the load that the scheduler assumes for a task.

`sched_setattr(2)` with SCHED_FLAG_UTIL_CLAMP_{MIN,MAX}, Linux 5.3 and CONFIG_UCLAMP_TASK (kernel:
Documentation/scheduler/sched-util-clamp.rst, include/uapi/linux/sched.h). Values are 0 to 1024, a
share of the fastest core's capacity.  A process needs no privilege for its own tasks.  Clamps do
not affect other processes and end with the task, so they need no journal.  They act only under the
schedutil governor.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from time import perf_counter_ns

from governors.actuators.base import WriteCost
from governors.errors import ActuatorError

FULL = 1024
_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""sched_setattr, sched_getattr."""
_KEEP_ALL = 0x08 | 0x10
"""SCHED_FLAG_KEEP_POLICY | SCHED_FLAG_KEEP_PARAMS."""
_CLAMP = 0x20 | 0x40
"""SCHED_FLAG_UTIL_CLAMP_MIN | _MAX."""


class _Attributes(ctypes.Structure):
    """struct sched_attr, version 1."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
        ("util_min", ctypes.c_uint32),
        ("util_max", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Clamp:
    """Utilisation between `low` and `high`, 0 to FULL."""

    low: int = 0
    high: int = FULL


class UtilClamp:
    """Clamps tasks (threads), and restores their previous clamps.  Raises ActuatorError where the
    kernel has no clamps."""

    def __init__(self) -> None:
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None:
            raise ActuatorError(f"uclamp: no system call number for {platform.machine()}")
        self._set, self._get = numbers
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._saved: dict[int, Clamp] = {}
        self.entering, self.leaving = WriteCost(), WriteCost()
        self.clamp(0, self.read(0))
        self._saved.clear()

    def read(self, task: int) -> Clamp:
        """Clamp of a task; 0 is the calling thread.  Raises ActuatorError."""
        got = self._attributes(task)
        return Clamp(got.util_min, got.util_max)

    def clamp(self, task: int, clamp: Clamp) -> None:
        """Clamp a task until `release`. Raises ActuatorError."""
        if not 0 <= clamp.low <= clamp.high <= FULL:
            raise ActuatorError(f"uclamp: {clamp} is not within 0 to {FULL}")
        if task not in self._saved:
            self._saved[task] = self.read(task)
        started = perf_counter_ns()
        self._store(task, clamp)
        self.entering.note((perf_counter_ns() - started) / 1000)

    def release(self) -> None:
        """Restore the previous clamps; tasks that have ended are skipped."""
        for task, saved in self._saved.items():
            started = perf_counter_ns()
            try:
                self._store(task, saved)
            except ActuatorError:
                continue
            self.leaving.note((perf_counter_ns() - started) / 1000)
        self._saved.clear()

    def _store(self, task: int, clamp: Clamp) -> None:
        wanted = _Attributes(
            size=ctypes.sizeof(_Attributes),
            flags=_KEEP_ALL | _CLAMP,
            util_min=clamp.low,
            util_max=clamp.high,
        )
        if self._call(self._set, task, ctypes.byref(wanted), 0):
            raise self._error(task)

    def _attributes(self, task: int) -> _Attributes:
        got = _Attributes()
        size = ctypes.sizeof(got)
        if self._call(self._get, task, ctypes.byref(got), size, 0):
            raise self._error(task)
        if got.size < size:
            raise ActuatorError("uclamp: this kernel has none (before 5.3)")
        return got

    @staticmethod
    def _error(task: int) -> ActuatorError:
        problem = os.strerror(ctypes.get_errno())
        return ActuatorError(f"uclamp of task {task or os.getpid()}: {problem}; leave it off here")
