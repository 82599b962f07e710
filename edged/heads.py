"""uvicorn's connections, held by nobody who says nothing: a head of a request has HEAD_S to arrive.

uvicorn waits for ever for the first head of a connection and for the rest of one that was begun.
Whoever needs no token to open a connection could hold as many as the process has descriptors.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0


class HeadsInTime(H11Protocol):
    """One connection, which is closed unless it brings a whole head within HEAD_S: the first, or a
    later one that it has begun.  Whoever only keeps it open is uvicorn's `timeout_keep_alive`'s."""

    _expected: asyncio.TimerHandle | None = None
    """Ends the connection unless a head comes before."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is expected."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        super().connection_lost(exc)
        self._expect_nothing()

    def data_received(self, data: bytes) -> None:
        """Whoever begins to say something while no request is under way, the next head or the rest
        of one that was answered already (401), has HEAD_S to bring a whole head."""
        super().data_received(data)
        request = self.cycle
        if request is None or request.response_complete:
            self._expect_head()
        else:
            self._expect_nothing()

    def _expect_head(self) -> None:
        if self._expected is None and not self.transport.is_closing():
            self._expected = self.loop.call_later(HEAD_S, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._expected is not None:
            self._expected.cancel()
            self._expected = None
