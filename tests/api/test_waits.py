"""Answers of the API while the daemon cannot answer: documented, and in bounded time.

The application runs in this process, in front of a real control door with a slow daemon behind it:
a queue that is full, a commit that waits for its disk, a beat that does not look at the door, a
start that has not come to it yet, a stop that closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import threading
from concurrent.futures import Future

import httpx
import pytest

from api import app, operations
from api.context import Context
from api.door_client import REQUESTS_MAX, DoorClient
from api.ingest import Ingest
from api.listeners import ApiListener
from api.routes import config
from api.server import HttpPeer
from edged.config.sections import ApiSection
from edged.control.door import Door as DaemonsDoor
from edged.daemon.daemon import Daemon
from edged.daemon.settings import DaemonSettings
from edged.daemon.status import status_document
from edged.errors import CommandError
from edged.events.log import Events, LineLog
from edged.job.plan import parse_job
from edged.platform.clock import SystemClock
from tests.api.support import READINGS

TIMEOUT_S = 3.0
ROWS = b'{"id": 1, "time": "2026-11-21T09:00:00Z"}\n'
READS = [("GET", f"/v1/{what}") for what in (
    "device", "board", "jobs", "jobs/readings", "streams", "streams/power", "sources", "operators",
    "governor", "energy", "store", "uplink", "events", "config", "log",
)]  # fmt: skip
SENT = [
    ("POST", "/v1/jobs/readings/pause"), ("POST", "/v1/jobs/readings/resume"),
    ("POST", "/v1/jobs/readings/drain"), ("DELETE", "/v1/jobs/readings"),
    ("DELETE", "/v1/jobs/readings?drain=false"), ("POST", "/v1/uplink:retry"),
    ("PUT", "/v1/governor", {"policy": "hands_off"}), ("PUT", "/v1/log", {"level": "info"}),
    ("PUT", "/v1/jobs/readings/operators/big/kernel", {"kernel": "auto"}),
    ("POST", "/v1/config:reload"),
]  # fmt: skip
CHECKED = ("PUT", "/v1/jobs/readings", READINGS)
SEND = ("POST", "/v1/streams/power/tuples", ROWS)
DOCUMENT = app.routes().openapi()


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """A daemon's picture of itself, with the job READINGS."""
    daemon = Daemon(
        DaemonSettings(tmp_path_factory.mktemp("still"), "dev", 1), [parse_job(READINGS)]
    )
    yield json.loads(json.dumps(status_document(daemon.parts)))
    daemon.close()


@pytest.fixture(autouse=True)
def answered_in_time(monkeypatch):
    """A reload takes no longer than anything else here, and nothing is left to an operation: a busy
    machine takes long to check a job."""
    monkeypatch.setattr(config, "RELOAD_S", TIMEOUT_S)
    monkeypatch.setattr(operations, "WAIT_S", 300.0)


class Behind(threading.Thread):
    """Serves a daemon's end of the door at `path`: reads are answered, changes by `change`."""

    def __init__(self, path, snapshot, change):
        super().__init__(daemon=True)
        self.path, self.asked, self._change = path, [], change
        self._told = {
            "status": snapshot, "jobs": {"jobs": []}, "config": {"values": []},
            "log": {"level": "info"}, "events": {"events": [], "next": 0, "missed": 0},
            "job": {"name": "readings", "version": 1, "state": "running", "document": READINGS,
                    "origin": "api", "since_us": 0, "problem": ""},
        }  # fmt: skip
        self._over = os.eventfd(0)
        clock = SystemClock()
        events = Events(clock, LineLog(lambda *_: None))
        self._door = DaemonsDoor(path, self._answer, clock, events, lambda: snapshot)
        self.start()

    def run(self):
        while not (ready := select.select([self._door, self._over], [], [])[0]) or (
            self._over not in ready
        ):
            self._door.serve()
        self._door.close()

    def _answer(self, request):
        self.asked.append(request["cmd"])
        if request["cmd"] in self._told and "level" not in request:
            return self._told[request["cmd"]]
        return self._change()

    def close(self):
        """Refuse all clients, like a daemon that ends."""
        os.eventfd_write(self._over, 1)
        self.join()


def operation_of(method, path):
    """What the document says of a request."""
    path = path.partition("?")[0]
    for template, methods in DOCUMENT["paths"].items():
        parts = list(zip(template.split("/"), path.split("/"), strict=False))
        alike = template.count("/") == path.count("/")
        if alike and all(a == b or a.startswith("{") for a, b in parts):
            return methods[method.lower()]
    raise LookupError(path)


