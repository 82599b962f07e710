"""A pool of threads that run kernels side by side, one a core, asleep in between.

`Workers.run` hands out calls of functions that release the GIL.  The calling thread takes its
share; with one worker, or one call, nothing is handed over and no thread wakes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Workers:
    """`count` workers, the caller included.  Not reentrant; one caller at a time."""

    def __init__(self, count: int) -> None:
        self.count = max(1, count)
        self._calls: list[Callable[[], Any]] = []
        self._results: list[Any] = []
        self._next = 0
        self._take = threading.Lock()
        self._start = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._closing = False
        self._threads = [
            threading.Thread(target=self._loop, name=f"edged-worker-{i}", daemon=True)
            for i in range(1, self.count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run every call, in parallel; results in order.  The first exception is raised again."""
        if self.count == 1 or len(calls) <= 1:
            return [call() for call in calls]
        self._calls, self._results, self._next = list(calls), [None] * len(calls), 0
        helpers = min(self.count, len(calls)) - 1
        for _ in range(helpers):
            self._start.release()
        self._drain()
        for _ in range(helpers):
            self._done.acquire()
        for result in self._results:
            if isinstance(result, BaseException):
                raise result
        return self._results

    def tasks(self) -> list[int]:
        """The threads that run calls beside the calling one, as the kernel names them."""
        return [t.native_id for t in self._threads if t.native_id is not None]

    def close(self) -> None:
        """End the threads."""
        self._closing = True
        for _ in self._threads:
            self._start.release()
        for thread in self._threads:
            thread.join()

    def _loop(self) -> None:
        while True:
            self._start.acquire()
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
