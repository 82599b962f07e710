"""What each link has in flight: bytes of sealed pages that no receiver has acknowledged.

A link is full from `high` bytes on until it is down to `low`.  The commit thread counts pages and
acknowledgements, the heart's thread asks whether a link is full.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class _Link:
    high: int
    low: int
    bytes: int = 0
    full: bool = False
    pages: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    """Number and size of each instance's pages."""


class InFlight:
    """The links of a daemon, by the names of their pages.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self.on_low: Callable[[], None] = lambda: None
        """Called when a link is no longer full; on the commit thread."""
        self.on_routes: Callable[[], None] = lambda: None
        """Called when a link has another producer to pass on; on the heart's thread."""

    def follow(self, limits: Mapping[str, tuple[int, int]]) -> None:
        """Set `high` and `low` of each link."""
        with self._lock:
            for name, (high, low) in limits.items():
                link = self._links.setdefault(name, _Link(high, low))
                link.high, link.low = high, low
                self._judge(link)

    def sealed(self, pages: Iterable[tuple[str, int, int, int]]) -> None:
        """Count pages: name, instance, number, bytes.  A page that is known counts once."""
        with self._lock:
            for name, instance, seq, size in pages:
                link = self._links.setdefault(name, _Link(1 << 62, 1 << 62))
                queue = link.pages.setdefault(instance, deque())
                if queue and queue[-1][0] >= seq:
                    continue
                queue.append((seq, size))
                link.bytes += size
                self._judge(link)

    def acked(self, name: str, instance: int, seq: int) -> None:
        """The receiver has an instance's pages up to `seq`."""
        with self._lock:
            link = self._links.get(name)
            if link is None:
                return
            queue, was = link.pages.get(instance, deque()), link.full
            while queue and queue[0][0] <= seq:
                link.bytes -= queue.popleft()[1]
            self._judge(link)
        if was and not link.full:
            self.on_low()

    def is_full(self, name: str) -> bool:
        """Whether a link has too much in flight."""
        link = self._links.get(name)
        return link is not None and link.full

    def any_full(self) -> bool:
        """Whether any link has."""
        with self._lock:
            return any(link.full for link in self._links.values())

    def bytes_of(self, name: str) -> int:
        """Bytes that a link has in flight."""
        link = self._links.get(name)
        return 0 if link is None else link.bytes

    def _judge(self, link: _Link) -> None:
        if link.bytes >= link.high:
            link.full = True
        elif link.bytes <= link.low:
            link.full = False
