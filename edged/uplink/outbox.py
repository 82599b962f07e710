"""What the daemon has to tell its uplink's child, for as long as that does not read.

A child that hangs, or was stopped, may not read for days.  What waits for it meanwhile is bounded
by what the store holds:

1. A page waits once, whatever becomes of it: a new place takes the place of the older one.  A
   command waits once too, behind everything that came before its last repetition.
2. All else keeps the order in which it was said.
3. One line at a time exists as bytes.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.store.backlog import PageRef

REFS_A_LINE = 256


class Outgoing:
    """See the module's docstring.  `len` counts what waits, a line that is half sent as one."""

    def __init__(self) -> None:
        self._line = memoryview(b"")
        """What is left of the line that is being sent."""
        self._pages: dict[Hashable, PageRef] = {}
        self._messages: dict[Hashable, dict[str, Any]] = {}
        self._order: dict[Hashable, None] = {}
        """Keys of both, oldest first."""

    def __len__(self) -> int:
        return bool(self._line) + len(self._order)

    @property
    def bytes(self) -> int:
        """Bytes of lines that exist as such."""
        return len(self._line)

    def say(self, message: dict[str, Any], key: Hashable) -> None:
        """A command, in place of one of the same key that waits."""
        self._order.pop(key, None)
        self._order[key] = None
        self._messages[key] = message

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Pages, or new places of pages."""
        for ref in refs:
            self._order.setdefault(ref.key)
            self._pages[ref.key] = ref

    def clear(self) -> None:
        """Whoever was to be told is dead."""
        self._line = memoryview(b"")
        for waiting in (self._pages, self._messages, self._order):
            waiting.clear()

    def send(self, channel: socket.socket) -> None:
        """Send what the channel, which does not block, takes.  Raises ConnectionError."""
        try:
            while self._line or self._order:
                if not self._line:
                    self._line = memoryview(json.dumps(self._next()).encode() + b"\n")
                self._line = self._line[channel.send(self._line) :]
        except BlockingIOError:
            return

    def _next(self) -> dict[str, Any]:
        """The oldest message, or the pages that come before the next one."""
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
