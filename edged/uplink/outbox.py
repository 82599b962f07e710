"""The daemon's output queue to the uplink child, bounded while the child does not read.

A hung or stopped child may not read for days.  The queue is bounded by the content of the store:

1. A page waits once; a new location replaces the older one.  A command waits once too, at the
   position of its last repetition.
2. Everything else keeps its order.
3. At most one line exists as bytes.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.store.page_index import PageRef

REFS_A_LINE = 256
READ_BYTES = 1 << 18
"""Bytes per read, at either end of the channel."""


class Outbox:
    """See the module's docstring.  `len` counts what waits; a partly sent line counts as one."""

    def __init__(self) -> None:
        self._line = memoryview(b"")
        """The rest of the line that is being sent."""
        self._pages: dict[Hashable, PageRef] = {}
        self._messages: dict[Hashable, dict[str, Any]] = {}
        self._order: dict[Hashable, None] = {}
        """Keys of pages and messages, oldest first."""

    def __len__(self) -> int:
        return bool(self._line) + len(self._order)

    @property
    def bytes(self) -> int:
        """Bytes of the line that is being sent."""
        return len(self._line)

    def put(self, message: dict[str, Any], key: Hashable) -> None:
        """Queue a command; it replaces a queued one with the same key."""
        self._order.pop(key, None)
        self._order[key] = None
        self._messages[key] = message

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Queue pages, or new locations of pages."""
        for ref in refs:
            self._order.setdefault(ref.key)
            self._pages[ref.key] = ref

    def clear(self) -> None:
        """Drop everything: the child is dead."""
        self._line = memoryview(b"")
        for waiting in (self._pages, self._messages, self._order):
            waiting.clear()

    def send(self, channel: socket.socket) -> None:
        """Send as much as the non-blocking channel takes.  Raises ConnectionError."""
        try:
            while self._line or self._order:
                if not self._line:
                    self._line = memoryview(json.dumps(self._next()).encode() + b"\n")
                self._line = self._line[channel.send(self._line) :]
        except BlockingIOError:
            return

    def _next(self) -> dict[str, Any]:
        """The oldest message, or all pages queued before the next message."""
        key = next(iter(self._order))
        if key in self._messages:
            del self._order[key]
            return self._messages.pop(key)
        refs: list[PageRef] = []
        for key in self._order:
            if key not in self._pages or len(refs) == REFS_A_LINE:
                break
            refs.append(self._pages.pop(key))
        for ref in refs:
            del self._order[ref.key]
        files = [
            [file, [[r.key.stream, r.key.partition, r.key.seq, r.offset, r.length] for r in of]]
            for file, of in groupby(refs, key=lambda r: r.file)
        ]
        return {"offer": files}
