"""Clients without a token, and malicious ones with one, harm no other device."""

import asyncio
import resource
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
from hypothesis import given
from hypothesis import strategies as st

from edged.central.body_budget import BodyBudget
from edged.central.collector import SCHEMAS_MAX
from edged.central.tokens import token_line
from tests.central.support import DEVICE, Collector, Device, collecting, landed_pages, make_page

HEAD = b"GET /v1/stats HTTP/1.1\r\nHost: centre\r\n"


def connect(collector):
    sock = socket.create_connection(("127.0.0.1", collector.port))
    sock.settimeout(120)
    return sock


def closed(sock):
    """Whether the collector closes the connection within the socket's timeout."""
    with suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


def test_a_connection_that_brings_no_head_is_closed_after_seconds(tmp_path):
    """A silent connection, one that stops within the header, one that does so after an answer."""
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


def test_a_tls_handshake_that_does_not_come_is_not_waited_for_longer_than_a_head(tmp_path):
    """asyncio's own limit would be a minute."""
    pem = str(Path(__file__).parents[1] / "sources" / "loopback_tls.pem")
    with (
        collecting(tmp_path / "landing", "--tls-cert", pem, "--tls-key", pem) as collector,
        connect(collector) as silent,
    ):
        silent.settimeout(50)
        assert closed(silent)


def test_nobody_but_devices_keeps_a_connection_open(tmp_path):
    """Otherwise an unknown path, requested once a minute, would hold a descriptor for ever."""
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
        until = time.monotonic() + 120
        while True:  # the strangers' connections are closed: new ones are accepted again
            with suppress(httpx.HTTPError), Device(collector) as device:
                if device.send(make_page(3)).status_code == 200:
                    break
            assert time.monotonic() < until
    finally:
        assert collector.stop() == 0, collector.log
    assert landed_pages(tmp_path) == [make_page(n) for n in (1, 2, 3)]


def test_one_device_does_not_fill_the_landing_with_schemas(tmp_path):
    with collecting(tmp_path) as collector:
        with Device(collector, "odd") as device:
            for i in range(SCHEMAS_MAX):
                assert device.register(f"s{i}").status_code == 204
            reply = device.register("more")
            assert reply.status_code == 409 and "256 new schemas" in reply.json()["detail"]
            assert device.register("s7").status_code == 204, "what is there already is no new one"
        with Device(collector) as device:
            assert device.register("more").status_code == 204


def test_bodies_that_do_not_come_keep_only_their_own_device_waiting(tmp_path):
    """Announced bodies reserve memory; those of one device must not take all of it."""
    with collecting(tmp_path) as collector, ExitStack() as stack:
        with Device(collector) as device:
            device.register()
        for _ in range(12):
            stack.enter_context(connect(collector)).sendall(
                b"POST /v1/pages HTTP/1.1\r\nHost: centre\r\nX-Edged-Device: greedy\r\n"
                b"X-Edged-Epoch: 1\r\nX-Edged-Session: 1:1\r\nContent-Length: 33554432\r\n\r\n"
            )
        until = time.monotonic() + 120
        while len(established(collector)) < 12:
            assert time.monotonic() < until
            time.sleep(0.01)
        with Device(collector, "other") as other:
            assert other.send(make_page(1, device="other")).status_code == 200


def established(collector):
    """The collector's connections, as the kernel lists them."""
    port = f":{collector.port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [x for x in map(str.split, lines) if x[1].endswith(port) and x[3] == "01"]


@given(st.data())
def test_room_goes_round_in_order_and_within_shares(data):
    """Against a naive model: every request that fits is resumed, none is skipped without cause."""
    size, share = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20))
    wants = data.draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, size)), max_size=20)
    )

    async def play():
        room, gates, inside = BodyBudget(size, share), [], []

        async def one(i, device, amount, gate):
            async with room.take(device, amount):
                inside.append(i)
                await gate.wait()
                inside.remove(i)

        tasks = []
        for i, (device, amount) in enumerate(wants):
            gates.append(asyncio.Event())
            tasks.append(asyncio.create_task(one(i, device, amount, gates[i])))
        waiting = list(range(len(wants)))
        while True:
            for _ in range(5):
                await asyncio.sleep(0)
            waiting = [i for i in waiting if i not in inside]
            held = {d: [wants[i][1] for i in inside if wants[i][0] == d] for d in "abc"}
            free = size - sum(map(sum, held.values()))
            assert free >= 0
            for amounts in held.values():
                assert sum(amounts) <= share or sum(1 for a in amounts if a) <= 1
            # The first request within its device's share does not fit; none before it is allowed.
            for i in waiting:
                device, amount = wants[i]
                if not sum(held[device]) or sum(held[device]) + amount <= share:
                    assert amount > free
                    break
            if not inside:
                assert not waiting
                return
            done = data.draw(st.sampled_from(inside))
            if data.draw(st.booleans()):
                gates[done].set()
            else:
                tasks[done].cancel()
                inside.remove(done)
            if waiting and data.draw(st.booleans()):
                tasks[gone := data.draw(st.sampled_from(waiting))].cancel()
                waiting.remove(gone)

    asyncio.run(play())


AUTHENTIC = (
    b"POST /v1/pages HTTP/1.1\r\nHost: centre\r\nX-Edged-Device: turbine-7\r\n"
    b"X-Edged-Epoch: 1\r\nX-Edged-Session: 1:1\r\n"
)


def answer(sock):
    """All that the collector sends until it closes, or falls silent for half a second."""
    said = b""
    with suppress(ConnectionResetError, TimeoutError):
        while data := sock.recv(1 << 16):
            said += data
            sock.settimeout(0.5)
    return said


def test_a_request_of_two_lengths_or_a_wrong_one_is_refused(tmp_path):
    """A proxy in front may take the other length, and the rest for a request (RFC 9112, 6.3)."""
    with collecting(tmp_path) as collector:
        for head in (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            b"Content-Length: 5\r\nContent-Length: 6\r\n",
            b"Content-Length: +5\r\n",
            b"Content-Length : 5\r\n",
            b"Transfer-Encoding: chunked, gzip\r\n",
            b"X-Folded: a\r\n b\r\n",
        ):
            with connect(collector) as sock:
                sock.sendall(AUTHENTIC + head + b"\r\n0\r\n\r\n")
                assert answer(sock).startswith(b"HTTP/1.1 400 "), head


def test_an_endless_header_or_trailer_is_refused_soon(tmp_path):
    """Neither takes memory for as long as it goes on."""
    chunked = AUTHENTIC + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    with collecting(tmp_path) as collector:
        for start in (HEAD + b"X-Long: ", b"GET /", chunked + b"X-Trailer: ", chunked[:-3]):
            with connect(collector) as sock, suppress(ConnectionResetError, BrokenPipeError):
                sock.sendall(start)
                for _ in range(64):
                    sock.sendall(
                        b"1;" + b"a" * (1 << 16) if start == chunked[:-3] else b"a" * 65536
                    )
                assert answer(sock).startswith(b"HTTP/1.1 400 "), start


def test_requests_sent_together_are_answered_in_order(tmp_path):
    with collecting(tmp_path) as collector, connect(collector) as sock:
        empty = AUTHENTIC + b"Content-Length: 0\r\n\r\n"
        sock.sendall(empty + empty + HEAD + b"\r\n")
        said = answer(sock)
        assert said.count(b"HTTP/1.1 200 OK") == 3 and said.count(b'"acked":[]') == 2
        assert said.rindex(b'"acked":[]') < said.index(b'"requests":2')
