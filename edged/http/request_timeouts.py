"""uvicorn's connections, held by nobody who says nothing, and answered at once.

uvicorn waits for ever for the first head of a connection and for the rest of one that was begun:
whoever needs no token to open a connection could hold as many as the process has descriptors.  Here
a head has HEAD_S to arrive, and a TLS handshake before it, for which asyncio waits a minute.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0


def handshakes_in_time(loop: asyncio.AbstractEventLoop) -> None:
    """Servers of `loop` give a TLS handshake HEAD_S, too; uvicorn has no setting for it."""
    create = loop.create_server

    async def create_server(*args: Any, **settings: Any) -> asyncio.Server:
        if settings.get("ssl") is not None:
            settings = {"ssl_handshake_timeout": HEAD_S, **settings}
        return await create(*args, **settings)

    loop.create_server = create_server  # type: ignore[method-assign]


class HeadsInTime(H11Protocol):
    """One connection, which is closed unless it brings a whole head within HEAD_S: the first, or a
    later one that it has begun.  Whoever only keeps it open is uvicorn's `timeout_keep_alive`'s."""

    _expected: asyncio.TimerHandle | None = None
    """Ends the connection unless a head comes before."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is expected."""
        super().connection_made(transport)
        _send_at_once(transport)
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


def _send_at_once(transport: asyncio.Transport) -> None:
    """Switch off Nagle's algorithm, which asyncio does only for sockets that know their protocol's
    number: those that `socket.create_server` makes do not, and each answer, a head and then a body,
    waited 40 ms for the peer's delayed ACK (tcp(7), TCP_NODELAY)."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
