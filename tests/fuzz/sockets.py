"""A share of the inputs over real sockets: the TCP source and the control door, each with its own
loop, and the doors of `tests.fuzz.http_sockets`, beside a healthy client whose answers time the
longest pause of the loop."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edged.control.door import Door, ask
from edged.events.log import Events, LineLog
from edged.job.plan import parse_job
from edged.platform.clock import SystemClock
from tests.fuzz import http_sockets
from tests.fuzz.campaign import PAUSE_S_MAX, Outcome, _memory
from tests.fuzz.doors import DOORS as PARSERS
from tests.fuzz.http_sockets import Opened
from tests.fuzz.mutations import mutated
from tests.sources.tcp_rig import Rig, dial, messages, rows

PATIENCE_S = 0.5
EVERY = 20
"""Hostile inputs between two pings."""


@contextlib.contextmanager
def _tcp(outcome: Outcome) -> Iterator[Opened]:
    with Rig() as rig, dial(rig) as healthy:
        healthy.sendall(messages([rows(0, 1)]))
        more = messages([rows(1, 1)])[len(messages([])) :]
        rig.source.on_defect = lambda peer, problem: outcome.finds.append(
            {"seed": str(outcome.seed), "what": f"{peer}: {problem!r}"}
        )

        def ping() -> None:
            before = rig.counter("messages")
            healthy.sendall(more)
            rig.until(lambda: rig.counter("messages") > before)

        greeted = outcome.door == "batch.socket"
        yield lambda: dial(rig), lambda *given: greeted * messages([]) + given[-1], ping


@contextlib.contextmanager
def _control(outcome: Outcome) -> Iterator[Opened]:
    clock = SystemClock()
    events = Events(clock, LineLog(lambda *_: None))

    def handler(request: dict) -> dict:
        return {"name": parse_job(request.get("document")).name} if "document" in request else {}

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "door"
        door, over = Door(path, handler, clock, events, dict), threading.Event()

        def serve() -> None:
            while not over.is_set():
                door.serve()
                time.sleep(0.0005)

        thread = threading.Thread(target=serve)
        thread.start()

        def connect() -> socket.socket:
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(120)
            peer.connect(str(path))
            return peer

        try:
            yield connect, lambda *given: given[-1], lambda: ask(path, "ping", timeout_s=120)
        finally:
            over.set()
            thread.join()
            door.close()
            for event in events.since(0)[0]:
                if event["kind"] == "peer.defect":
                    outcome.finds.append({"seed": str(outcome.seed), "what": event["text"]})


DOORS = {
    "greeting.socket": (_tcp, "greeting"),
    "schema.socket": (_tcp, "schema"),
    "batch.socket": (_tcp, "batch"),
    "control.socket": (_control, "control"),
    "collector.socket": (http_sockets.collector, "collector"),
    "ingest.socket": (http_sockets.ingest, "ingest"),
}


def run(door: str, count: int, seed: int = 1, cpu_s: float = float("inf")) -> Outcome:
    """Send `count` inputs, each on a connection of its own."""
    opens, parser = DOORS[door]
    outcome, corpora = Outcome(door, seed=seed), PARSERS[parser]().corpora
    rng, began = random.Random(f"{door} {seed}"), time.process_time()
    with opens(outcome) as (connect, frame, ping):
        ping()
        memory = _memory()
        while outcome.inputs < count and time.process_time() - began < cpu_s:
            tag = rng.choice(list(corpora))
            data = frame(rng, tag, mutated(rng, corpora[tag]))
            if _send(connect, data).startswith(b"HTTP/1.1 500"):
                find = {"seed": str(seed), "tag": tag, "input": data[:4096].hex()}
                outcome.finds.append(find | {"what": "an answer with status 500"})
            outcome.inputs += 1
            if outcome.inputs % EVERY == 0:
                start_s = time.monotonic()
                ping()
                pause_s = time.monotonic() - start_s
                outcome.pause_ms_max = max(outcome.pause_ms_max, 1000 * pause_s)
                if pause_s > 10 * PAUSE_S_MAX:  # of wall time: the machine may be busy
                    what = f"the loop paused {pause_s:.1f} s"
                    outcome.finds.append({"seed": str(seed), "what": what})
        outcome.growth_bytes = _memory() - memory
    outcome.cpu_s = time.process_time() - began
    return outcome


def _send(connect: Callable[[], socket.socket], data: bytes) -> bytes:
    """Send, close the sending end, and read the answer to its end; returns its first bytes.

    A server of HTTP drops a request whose sender closes: it has PATIENCE_S to answer first.
    """
    first = b""
    with connect() as peer, contextlib.suppress(ConnectionError, BrokenPipeError):
        peer.sendall(data)
        if b" HTTP/1.1\r\nHost: " in data:
            select.select([peer], [], [], PATIENCE_S)
        peer.shutdown(socket.SHUT_WR)
        while part := peer.recv(1 << 16):
            first = first or part
    return first
