"""Backpressure: where a link's receiver acknowledges nothing its job waits, and no other one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from edged.beat.record import BeatFacts
from edged.client import Producer, frames
from edged.platform.processes import free_port
from edged.store import Store
from tests.beat.support import ARROW, changed, stream
from tests.links.chain import Hop, Last, hop_job, rows

MANY = 400_000


class Shut:
    """A receiver that greets and reads, and acknowledges nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        peers = []
        try:
            while True:
                peer, _ = self._listener.accept()
                peers.append(peer)
                peer.sendall(frames.numbered(frames.HELLO, 0) + frames.link(0, 0))
        except OSError:
            for peer in peers:
                peer.close()


def aside_job(path, port):
    """A job beside the hop's, with a promise of 100 ms."""
    sink = {"type": "file", "input": "r", "path": str(path / "aside"), "every": "10ms"}
    document = {
        "name": "aside", "streams": {"r": stream()}, "sinks": {"out": sink},
        "promises": {"latency": "100ms"},
    }  # fmt: skip
    document["streams"]["r"]["source"]["listen"] = f"127.0.0.1:{port}"
    return document


@pytest.fixture
def pressed(tmp_path):
    """A hop whose link is full, its senders' threads, and the port of the job beside it."""
    shut, port = Shut(), free_port()
    aside = tmp_path / "aside.json"
    aside.write_text(json.dumps(aside_job(tmp_path, port)))
    job = changed(
        hop_job([shut.address], buffer="4KiB", high="256KiB", low="64KiB"),
        promises={"memory": "2MiB"},
    )
    with Hop(tmp_path / "hop", job, [str(aside)]) as hop:
        sent = threading.Thread(target=_send, args=(hop,), daemon=True)
        sent.start()
        hop.until(lambda s: s["jobs"]["hop"]["throttled"])
        yield hop, shut, port, sent
        shut.close()


def _send(hop):
    """Send all rows, unless the daemon ends with its test."""
    with (
        contextlib.suppress(OSError),
        hop.producer(unacked_bytes_max=1 << 20) as producer,
    ):
        for start in range(0, MANY, 1000):
            producer.send(rows(range(start, start + 1000)))
        producer.flush(300)


def test_a_full_link_stops_its_job_and_no_other(pressed, tmp_path):
    hop, shut, port, sent = pressed
    status = hop.until(lambda s: s["sources"][0]["backpressure_us"] > 0)
    taken = status["jobs"]["hop"]["streams"]["r"]["rows"]
    with Producer(f"127.0.0.1:{port}", "r", ARROW, "q") as other:
        for k in range(30):
            other.send(rows([k]))
            other.flush()
            time.sleep(0.02)
    status = hop.status()
    assert status["jobs"]["hop"]["streams"]["r"]["rows"] == taken < MANY
    assert not status["jobs"]["aside"]["throttled"]
    assert status["jobs"]["aside"]["streams"]["r"]["rows"] == 30
    switches = status["process"]["context_switches"]
    time.sleep(2)
    assert hop.status()["process"]["context_switches"] - switches < 100

    shut.close()
    last = Last(tmp_path / "last")
    with last:
        job = changed(hop_job([last.address]), promises={"memory": "2MiB"})
        hop.write(job)
        hop.kill()
        hop.restart()
        hop.ready(300)
        sent.join(300)
        last.until(lambda _: len(last.values()) >= MANY, 300)
        assert last.values() == list(range(MANY))


def test_the_record_says_that_a_link_was_full(pressed):
    hop, *_ = pressed
    hop.kill()
    with Store.open(hop.store) as store:
        facts = [BeatFacts.decode(record.facts) for record in store.recover().records]
    held = [f.jobs["hop"] for f in facts if "hop" in f.jobs and f.jobs["hop"].throttled]
    assert held
    assert all(s.take_rows == 0 for job in held for s in job.streams.values())
