"""The worker pool: one thread a core runs kernels in parallel and sleeps in between.

`Workers.run` distributes calls of functions that release the GIL.  `Workers.compute` distributes
kernel calls without the interpreter (`kernels.cpu.team`).  The calling thread takes part.  With one
worker or one call no other thread wakes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import address, apart
from kernels.cpu import team

PARALLEL_ROWS = 16_384
"""Fewer rows are processed on the calling thread: waking another one costs more."""
AWAKE_US = 150.0
"""Time that a worker spins before it sleeps: about the cost of a wake-up, 105 to 160 µs on a 2-core
VM."""
ASLEEP_WORTH_US, AWAKE_WORTH_US = 200.0, 40.0
"""Least work in µs for a second thread: one that sleeps (waking costs both threads as much), and
one that spins (1 to 2 µs).  Pools have limits of their own (`kernels.cpu.beat`)."""
PATIENCE_US = 500.0
"""Time that the calling thread spins for the other workers.  It exceeds a wake-up: a caller that
sleeps earlier returns after its workers have gone to sleep."""

Int64s = npt.NDArray[np.int64]


class Workers:
    """`count` workers, the caller included.  Not reentrant; one caller at a time."""

    def __init__(self, count: int) -> None:
        self.count = max(1, count)
        self._calls: list[Callable[[], Any]] = []
        self._results: list[Any] = []
        self._next = 0
        self._take = threading.Lock()
        self._done = threading.Semaphore(0)
        self._closing = False
        self._memory = apart(self.count, team.SEAT_BYTES // 8)
        for field, value in (
            (team.COUNT, self.count),
            (team.AWAKE_NS, int(1000 * AWAKE_US)),
            (team.PATIENCE_NS, int(1000 * PATIENCE_US)),
            (team.ASLEEP_WORTH_NS, int(1000 * ASLEEP_WORTH_US)),
            (team.AWAKE_WORTH_NS, int(1000 * AWAKE_WORTH_US)),
        ):
            self._memory[0, field // 8] = value
        self.seats = address(self._memory)
        """Address of the team's seats; the first is the calling thread's."""
        self._threads = [
            threading.Thread(target=self._loop, args=(i,), name=f"edged-worker-{i}", daemon=True)
            for i in range(1, self.count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run all calls in parallel; results are in order.  Raises the first exception."""
        if self.count == 1 or len(calls) <= 1:
            return [call() for call in calls]
        self._calls, self._results, self._next = list(calls), [None] * len(calls), 0
        helpers = min(self.count, len(calls)) - 1
        team.dismiss(self.seats, helpers)
        self._drain()
        for _ in range(helpers):
            self._done.acquire()
        for result in self._results:
            if isinstance(result, BaseException):
                raise result
        return self._results

    def compute(self, calls: Int64s) -> None:
        """Run all tasks in parallel; each worker takes the next task until none is left.

        `calls` is int64[tasks, team.CALL_FIELDS]: function and arguments.  The answer, the start
        and the end of each task are written there.
        """
        team.run(self.seats, calls)

    def tasks(self) -> list[int]:
        """The threads that run calls beside the calling one, as the kernel names them."""
        return [t.native_id for t in self._threads if t.native_id is not None]

    def close(self) -> None:
        """End the threads."""
        self._closing = True
        team.dismiss(self.seats, len(self._threads))
        for thread in self._threads:
            thread.join()

    def _loop(self, number: int) -> None:
        while True:
            team.serve(self.seats, number)
            if self._closing:
                return
            self._drain()
            self._done.release()

    def _drain(self) -> None:
        while True:
            with self._take:
                i = self._next
                self._next += 1
            if i >= len(self._calls):
                return
            try:
                self._results[i] = self._calls[i]()
            except BaseException as problem:
                self._results[i] = problem
