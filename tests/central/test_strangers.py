"""Whoever has no token, and whoever has one and means ill, harms nobody else."""

import resource
import socket
import time
from contextlib import ExitStack, suppress

import httpx

from edged.central.tokens import token_line
from tests.central.support import DEVICE, Collector, Device, collecting, landed_pages, make_page

HEAD = b"GET /v1/stats HTTP/1.1\r\nHost: centre\r\n"


def connect(collector):
    sock = socket.create_connection(("127.0.0.1", collector.port))
    sock.settimeout(60)
    return sock


def closed(sock):
    """Whether the collector hangs up before a minute is over."""
    with suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


def test_a_connection_that_brings_no_head_is_closed_after_seconds(tmp_path):
    """One that says nothing, one that stops within the head, one that does so behind an answer."""
    with collecting(tmp_path / "landing") as collector, ExitStack() as stack:
        silent, half, later = (stack.enter_context(connect(collector)) for _ in range(3))
        half.sendall(HEAD)
        later.sendall(
            b"POST /v1/pages HTTP/1.1\r\nHost: centre\r\nX-Edged-Device: turbine-7\r\n"
            b"X-Edged-Epoch: 1\r\nX-Edged-Session: 1:1\r\nContent-Length: 0\r\n\r\n"
        )
        assert b" 200 " in later.recv(1 << 16)
        later.sendall(HEAD)
        assert all(closed(sock) for sock in (silent, half, later))


def test_nobody_but_devices_keeps_a_connection_open(tmp_path):
    """Else a path that is not there, asked for once a minute, would hold a descriptor for good."""
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line(DEVICE, "t") + "\n")
    with collecting(tmp_path / "landing", "--tokens", str(tokens)) as collector:
        for path in ("/health", "/nothing", "/v1/pages", "/v1/stats"):
            assert httpx.get(collector.url + path).headers["connection"] == "close", path
        with Device(collector, token="t") as device:
            assert "connection" not in device.register().headers
            assert "connection" not in device.send(make_page(1)).headers


def test_more_connections_than_descriptors_leave_the_landing_its_own(tmp_path):
    """The records of a group's devices are opened for each commit: with no descriptor left the
    landing failed, and the collector ended."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    many = 256
    assert hard == resource.RLIM_INFINITY or hard > 4 * many
    collector = Collector(tmp_path, 0, prefix=("prlimit", f"--nofile={many}:{many}"))
    try:
        with Device(collector) as device, ExitStack() as stack:
            device.register()
            device.send(make_page(1))
            for _ in range(2 * many):
                stack.enter_context(connect(collector))
            assert device.send(make_page(2)).status_code == 200
        until = time.monotonic() + 60
        while True:  # strangers have gone: whoever comes is heard again
            with suppress(httpx.HTTPError), Device(collector) as device:
                if device.send(make_page(3)).status_code == 200:
                    break
            assert time.monotonic() < until
    finally:
        assert collector.stop() == 0, collector.log
    assert landed_pages(tmp_path) == [make_page(n) for n in (1, 2, 3)]
