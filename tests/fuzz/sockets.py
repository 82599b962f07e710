"""A share of the inputs over real sockets: the TCP source and the control door, each with its own
loop, beside a healthy client whose answers time the longest pause of the loop."""

from __future__ import annotations

import contextlib
import random
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
from tests.fuzz.campaign import PAUSE_S_MAX, Outcome, _memory
from tests.fuzz.doors import DOORS as PARSERS
from tests.fuzz.mutations import mutated
from tests.sources.tcp_rig import Rig, dial, messages, rows

Ping = Callable[[], None]
EVERY = 20
"""Hostile inputs between two pings."""


@contextlib.contextmanager
def _tcp(outcome: Outcome) -> Iterator[tuple[Callable[[], socket.socket], bytes, Ping]]:
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

        yield lambda: dial(rig), messages([]), ping


@contextlib.contextmanager
def _control(outcome: Outcome) -> Iterator[tuple[Callable[[], socket.socket], bytes, Ping]]:
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
            yield connect, b"", lambda: ask(path, "ping", timeout_s=120)
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
}


def run(door: str, count: int, seed: int = 1, cpu_s: float = float("inf")) -> Outcome:
    """Send `count` inputs, each on a connection of its own."""
    opens, parser = DOORS[door]
    outcome, corpora = Outcome(door, seed=seed), PARSERS[parser]().corpora
    rng, began = random.Random(f"{door} {seed}"), time.process_time()
    with opens(outcome) as (connect, before, ping):
        ping()
        memory = _memory()
        while outcome.inputs < count and time.process_time() - began < cpu_s:
            data = mutated(rng, corpora[rng.choice(list(corpora))])
            _send(connect, (before if parser == "batch" else b"") + data)
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


def _send(connect: Callable[[], socket.socket], data: bytes) -> None:
    """Send, close the sending end, and read the answer to its end."""
    with connect() as peer, contextlib.suppress(ConnectionError, BrokenPipeError):
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
