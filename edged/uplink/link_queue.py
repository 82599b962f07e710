"""The pages that one instance of a link has to send, and what its receiver's answers mean.

Pure: no sockets, clock or threads.  A page is known by the number of its last message.  Pages are
sent in order; after a lost connection all that are not acknowledged are sent again from the first.
"""

from __future__ import annotations

from collections import deque

from edged.uplink.send_queue import PageLocation


class LinkRefused(Exception):
    """The receiver's state does not fit this sender's; a retry does not help soon."""


class LinkQueue:
    """See the module's docstring.  `base` is the last number that earlier sessions made."""

    def __init__(self, base: int) -> None:
        self._pages: dict[int, PageLocation] = {}
        self._unsent: deque[int] = deque()
        self.newest = base
        """The last number that this sender knows."""
        self.acked = 0
        """The last number that the receiver has."""
        self.bytes = 0
        self.forwards = False
        """Whether the messages are made again after a restart, so that the receiver may know more
        of them."""

    def __len__(self) -> int:
        return len(self._pages)

    def offer(self, place: PageLocation) -> bool:
        """Add a page, or a new location of one.  Pages come in order.  False: the receiver has
        it."""
        known = self._pages.get(place.seq)
        if known is None:
            if place.seq <= self.acked:
                return False
            self._unsent.append(place.seq)
        self.bytes += place.length - (0 if known is None else known.length)
        self._pages[place.seq] = place
        self.newest = max(self.newest, place.seq)
        return True

    def lost(self, first: int, last: int) -> bool:
        """Forget pages whose bytes are lost; whether there were any."""
        found = [seq for seq in self._pages if first <= seq <= last]
        for seq in found:
            self.bytes -= self._pages.pop(seq).length
        self._unsent = deque(seq for seq in self._unsent if seq in self._pages)
        return bool(found)

    def first(self) -> PageLocation | None:
        """The first page that is not acknowledged."""
        return next(iter(self._pages.values()), None)

    def page_with(self, seq: int) -> PageLocation | None:
        """The page that has a message; None: it is acknowledged or was never made."""
        if seq <= self.acked:
            return None
        return next((place for last, place in self._pages.items() if last >= seq), None)

    def unsent(self) -> PageLocation | None:
        """The next page to send on this connection."""
        return self._pages[self._unsent[0]] if self._unsent else None

    def sent(self) -> None:
        """The next page has been sent whole."""
        self._unsent.popleft()

    def in_flight(self) -> bool:
        """Whether a page is sent and not acknowledged."""
        return len(self._pages) > len(self._unsent)

    def hello(self, committed: int) -> int | None:
        """A new connection's receiver has everything up to `committed`; all else is unsent.

        Returns the page that this acknowledges, as `ack` does.  Raises LinkRefused where the
        receiver has what this sender never made.
        """
        if committed > self.newest and not self.forwards:
            raise LinkRefused(
                f"the receiver has messages up to {committed} of this link, but this store has "
                f"made {self.newest}: another copy of it sends them, or it went back in time"
            )
        done = self.ack(committed)
        self._unsent = deque(self._pages)
        return done

    def ack(self, seq: int) -> int | None:
        """The receiver has everything up to `seq`: the last page that is done, None without one."""
        done = None
        while self._pages and (page := next(iter(self._pages))) <= seq:
            done = page
            self.bytes -= self._pages.pop(page).length
        while self._unsent and self._unsent[0] <= seq:
            self._unsent.popleft()
        self.acked = max(self.acked, seq if done is None else done)
        return done
