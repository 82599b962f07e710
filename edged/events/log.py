"""The event log: a bounded list of the daemon's events, each of which is also one log line.

An event is `{"id", "at_us" (wall clock), "kind" ("dotted.name"), "level", "text", "job" (of some),
"facts"}`; `docs/control.md` lists the kinds.  Ids increase, also over restarts:

    (the store's epoch modulo STORES + its session) * SESSION + 1, 2, ...

A client that continues with the id of another store's event is recognised and gets all events.  The
last EVENTS_MAX events are kept; a client that is too late for some of them gets the number missed.
Events come from the heart's thread and from the commit thread.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from edged.config.sections import LEVELS
from edged.platform.clock import Clock

EVENTS_MAX = 1000
SESSION, STORES = 10**8, 1 << 26
"""Ids of a session, and ranges of sessions.  Ids stay below 2**53, the largest exact integer of
JSON readers, for 22 million starts."""
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""As in syslog(3); systemd reads a prefix `<N>` of a line (sd-daemon(3))."""

Event = dict[str, Any]
Write = Callable[[str, str, dict[str, Any]], None]
"""Writes one log line: level, text, fields.  Must neither raise nor wait."""


class StderrWriter:
    """Writes log lines to standard error, with a priority prefix where that is the journal.

    A line for which there is no room, because the reader hangs, is dropped; the next line reports
    how many were dropped.
    """

    def __init__(self) -> None:
        self._dropped = 0

    def __call__(self, level: str, text: str, fields: dict[str, Any]) -> None:
        """Write a line; `fields` are not written."""
        prefix = f"<{PRIORITIES[level]}>" if "JOURNAL_STREAM" in os.environ else "edged: "
        try:
            if not _has_room():
                self._dropped += 1
                return
            dropped, self._dropped = self._dropped, 0
            note = (
                f"{prefix}{dropped} lines were lost here: nothing reads them\n" if dropped else ""
            )
            sys.stderr.write(f"{note}{prefix}{text}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # the reader is gone; that does not end a daemon
            return


to_stderr = StderrWriter()
"""The process's writer."""


def _has_room() -> bool:
    """Whether standard error takes a line now: a writable pipe takes PIPE_BUF bytes (pipe(7))."""
    try:
        fd = sys.stderr.fileno()
    except ValueError:  # not a file: replaced by a test, or closed
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class LineLog:
    """A log with a minimum level: `log("warning", "…", store="/var/lib/edged")`."""

    def __init__(self, write: Write = to_stderr, level: str = "info") -> None:
        self._write, self.level = write, level

    def __call__(self, level: str, text: str, **fields: Any) -> None:
        """Write a line of the minimum level or above."""
        if LEVELS.index(level) >= LEVELS.index(self.level):
            self._write(level, text, fields)


class Events:
    """The event log of one daemon; any thread."""

    def __init__(self, clock: Clock, log: LineLog, session: int = 0, epoch: int = 0) -> None:
        self.log = log
        self._on_event: Callable[[], None] = lambda: None
        self._clock = clock
        self._lock = threading.Lock()
        self._ring: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._counts: Counter[str] = Counter()
        self._stores = epoch % STORES * SESSION
        """Ids of this store are larger."""
        self._began = self._next = self._stores + session * SESSION + 1
        self._quiet: dict[tuple[str, str], tuple[int, int]] = {}
        """By kind and key: when the last event was added, and how many were suppressed since."""

    def subscribe(self, on_event: Callable[[], None]) -> None:
        """Call `on_event` after every event, on the thread that adds it; one subscriber only."""
        self._on_event = on_event

    def add(
        self,
        kind: str,
        text: str,
        *,
        level: str = "info",
        job: str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Add an event and write its log line."""
        event: Event = {"id": 0, "at_us": self._clock.wall_us(), "kind": kind, "level": level,
                        "text": text, "facts": facts or {}}  # fmt: skip
        if job is not None:
            event["job"] = job
        with self._lock:
            event["id"] = self._next
            self._next += 1
            self._ring.append(event)
            self._counts[kind] += 1
        named = {} if job is None else {"job": job}
        self.log(level, text, event=kind, **named)
        self._on_event()

    def add_rarely(
        self,
        kind: str,
        key: str,
        text: str,
        level: str = "warning",
        every_us: int = 10_000_000,
        *,
        job: str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Add an event, at most one every `every_us` for each key; for events that remote peers
        can cause often.  `facts.times` is the number since the last one."""
        now = self._clock.monotonic_us()
        added_us, times = self._quiet.get((kind, key), (now - every_us, 0))
        if now - added_us < every_us:
            self._quiet[kind, key] = (added_us, times + 1)
            return
        if len(self._quiet) >= EVENTS_MAX:
            self._quiet.clear()
        self._quiet[kind, key] = (now, 0)
        self.add(kind, text, level=level, job=job, facts={**(facts or {}), "times": times + 1})

    def since(self, last: int, limit: int = EVENTS_MAX) -> tuple[list[Event], int]:
        """Up to `limit` events after id `last`, and the number of earlier ones that are gone.

        If `last` is not an id of this store, all events are returned.
        """
        with self._lock:
            return self._since(last, limit)

    def newest(self) -> int:
        """The id of the newest event."""
        with self._lock:
            return self._next - 1

    def counts(self) -> dict[str, int]:
        """The number of events of each kind."""
        with self._lock:
            return dict(self._counts)

    def page(self, last: int, limit: int) -> dict[str, Any]:
        """The answer to the command `events`: `next` is the `since` of the next request, `missed`
        the number of this session's events that are gone."""
        with self._lock:
            found, missed = self._since(last, limit)
            newest = found[-1]["id"] if found else self._next - 1
        return {"events": found, "next": newest, "missed": missed}

    def _since(self, last: int, limit: int) -> tuple[list[Event], int]:
        if not self._stores < last < self._next:
            last = self._stores
        first = self._ring[0]["id"] if self._ring else self._next
        start = max(last + 1, first)
        missed = start - max(last + 1, self._began)
        return list(self._ring)[start - first : start - first + limit], max(0, missed)
