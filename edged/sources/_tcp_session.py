"""Sessions of links: which of two senders with one producer id may go on.

A link's producer id is that of the sending daemon's store.  A copy of the store has the same id and
would number other rows alike.  Each start of a daemon begins a session: a counter that grows with
each start, a random nonce, and the last number that earlier sessions had given.  The receiver keeps
counter and nonce, durable like the sequence number, and refuses

- a smaller counter: a newer session has been here;
- the same counter with another nonce: two daemons were started from one store;
- a larger counter whose base is below what is committed: an earlier session has sent batches that
  this store does not know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edged.errors import ProtocolError

_SESSION = re.compile(r"(\d{1,18})\.([0-9a-f]{1,16})\.(\d{1,18})", re.ASCII)
FENCED = "link fenced: "
"""The begin of the errors that say so: the sender must not go on by itself."""


@dataclass(frozen=True)
class Session:
    """A link's session, as the greeting names it."""

    counter: int
    nonce: str
    base: int

    @classmethod
    def parse(cls, text: bytes) -> Session:
        """The inverse of COUNTER.NONCE.BASE.  Raises ProtocolError."""
        found = _SESSION.fullmatch(text.decode(errors="replace"))
        if found is None:
            raise ProtocolError("edged.session is COUNTER.NONCE.BASE, with a nonce in hexadecimal")
        return cls(int(found[1]), found[2], int(found[3]))

    def __str__(self) -> str:
        """What the receiver keeps."""
        return f"{self.counter}.{self.nonce}"

    def check(self, producer: str, known: str, committed: int) -> None:
        """Raise ProtocolError unless this session may go on after `known`, a text of `__str__` or
        "", and `committed` batches."""
        counter, _, nonce = known.partition(".")
        if not known or (int(counter), nonce) == (self.counter, self.nonce):
            return
        if self.counter < int(counter):
            why = f"session {self.counter} is over: session {counter} of it has been here"
        elif self.counter == int(counter):
            why = f"another daemon has begun session {counter} of it too"
        elif self.base < committed:
            why = (
                f"session {self.counter} begins after batch {self.base}, but an earlier session"
                f" has sent batch {committed}"
            )
        else:
            return
        raise ProtocolError(
            f"{FENCED}producer {producer}: {why}; one of both daemons runs on a copy of the store"
        )