@contextlib.asynccontextmanager
async def asking(path, timeout_s=TIMEOUT_S):
    """Asks an API in front of the door at `path`; each answer is checked to be a documented one."""
    door = DoorClient(str(path), timeout_s)
    context = Context(ApiSection(), door, Ingest(door, path.parent / "keys.sqlite"))
    served, peer = (
        app.build(context),
        HttpPeer(ApiListener(socket.socket(), "here", trusted=True), uid=0),
    )

    async def with_peer(scope, receive, send):
        await served({**scope, "state": {"peer": peer}}, receive, send)

    transport = httpx.ASGITransport(with_peer)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def ask(method, target, body=b""):
            kind = "application/json" if isinstance(body, dict) else "application/x-ndjson"
            content = json.dumps(body).encode() if isinstance(body, dict) else body
            answer = await client.request(
                method, target, content=content, headers={"Content-Type": kind}
            )
            assert str(answer.status_code) in operation_of(method, target)["responses"], answer.text
            if answer.status_code >= 500:
                assert answer.status_code in (503, 504), answer.text
                assert int(answer.headers["retry-after"]) == answer.json()["retry_after_s"] >= 1
                assert answer.json()["do"]
            return answer.status_code

        yield ask
        await context.close()
    peer.listener.sock.close()


async def all_of(ask, requests):
    """The status of each, all asked at once."""
    codes = await asyncio.gather(*(ask(*request) for request in requests))
    return dict(zip(((r[0], r[1]) for r in requests), codes, strict=True))


def statuses(path, requests, timeout_s=TIMEOUT_S):
    """The distinct answers to `requests` by an API in front of the door at `path`."""

    async def run():
        async with asking(path, timeout_s) as ask:
            return await all_of(ask, requests)

    return asyncio.run(run())


def test_a_daemon_whose_queue_is_full_says_when_to_come_again(tmp_path, snapshot, monkeypatch):
    monkeypatch.setattr(config, "RELOAD_S", 300.0)

    def full():
        raise CommandError("busy", "16 changes wait already", retry_s=1.0)

    behind = Behind(tmp_path / "door", snapshot, full)
    told = statuses(behind.path, [*SENT, CHECKED], 300.0)
    behind.close()
    assert set(told.values()) == {503}, told
    assert {"job.pause", "job.put", "governor", "kernel", "reload"} <= set(behind.asked)


def test_a_change_that_waits_for_the_disk_may_have_been_made_and_reads_go_on(tmp_path, snapshot):
    behind = Behind(tmp_path / "door", snapshot, Future)
    pauses = [("POST", "/v1/jobs/readings/pause")] * REQUESTS_MAX

    async def run():
        async with asking(behind.path) as ask:
            changes = asyncio.create_task(all_of(ask, SENT))
            many = asyncio.gather(*(ask(*pause) for pause in pauses))
            while sum(cmd.startswith("job.") for cmd in behind.asked) < REQUESTS_MAX / 2:
                await asyncio.sleep(0.01)
            reads = await all_of(ask, READS)
            assert not many.done()
            return reads, [*(await changes).values(), *await many]

    reads, changes = asyncio.run(run())
    behind.close()
    assert set(reads.values()) == {200}, reads
    # those that found no place at the door in time were not made
    assert changes.count(504) >= REQUESTS_MAX and set(changes) <= {503, 504}, changes


@pytest.mark.parametrize("state", ["nothing", "dead", "deaf"])
def test_a_daemon_that_starts_or_is_busy_with_a_beat_is_awaited_for_a_bounded_time(tmp_path, state):
    """No socket yet; an earlier process's socket; a socket whose process reads nothing."""
    path = tmp_path / "door"
    with socket.socket(socket.AF_UNIX) as listener:
        if state != "nothing":
            listener.bind(str(path))
        if state == "deaf":
            listener.listen(128)
        told = statuses(path, [*READS, *SENT, SEND], 1.0)
    changed = {told.pop((method, target)) for method, target, *_ in SENT}
    assert set(told.values()) == {503}, told
    assert changed == {504 if state == "deaf" else 503}  # one that was not sent was not made


def test_rows_for_a_full_store_are_turned_away_at_once(tmp_path, snapshot):
    full = {**snapshot, "store": {**snapshot["store"], "full": True}}
    behind = Behind(tmp_path / "door", full, Future)
    told = statuses(behind.path, [SEND, ("GET", "/v1/store")])
    behind.close()
    assert (
        list(told.values()) == [429, 200] and "job" not in behind.asked
    )  # the source is not tried


def test_a_daemon_that_ends_while_it_is_asked_leaves_nobody_waiting(tmp_path, snapshot):
    behind = Behind(tmp_path / "door", snapshot, Future)

    async def run():
        async with asking(behind.path, 60.0) as ask:
            pause = asyncio.create_task(ask("POST", "/v1/jobs/readings/pause"))
            while "job.pause" not in behind.asked:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(behind.close)
            return await pause, await ask("GET", "/v1/jobs")

    assert asyncio.run(run()) == (504, 503)
