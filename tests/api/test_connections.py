"""What the API and the kernel do with connections: sent at once, ended where the peer is gone."""

from __future__ import annotations

import asyncio
import socket

from api.listeners import bind_tcp, open_unix
from api.server import SILENT_S, Server


async def nothing(scope, receive, send):
    """An application that is never asked."""
    raise AssertionError(scope)


async def options(listener):
    """(TCP_NODELAY, TCP_USER_TIMEOUT) of a connection that the API has accepted; None: no TCP."""
    server = Server(nothing, listener)
    running = asyncio.create_task(server.run_until_stopped())
    family = listener.sock.family
    where = listener.sock.getsockname()
    with socket.socket(family) as client:
        await asyncio.to_thread(client.connect, where)
        while not server.server_state.connections:
            await asyncio.sleep(0.01)
        (connection,) = server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        told = None
        if family != socket.AF_UNIX:
            names = (socket.TCP_NODELAY, socket.TCP_USER_TIMEOUT)
            told = tuple(sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    server.stop()
    await running
    return told


def test_answers_go_at_once_and_a_peer_that_vanished_is_noticed():
    """Without the first each answer takes 40 ms, without the second a dead reader's place stays
    taken for a quarter of an hour."""
    listener = bind_tcp("127.0.0.1:0", "api.listen")
    no_delay, timeout_ms = asyncio.run(options(listener))
    listener.sock.close()
    assert no_delay == 1 and timeout_ms == 1000 * SILENT_S


def test_a_unix_socket_needs_neither(tmp_path):
    listener = open_unix(str(tmp_path / "api.sock"), "")
    assert asyncio.run(options(listener)) is None
    listener.sock.close()
