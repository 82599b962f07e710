"""What happened to the daemon: a bounded list of events, each also one line of the log.

An event is `{"id", "at_us" (wall clock), "kind" ("dotted.name"), "level", "text", "job" (of some),
"facts"}`; `docs/control.md` lists the kinds.  Ids rise, over restarts too:

    (the store's epoch modulo STORES + its session) * SESSION + 1, 2, ...

so who comes back with the id of another store's event is known, and told all that there is here.
The last EVENTS_MAX are kept; who comes too late for some of them is told how many he missed.
Events come from the heart and from the commit thread.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from edged.platform.clock import Clock

EVENTS_MAX = 1000
SESSION, STORES = 10**8, 1 << 26
"""Ids of a session, and where a store's sessions begin: for 22 million starts below 2**53, which
JSON's readers take for whole."""
LEVELS = ("debug", "info", "warning", "error")
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""As in syslog(3); systemd reads `<N>` before a line (sd-daemon(3))."""

Event = dict[str, Any]
Write = Callable[[str, str, dict[str, Any]], None]
"""Writes one line of the log: level, text, fields.  Must neither raise nor wait."""


_lost: Counter[str] = Counter()


def to_stderr(level: str, text: str, fields: dict[str, Any]) -> None:
    """A line on standard error, with its priority where that is the journal.  Lines for which there
    is no room, because whoever reads them hangs, are lost; the next one says how many."""
    prefix = f"<{PRIORITIES[level]}>" if "JOURNAL_STREAM" in os.environ else "edged: "
    try:
        if not _has_room():
            _lost["lines"] += 1
            return
        lost = _lost.pop("lines", 0)
        told = f"{prefix}{lost} lines were lost here: nobody has read them\n" if lost else ""
        sys.stderr.write(f"{told}{prefix}{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody listens any more: that ends no daemon
        return


def _has_room() -> bool:
    """Whether standard error takes a line now: a pipe that is writable takes PIPE_BUF (pipe(7))."""
    try:
        fd = sys.stderr.fileno()
    except ValueError:  # no file: a test's, or closed
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class Log:
    """Lines for people, from a level on: `log("warning", "…", store="/var/lib/edged")`."""

    def __init__(self, write: Write = to_stderr, level: str = "info") -> None:
        self._write, self.level = write, level

    def __call__(self, level: str, text: str, **fields: Any) -> None:
        """Write a line where its level is high enough."""
        if LEVELS.index(level) >= LEVELS.index(self.level):
            self._write(level, text, fields)


class Events:
    """The list; see the module's docstring."""

    def __init__(self, clock: Clock, log: Log, session: int = 0, epoch: int = 0) -> None:
        self.log = log
        self.listener: Callable[[], None] = lambda: None
        """Called after every event, on whatever thread it came from."""
        self._clock = clock
        self._lock = threading.Lock()
        self._ring: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._counts: Counter[str] = Counter()
        self._stores = epoch % STORES * SESSION
        """Ids of this store are above it."""
        self._began = self._next = self._stores + session * SESSION + 1
        self._quiet: dict[tuple[str, str], tuple[int, int]] = {}
        """By kind and key: when the last event of it was told, and how many were not since."""

    def add(
        self,
        kind: str,
        text: str,
        *,
        level: str = "info",
        job: str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Something happened."""
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
        self.listener()

    def add_rarely(
        self, kind: str, key: str, text: str, every_us: int = 10_000_000, **facts: Any
    ) -> None:
        """Something that others can make happen often: a warning every `every_us` at most, for each
        key; `facts.times` says how many there were since the last one."""
        now = self._clock.monotonic_us()
        told_us, times = self._quiet.get((kind, key), (now - every_us, 0))
        if now - told_us < every_us:
            self._quiet[kind, key] = (told_us, times + 1)
            return
        if len(self._quiet) >= EVENTS_MAX:
            self._quiet.clear()
        self._quiet[kind, key] = (now, 0)
        self.add(kind, text, level="warning", facts={**facts, "times": times + 1})

    def since(self, last: int, limit: int = EVENTS_MAX) -> tuple[list[Event], int]:
        """Up to `limit` events after id `last`, and how many before them `last` has missed.  To an
        id that is not of this store all are new."""
        with self._lock:
            return self._since(last, limit)

    def newest(self) -> int:
        """The id behind which nothing has happened yet."""
        with self._lock:
            return self._next - 1

    def counts(self) -> dict[str, int]:
        """How many there were of each kind."""
        with self._lock:
            return dict(self._counts)

    def page(self, last: int, limit: int) -> dict[str, Any]:
        """The door's answer: `next` is what to ask with next, `missed` how many of this session are
        no longer here."""
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
