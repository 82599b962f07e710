"""Request timeouts for uvicorn: closes connections that send no complete request header in HEAD_S.

uvicorn waits without limit for the first header of a connection and for the rest of a header.  A
client without a token could thus hold all descriptors of the process.  A TLS handshake, for which
asyncio waits a minute, has HEAD_S too.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0


def handshakes_in_time(loop: asyncio.AbstractEventLoop) -> None:
    """Make servers of `loop` limit TLS handshakes to HEAD_S; uvicorn has no setting for it."""
    create = loop.create_server

    async def create_server(*args: Any, **settings: Any) -> asyncio.Server:
        if settings.get("ssl") is not None:
            settings = {"ssl_handshake_timeout": HEAD_S, **settings}
        return await create(*args, **settings)

    loop.create_server = create_server  # type: ignore[method-assign]


class UnambiguousConnection(h11.Connection):
    """Refuses a request with both Content-Length and Transfer-Encoding (RFC 9112, 6.1).

    A proxy in front may take the other one for the body's end, and the rest for a request.
    """

    def next_event(self) -> Any:
        """The next event.  Raises RemoteProtocolError, which is answered with 400."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {bytes(name).lower() for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("Content-Length stands beside Transfer-Encoding")
        return event


class HeadTimeout(asyncio.Protocol):
    """Part of one of uvicorn's protocols: a connection is closed unless a complete header arrives
    within HEAD_S.

    The limit holds for the first header and for every later one that has begun.  Idle connections
    end by uvicorn's `timeout_keep_alive`.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    _expected: asyncio.TimerHandle | None = None
    """Closes the connection; cancelled by a complete header."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the limit for the first header."""
        super().connection_made(transport)
        _send_at_once(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the limit."""
        super().connection_lost(exc)
        self._expect_nothing()

    def data_received(self, data: bytes) -> None:
        """Start the limit when bytes arrive while no request is under way.

        They begin the next header, or are the rest of a request that was answered early (401).
        """
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


class HeadsInTime(HeadTimeout, H11Protocol):
    """One connection of uvicorn's h11 protocol with the limits of this module."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        most = self.config.h11_max_incomplete_event_size
        self.conn = UnambiguousConnection(h11.SERVER, *([] if most is None else [most]))


def _send_at_once(transport: asyncio.Transport) -> None:
    """Switch off Nagle's algorithm (tcp(7), TCP_NODELAY).

    asyncio does so only for sockets that know their protocol number, and those of
    `socket.create_server` do not.  With it each answer, a header and then a body, waits 40 ms for
    the peer's delayed ACK.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
