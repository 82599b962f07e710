"""Who waits for room on the disk: a commit for room in the store, a sink for that of its file.

Nothing is refused and nothing is lost meanwhile: beats stop, the sources fill up to their
producers, and all goes on by itself when the centre has taken pages off the store or somebody has
made room on the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edged.platform.clock import Clock

ROOM_MS = 1000
"""The disk may have room again without an ack: other processes may have filled it."""


class Room:
    """Of one daemon; any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._waiting: set[str] = set()
        self._since_us = self._past_us = 0
        self.told: Callable[[bool, str], None] = lambda *_: None
        """Told that there is no room, and why, and that there is some again."""

    @property
    def full(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def wanted(self, who: str, why: str) -> None:
        """`who` waits from now on, if not before."""
        with self._lock:
            first = not self._waiting
            self._waiting.add(who)
            if first:
                self._since_us = self._clock.monotonic_us()
        if first:
            self.told(False, why)

    def found(self, who: str) -> None:
        """`who` does not wait any more."""
        with self._lock:
            last = self._waiting == {who}
            self._waiting.discard(who)
            if last:
                self._past_us += self._clock.monotonic_us() - self._since_us
        if last:
            self.told(True, "")

    def full_us(self) -> int:
        """For how long somebody has waited so far."""
        with self._lock:
            now_us = self._clock.monotonic_us() if self._waiting else self._since_us
            return self._past_us + now_us - self._since_us
