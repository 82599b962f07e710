"""The doors that speak HTTP, as real processes: the collector, and the API beside its daemon.

An opener gives what `tests.fuzz.sockets` needs: a connection, the request around an input, and a
healthy client's request.  A fault that a process did not foresee is an answer 500, or its death,
which the healthy client notices.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from tests.api.support import both
from tests.central.support import DEVICE, EPOCH, SCHEMA, collecting
from tests.fuzz.campaign import Outcome
from tests.fuzz.mutations import mutated
from tests.sources.tcp_rig import SCHEMA as ROWS

Frame = Callable[[random.Random, str, bytes], bytes]
Opened = tuple[Callable[[], socket.socket], Frame, Callable[[], None]]
DEVICE_HEADERS = f"X-Edged-Device: {DEVICE}\r\nX-Edged-Epoch: {EPOCH}\r\nX-Edged-Session: 1:1\r\n"


def request(rng: random.Random, port: int, line: str, headers: str, body: bytes) -> bytes:
    """A request on a connection of its own; one head in four is mutated, too."""
    head = (
        f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    return (mutated(rng, [head]) if rng.randrange(4) == 0 else head) + body


def dialing(port: int) -> Callable[[], socket.socket]:
    """Connections to a port of loopback."""
    return lambda: socket.create_connection(("127.0.0.1", port), 120)


@contextlib.contextmanager
def collector(outcome: Outcome) -> Iterator[Opened]:
    """`edged central collect`."""

    def frame(rng: random.Random, tag: str, data: bytes) -> bytes:
        line = "POST /v1/pages"
        if tag == "schema":
            line = f"PUT /v1/schemas/s{rng.randrange(100)}/1"
        return request(rng, made.port, line, DEVICE_HEADERS, data)

    with tempfile.TemporaryDirectory() as directory, collecting(Path(directory) / "land") as made:

        def ping() -> None:
            put = f"{made.url}/v1/schemas/healthy/1"
            headers = dict(line.split(": ") for line in DEVICE_HEADERS.split("\r\n") if line)
            assert httpx.put(put, content=SCHEMA, headers=headers, timeout=120).status_code == 204

        yield dialing(made.port), frame, ping


@contextlib.contextmanager
def ingest(outcome: Outcome) -> Iterator[Opened]:
    """`POST /v1/streams/{stream}/tuples` of the API, into a running daemon."""
    columns = {f.name: f.dtype.name + ("?" if f.nullable else "") for f in ROWS}
    stream = {"source": {"type": "http"}, "columns": columns, "time": "time"}
    document = {"name": "fuzz", "streams": {"s": stream},
                "sinks": {"out": {"type": "pages", "input": "s"}}}  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as directory,
        both(Path(directory), document, tcp=True) as (_, api),
        api.over_tcp(api.token("ingest", "read")) as healthy,
    ):
        headers = f"Authorization: {healthy.headers['authorization']}\r\nContent-Type: "

        def frame(rng: random.Random, tag: str, data: bytes) -> bytes:
            return request(rng, api.port, "POST /v1/streams/s/tuples", f"{headers}{tag}\r\n", data)

        def ping() -> None:
            assert healthy.get("/v1/jobs").status_code == 200

        yield dialing(api.port), frame, ping
