"""The disk-full gate: what waits for disk space, since when, and for how long in total.

A commit waits for space in the store, a sink for space for its file.  Meanwhile beats stop, the
sources apply backpressure to their producers, and nothing is refused or lost.  Work resumes by
itself when the centre has acknowledged pages or another process has freed space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edged.events.publisher import EventPublisher
from edged.platform.clock import Clock

RETRY_MS = 1000
"""Interval of retries.  Space may appear without an ack: other processes use the disk, too."""

Usage = Callable[[], tuple[int, int | None]]
"""Bytes that the store uses, and the most that it may use (None: no limit)."""


class DiskFullGate:
    """The gate of one daemon; any thread.  It publishes when it closes and when it opens."""

    def __init__(self, clock: Clock, publisher: EventPublisher, usage: Usage) -> None:
        self._clock, self._publisher, self._usage = clock, publisher, usage
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._since_us = self._past_us = 0

    @property
    def full(self) -> bool:
        """Whether anything waits for space."""
        return bool(self._waiting)

    def wait(self, what: str, reason: str) -> None:
        """Note that `what` waits for space; a second call changes nothing."""
        with self._lock:
            first = not self._waiting
            self._waiting.add(what)
            if first:
                self._since_us = self._clock.monotonic_us()
        if first:
            self._publisher.store_full(reason, *self._usage())

    def proceed(self, what: str) -> None:
        """Note that `what` does not wait; a call without a wait changes nothing."""
        with self._lock:
            last = self._waiting == {what}
            self._waiting.discard(what)
            if last:
                self._past_us += self._clock.monotonic_us() - self._since_us
        if last:
            self._publisher.store_has_room(*self._usage())

    def full_us(self) -> int:
        """Total time with anything waiting."""
        with self._lock:
            now_us = self._clock.monotonic_us() if self._waiting else self._since_us
            return self._past_us + now_us - self._since_us
