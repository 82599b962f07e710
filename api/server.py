"""uvicorn without periodic wake-ups, with the peer's identity and with time limits.

uvicorn's server wakes ten times a second to look at a flag, more often than the whole rest of an
idle device.  This server waits for its stop event.  Each connection stores its `HttpPeer` in the
state of its requests.  A connection is closed if it sends no complete request header in time
(`edged.http.request_timeouts`), or if CONNECTIONS_MAX are open.  Bytes that are not HTTP are
answered with a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn

from api.listeners import ApiListener
from api.problems import MEDIA_TYPE, ApiProblem
from edged.http.request_timeouts import HeadsInTime, handshakes_in_time

HEAD_BYTES_MAX = 32 << 10
KEEP_ALIVE_S = 75
CONNECTIONS_MAX = 512
SILENT_S = 20
"""A peer that accepts no data for so long is treated as gone."""
GRACE_S = 5
"""Time for running requests when the API ends."""


@dataclass(frozen=True)
class HttpPeer:
    """The peer of a connection, as far as the connection identifies it."""

    listener: ApiListener
    pid: int | None = None
    uid: int | None = None
    names: tuple[str, ...] = ()
    """DNS, URI and mail names and the common name of the verified client certificate."""
    abort: Callable[[], None] = lambda: None
    """Close the connection at once and discard unsent data."""

    def __str__(self) -> str:
        if self.uid is not None:
            return f"uid {self.uid}, pid {self.pid}"
        return ", ".join(self.names) or self.listener.address


class Protocol(HeadsInTime):
    """One connection."""

    listener: ApiListener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Identify the peer."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        _notice_silence(transport)
        self.app_state = {**self.app_state, "peer": _peer(self.listener, transport)}

    def send_400_response(self, msg: str) -> None:
        """Answer with a problem instead of plain text."""
        problem = ApiProblem("malformed", msg)
        body = json.dumps(problem.document()).encode()
        headers = [
            ("content-type", MEDIA_TYPE), ("content-length", str(len(body))),
            ("connection", "close"),
        ]  # fmt: skip
        with contextlib.suppress(h11.LocalProtocolError):  # a response has begun
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """The server of one listener; `stop` ends it."""

    def __init__(self, app: Any, listener: ApiListener) -> None:
        kind = type("Protocol", (Protocol,), {"listener": listener})
        config = uvicorn.Config(
            app,
            http=kind,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,  # api.guard sets it in each response
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        config.ssl = listener.tls
        super().__init__(config)
        self.listener = listener
        self._over = asyncio.Event()

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        handshakes_in_time(asyncio.get_running_loop())
        await self.serve(sockets=[self.listener.sock])

    def stop(self) -> None:
        """Finish running requests and end."""
        self._over.set()

    async def main_loop(self) -> None:
        """Wait without periodic wake-ups."""
        await self._over.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `api.main` handles signals."""
        yield


def _notice_silence(transport: asyncio.Transport) -> None:
    """Let the kernel end a TCP connection whose peer has vanished or reads nothing (RFC 5482);
    otherwise megabytes of its buffer must fill first, or 15 minutes pass."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S)


def _peer(listener: ApiListener, transport: asyncio.Transport) -> HttpPeer:
    pid = uid = None
    names: tuple[str, ...] = ()
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = struct.unpack("3i", raw)
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if tls is not None:
        names = _names(tls.getpeercert() or {})
    return HttpPeer(listener, pid, uid, names, transport.abort)


def _names(certificate: Any) -> tuple[str, ...]:
    alternative = [value for _, value in certificate.get("subjectAltName", ())]
    common = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return tuple(dict.fromkeys([*alternative, *common]))
