"""Live events: resuming, slow readers, a daemon that goes away; an idle API sleeps."""

from __future__ import annotations

import itertools
import json
import socket
import time
from contextlib import contextmanager

import pytest

from api.sse import READERS_MAX
from edged.rest import ApiError, Client
from tests.api.support import Api, Daemon, until


@contextmanager
def reading(api, last=None):
    """The messages of a stream, for a reader that keeps up."""
    client = Client(str(api.socket))
    messages = client.live(last)
    try:
        yield messages
    finally:
        messages.close()
        client.close()


def first(messages, kind, seconds=180):
    """The next message of a kind."""
    deadline = time.monotonic() + seconds
    for message in messages:
        if message.kind == kind:
            return message
        assert time.monotonic() < deadline
    raise AssertionError(f"the stream ended without {kind}")


def test_events_come_live_and_a_reader_who_comes_back_misses_none(plant):
    _, api = plant
    with reading(api) as messages, api.client() as client:
        assert first(messages, "daemon").data == {"up": True}
        assert first(messages, "snapshot").data["device"] == "dev"
        client.post("/v1/jobs/readings/pause")
        paused = first(messages, "event")
        assert paused.data["kind"] == "job.paused" and paused.id == str(paused.data["id"])
    with api.client() as client:
        client.post("/v1/jobs/readings/resume")  # without a reader
    with reading(api, paused.id) as messages:
        resumed = first(messages, "event")
        assert resumed.data["kind"] == "job.resumed"


def test_a_reader_who_takes_nothing_hinders_nobody(plant):
    """It is not waited for: others get their snapshots in time, and the API keeps no queue."""
    daemon, api = plant
    slow = []
    for _ in range(8):
        sock = socket.socket(socket.AF_UNIX)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(str(api.socket))
        head = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        sock.sendall(head)
        slow.append(sock)
    try:
        with reading(api) as messages:
            times = [first(messages, "snapshot").data["wall_us"] for _ in range(4)]
        assert max(b - a for a, b in itertools.pairwise(times)) < 20_000_000
        with api.client() as client:
            assert client.get("/v1/device").status_code == 200
        assert daemon.running()
    finally:
        for sock in slow:
            sock.close()


def test_more_readers_than_may_be_are_told_to_come_later(plant):
    _, api = plant
    head = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    socks, codes = [], []
    try:
        for _ in range(40):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(60)
            sock.connect(str(api.socket))
            sock.sendall(head)
            socks.append(sock)
            codes.append(int(sock.recv(4096).split(b" ")[1]))
            if codes[-1] != 200:
                break
        assert codes[-1] == 429 and codes.count(200) >= 16
        with api.client() as client:  # streams are not requests that are being served
            assert client.get("/v1/device").status_code == 200
    finally:
        for sock in socks:
            sock.close()


def test_whoever_is_at_the_device_finds_a_place_beside_all_readers_from_elsewhere(plant):
    _, api = plant
    token, socks = api.token("read"), []
    head = (
        "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()
    try:
        code = 200
        while code == 200:
            socks.append(socket.create_connection(("127.0.0.1", api.port), 60))
            socks[-1].sendall(head)
            code = int(socks[-1].recv(4096).split(b" ")[1])
        assert code == 429 and len(socks) <= READERS_MAX
        with reading(api) as messages:
            assert first(messages, "snapshot").data["device"] == "dev"
    finally:
        for sock in socks:
            sock.close()


def test_a_stream_ends_when_its_token_is_revoked(plant):
    _, api = plant
    token = api.token("read")
    with Client(f"http://127.0.0.1:{api.port}", token) as client:
        messages = client.live()
        first(messages, "snapshot")
        api.tokens.revoke(token.split("_")[1], time.time_ns() // 1000)
        assert all(message.kind for message in messages)  # until it ends
        with pytest.raises(ApiError, match="is revoked"):
            next(client.live())


def test_a_daemon_that_goes_away_is_told_and_the_api_goes_on(tmp_path):
    with Daemon(tmp_path) as daemon, Api(tmp_path) as api, reading(api) as messages:
        assert first(messages, "daemon").data == {"up": True}
        daemon.kill()
        assert first(messages, "daemon").data == {"up": False}
        with api.client() as client:
            refused = client.get("/v1/device")
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert client.get("/healthz").json() == {"api": "up", "daemon": "down"}
            daemon.restart()
            daemon.ready(300)
            assert first(messages, "daemon").data == {"up": True}
            assert client.get("/v1/device").json()["session"] == 2
            api.kill()
            daemon.check()
            assert daemon.running()
            api.restart()
            api.ready(300)
            assert until(lambda: client.get("/v1/device").json()["session"]) == 2


def switches(pid):
    """Voluntary context switches of a process so far."""
    with open(f"/proc/{pid}/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["voluntary_ctxt_switches"])


def test_an_idle_api_sleeps(lonely):
    with lonely.client() as client:
        client.get("/healthz")
    pid = lonely.process.pid
    time.sleep(1)  # let what the request began end
    before = switches(pid)
    time.sleep(5)
    assert switches(pid) - before <= 2


def test_who_comes_back_with_an_id_of_an_earlier_store_is_told_what_the_new_one_has(plant):
    _, api = plant
    with reading(api, "9" * 17) as messages, api.client() as client:
        assert first(messages, "event").data["kind"] == "daemon.started"
        first(messages, "snapshot")
        client.post("/v1/jobs/readings/pause")
        while first(messages, "event").data["kind"] != "job.paused":
            pass
        client.post("/v1/jobs/readings/resume")


@pytest.mark.parametrize("text", ["", "nonsense", "-1", "9" * 40])
def test_a_strange_last_event_id_is_ignored(plant, text):
    _, api = plant
    with api.client() as client:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": text}
        with client.stream("GET", "/v1/events", headers=headers) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            told = next(line for line in lines if line.startswith("data: "))
            assert json.loads(told.removeprefix("data: ")) == {"up": True}


def test_who_comes_back_to_a_daemon_that_was_started_again_is_told_of_no_events_that_never_were(
    tmp_path,
):
    """Ids leave room between two starts."""
    with Daemon(tmp_path) as daemon, Api(tmp_path) as api:
        last = "0"
        for _ in range(2):
            with reading(api, last) as messages:
                told = list(itertools.takewhile(lambda m: m.kind != "snapshot", messages))
            assert {message.kind for message in told} <= {"event", "daemon"}
            assert any(message.data.get("kind") == "daemon.started" for message in told)
            last = next(message.id for message in told if message.id)
            daemon.kill()
            daemon.restart()
            daemon.ready(300)
