"""Subscriptions of the command `watch`: a status document each interval, and every event.

Nothing is queued.  A subscriber whose buffer is empty gets the events after its last one, straight
from the event log, and then, once its interval has passed, a status document of that moment.  A
slow subscriber gets the newest status when it has caught up, and the number of events that it
missed.  The timer runs only while there are subscribers.
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
SUBSCRIBERS_MAX = 16
EVENTS_A_TIME = 100
"""Events written at once before the client's buffer is checked again."""


@dataclass(eq=False, slots=True)
class Subscriber:
    """One client of `watch`."""

    interval_us: int
    last: int
    """Id of the last event that was written."""
    next_us: int
    """When the next status is due (monotonic)."""


class Subscriptions:
    """All subscribers; the heart's thread only, except `on_event`.

    `wake` makes the door call `due` soon; it is called on any thread.
    """

    def __init__(
        self,
        clock: Clock,
        events: Events,
        status: Callable[[], dict[str, Any]],
        wake: Callable[[], None],
    ) -> None:
        self._clock, self._events, self._status, self._wake = clock, events, status, wake
        self._timer = TimerFd()
        self._subscribers: set[Subscriber] = set()
        self._cached: tuple[int, bytes] = (0, b"")
        """Time and line of the last status."""
        self._has_events = False
        events.subscribe(self.on_event)

    def fileno(self) -> int:
        """The timer: readable when a status is due."""
        return self._timer.fileno()

    def on_event(self) -> None:
        """There is a new event; any thread."""
        if self._subscribers:
            self._has_events = True
            self._wake()

    def begin(self, request: dict[str, Any]) -> Subscriber:
        """Add a subscriber.  Raises CommandError."""
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            raise CommandError("busy", f"{SUBSCRIBERS_MAX} clients watch already", retry_s=5.0)
        interval = request.get("interval_ms", 1000)
        if not isinstance(interval, int) or not INTERVAL_MS_MIN <= interval <= INTERVAL_MS_MAX:
            allowed = f"a number of {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}"
            raise CommandError("invalid", f"{interval!r} is not {allowed}", where="interval_ms")
        since = request.get("since")
        if since is None:
            since = self._events.newest()
        if not isinstance(since, int) or isinstance(since, bool):
            raise CommandError("invalid", f"{since!r} is not an event's id", where="since")
        subscriber = Subscriber(1000 * interval, since, self._clock.monotonic_us())
        self._subscribers.add(subscriber)
        return subscriber

    def end(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self._subscribers.discard(subscriber)
        self.arm()

    def due(self) -> bool:
        """Whether there may be lines for subscribers whose buffer is empty."""
        if not self._subscribers:
            return False
        now = self._clock.monotonic_us()
        has_events, self._has_events = self._has_events, False
        return has_events or any(s.next_us <= now for s in self._subscribers)

    def line(self, subscriber: Subscriber) -> bytes:
        """Whole lines to write now; empty: nothing is due."""
        found, missed = self._events.since(subscriber.last, EVENTS_A_TIME)
        lines: list[dict[str, Any]] = [{"missed": missed}] if missed else []
        lines += [{"event": event} for event in found]
        if found:
            subscriber.last = found[-1]["id"]
            return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        now = self._clock.monotonic_us()
        if now < subscriber.next_us:
            return b""
        subscriber.next_us = (now // subscriber.interval_us + 1) * subscriber.interval_us
        self.arm()
        return self._status_line(now)

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    def _status_line(self, now: int) -> bytes:
        """The line of a status that is at most a tenth of the shortest interval old."""
        made_us, line = self._cached
        if not line or now - made_us > 100 * INTERVAL_MS_MIN:
            line = json.dumps({"snapshot": self._status()}).encode() + b"\n"
            self._cached = (now, line)
        return line

    def arm(self) -> None:
        """Set the timer to the next due status.

        A status that is overdue belongs to a slow subscriber; its socket wakes the door once it is
        writable.
        """
        now = self._clock.monotonic_us()
        later = [s.next_us for s in self._subscribers if s.next_us > now]
        if later:
            self._timer.arm(min(later))
        else:
            self._timer.disarm()
