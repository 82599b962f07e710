"""The door: new producers are greeted at once, whatever the beat waits for."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

from edged.client import frames
from edged.sources._tcp_greeting import wanted
from edged.sources._tcp_socket import TcpSettings
from tests.beat.loop import Loop, batch
from tests.beat.support import ARROW, changed, copy_job
from tests.sources.tcp_rig import Rig, messages, next_frame, rows

PEM = str(Path(__file__).with_name("loopback_tls.pem"))
TLS = TcpSettings("127.0.0.1", 0, tls_cert=PEM, tls_key=PEM)
PATIENT = changed(copy_job(), promises={"latency": "10s", "ack_within": "10s"})


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The daemon has compiled its kernels before a client can connect."""
    wanted(bytes(8))


def greeting(producer: str) -> bytes:
    meta = {"edged.stream": "r", "edged.producer": producer}
    return ARROW.with_metadata(meta).serialize().to_pybytes()


def dial(loop: Loop) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", loop.inputs.sources[0].port), 120)
    peer.settimeout(120)
    return peer


class TestANewProducerIsGreetedWithoutABeat:
    def test_while_the_daemon_is_idle(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, dial(loop) as peer:
            peer.sendall(greeting("p"))
            assert next_frame(peer) == (frames.HELLO, bytes(8))
            assert loop.heart.beat == 0

    def test_while_data_lies_muted_and_the_batcher_waits(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, loop.producer() as busy:
            busy.connect()
            busy.send(batch([1, 2, 3]))
            busy.poll()
            time.sleep(0.2)
            with contextlib.ExitStack() as stack:
                peers = [stack.enter_context(dial(loop)) for _ in range(50)]
                for i, peer in enumerate(peers):
                    peer.sendall(greeting(f"new {i}"))
                for peer in peers:
                    assert next_frame(peer) == (frames.HELLO, bytes(8))
                assert (loop.heart.beat, loop.job.streams["r"].staging.rows) == (0, 0)

    def test_whose_greeting_comes_byte_by_byte(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, dial(loop) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in greeting("p"):
                peer.sendall(bytes([byte]))
            assert next_frame(peer) == (frames.HELLO, bytes(8))

    def test_or_told_at_once_why_not(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, dial(loop) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            kind, text = next_frame(peer)
            assert (kind, b"not an Arrow IPC stream" in text) == (frames.ERROR, True)


class TestTheOthersSleepOn:
    def test_data_of_those_that_were_greeted_does_not_wake_a_muted_loop(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, loop.producer() as one:
            one.connect()
            one.send(batch([1]))
            one.poll()
            time.sleep(0.2)
            before = loop.event_loop.wakes
            for i in range(20):
                one.send(batch([i]))
                one.poll()
                time.sleep(0.005)
            assert loop.event_loop.wakes == before

    def test_an_open_connection_at_rest_wakes_nobody(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, dial(loop) as peer:
            peer.sendall(greeting("p"))
            next_frame(peer)
            time.sleep(0.1)
            before = loop.event_loop.wakes
            time.sleep(0.5)
            assert loop.event_loop.wakes == before


class TestWhatFollowsAGreeting:
    def test_counts_for_time_from_the_first_contact(self, tmp_path) -> None:
        with Loop(PATIENT, tmp_path / "store") as loop, dial(loop) as peer:
            peer.sendall(greeting("p"))
            next_frame(peer)
            stream = loop.job.streams["r"]
            now = loop.clock.monotonic_us()
            number = stream.staging.producers.number("p")
            assert 0 < now - stream.staging.producers.seen_us[number] < 5_000_000
            horizon = stream.time.horizon(stream.staging.producers, now)
            assert horizon is not None, "it is awaited: others may not run ahead of it"

    def test_is_remembered_by_the_next_record_and_replayed(self, tmp_path) -> None:
        document = changed(copy_job(), promises={"latency": "50ms"})
        path = tmp_path / "store"
        with Loop(document, path) as loop, dial(loop) as peer, loop.producer(id="q") as other:
            peer.sendall(greeting("p"))
            next_frame(peer)
            other.connect()
            other.send(batch([7]))
            loop.until(lambda: other.acked == 1, producer=other)
            ids = list(loop.job.streams["r"].staging.producers.ids)
        assert ids == ["", "p", "q"]
        with Loop(document, path) as again:
            assert list(again.job.streams["r"].staging.producers.ids) == ids

    @pytest.mark.parametrize("settings", [TcpSettings("127.0.0.1", 0), TLS], ids=["tcp", "tls"])
    def test_in_one_write_with_it_is_read_by_a_beat_at_once(self, settings) -> None:
        with Rig(settings) as rig:
            raw = socket.create_connection(("127.0.0.1", rig.port), 10)
            peer = raw if settings is not TLS else _wrapped(raw)
            with peer:
                peer.sendall(messages([rows(0, 100)], producer="p", first_seq=1, end=True))
                rig.until(lambda: rig.count() == 100)


def _wrapped(raw: socket.socket) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(raw)
