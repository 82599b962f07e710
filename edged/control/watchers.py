"""Who watches the daemon through its door: a snapshot each interval, and every event.

Nothing is queued for anybody.  A watcher who has taken all that he was told gets the events after
his last one, straight from the list of events, and then, where his interval has passed, a snapshot
of that moment; who is slow gets the newest snapshot when he has caught up, and is told how many
events he has missed.  The timer runs only while somebody watches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edged.errors import CommandError
from edged.events.log import Events
from edged.platform.clock import Clock
from edged.platform.timers import TimerFd

INTERVAL_MS_MIN, INTERVAL_MS_MAX = 250, 3_600_000
WATCHERS_MAX = 16
EVENTS_A_TIME = 100
"""Events that are written at once before the client's buffer is looked at again."""


@dataclass(eq=False, slots=True)
class Watcher:
    """One who watches."""

    interval_us: int
    last: int
    """Id of the last event that he was told."""
    next_us: int
    """When his next snapshot is due (monotonic)."""


class Watching:
    """All who watch.  The heart's thread only, but for `poke`."""

    def __init__(self, clock: Clock, events: Events, picture: Callable[[], dict[str, Any]]) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Have the door look, soon, on the heart's thread."""
        self._clock, self._events, self._picture = clock, events, picture
        self._timer = TimerFd()
        self._watchers: set[Watcher] = set()
        self._drawn: tuple[int, bytes] = (0, b"")
        self._news = False
        events.listener = self.poke

    def fileno(self) -> int:
        """The timer: readable when a snapshot is due."""
        return self._timer.fileno()

    def poke(self) -> None:
        """There is an event; on any thread."""
        if self._watchers:
            self._news = True
            self.wake()

    def begin(self, request: dict[str, Any]) -> Watcher:
        """Somebody begins to watch.  Raises CommandError."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise CommandError("busy", f"{WATCHERS_MAX} clients watch already", retry_s=5.0)
        interval = request.get("interval_ms", 1000)
        if not isinstance(interval, int) or not INTERVAL_MS_MIN <= interval <= INTERVAL_MS_MAX:
            allowed = f"a number of {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}"
            raise CommandError("invalid", f"{interval!r} is not {allowed}", where="interval_ms")
        since = request.get("since")
        if since is None:
            since = self._events.newest()
        if not isinstance(since, int) or isinstance(since, bool):
            raise CommandError("invalid", f"{since!r} is not an event's id", where="since")
        watcher = Watcher(1000 * interval, since, self._clock.monotonic_us())
        self._watchers.add(watcher)
        return watcher

    def end(self, watcher: Watcher) -> None:
        """He is gone."""
        self._watchers.discard(watcher)
        self.arm()

    def due(self) -> bool:
        """Whether there may be something to tell to those who have taken everything."""
        if not self._watchers:
            return False
        now = self._clock.monotonic_us()
        news, self._news = self._news, False
        return news or any(w.next_us <= now for w in self._watchers)

    def line(self, watcher: Watcher) -> bytes:
        """What he is to be told now, whole lines; nothing: he has to wait."""
        found, missed = self._events.since(watcher.last, EVENTS_A_TIME)
        lines: list[dict[str, Any]] = [{"missed": missed}] if missed else []
        lines += [{"event": event} for event in found]
        if found:
            watcher.last = found[-1]["id"]
            return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        now = self._clock.monotonic_us()
        if now < watcher.next_us:
            return b""
        watcher.next_us = (now // watcher.interval_us + 1) * watcher.interval_us
        self.arm()
        return self._snapshot(now)

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    def _snapshot(self, now: int) -> bytes:
        """The line of a snapshot that is at most a tenth of the least interval old."""
        drawn_us, line = self._drawn
        if not line or now - drawn_us > 100 * INTERVAL_MS_MIN:
            line = json.dumps({"snapshot": self._picture()}).encode() + b"\n"
            self._drawn = (now, line)
        return line

    def arm(self) -> None:
        """Wake when the next snapshot is due to anybody.

        A slow one is not waited for: his socket wakes the door when it can be written to.
        """
        if not self._watchers:
            self._timer.disarm()
            return
        now = self._clock.monotonic_us()
        later = [w.next_us for w in self._watchers if w.next_us > now]
        if later:
            self._timer.arm(min(later))
        else:
            self._timer.disarm()
