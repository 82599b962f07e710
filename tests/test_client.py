"""The producer's client against a real source, and against peers that break."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from edged.client import Producer, ack_wait, frames
from edged.client.connection import Closed, FrameConnection
from edged.errors import PeerError, ProtocolError
from edged.sources._tcp_socket import TcpSettings
from tests.sources.tcp_rig import ARROW, NOW_US, Rig, rows

CERTIFICATE = str(Path(__file__).parent / "sources" / "loopback_tls.pem")


class Cutter:
    """A proxy on loopback that can cut all its connections, mid-message."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sockets: list[socket.socket] = []
        self.bytes = 0
        self.cut_every: int | None = None
        self.stretch: str | None = None
        """The sender, client or edged, whose next TLS record becomes longer in its header."""
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        for s in list(self.sockets):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self.sockets.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self.sockets += [near, far]
            for a, b, count in ((near, far, True), (far, near, False)):
                thread = threading.Thread(target=self._pump, args=(a, b, count), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _pump(self, a: socket.socket, b: socket.socket, count: bool) -> None:
        passed = 0
        with a:
            try:
                while data := a.recv(1 << 14):
                    passed += len(data)
                    if self.stretch == ("client" if count else "edged"):
                        self.stretch = None
                        data = data[:3] + bytes([data[3] | 0x20]) + data[4:]
                    if count and self.cut_every is not None and passed > self.cut_every:
                        b.sendall(data[:100])
                        break
                    b.sendall(data)
            except OSError:
                pass
            for s in (a, b):
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)


def test_sent_rows_are_committed_when_flush_returns() -> None:
    with Rig() as rig, Producer(rig.address, "s", ARROW, producer="p") as producer:
        assert producer.send(rows(0, 100)) == 1
        assert producer.send(rows(100, 100)) == 2
        producer.flush()
        assert producer.acked == 2
        assert rig.count() == 200
        assert producer.unacked_bytes == 0


def test_what_is_committed_needs_no_connection() -> None:
    """Leaving the block flushes: it raised what edged answered to one more greeting."""
    with Rig() as rig:
        producer = Producer(rig.address, "s", ARROW, producer="p", timeout_s=0.5)
        producer.send(rows(0, 100))
        producer.flush(30)
    with producer:
        producer.poll()  # edged has hung up
        time.sleep(0.1)
    with pytest.raises(TimeoutError), producer:
        producer.send(rows(100, 100))


def test_tables_and_mappings_are_cast_and_cut() -> None:
    with Rig(bytes_max=64 << 20) as rig:
        with Producer(rig.address, "s", ARROW, producer="p") as producer:
            big = pa.Table.from_batches([rows(0, 70_000)])
            wide = big.set_column(1, "key", big.column("key").cast(pa.int64())).select(
                ["value", "key", "name", "time"]
            )
            assert producer.send(wide) == 2
            producer.send({"time": [NOW_US], "key": [70_000], "name": ["x"], "value": [None]})
            with pytest.raises(KeyError):
                producer.send({"time": [NOW_US]})
            with pytest.raises(pa.ArrowInvalid):
                producer.send({"time": [NOW_US], "key": [2**40], "name": ["x"], "value": [None]})
            producer.end()
        assert rig.all_keys() == list(range(70_001))
        assert rig.staging.producers.ended.tolist() == [0, 1]


def test_a_prepared_batch_can_be_sent_many_times() -> None:
    with Rig(bytes_max=64 << 20) as rig:
        with Producer(rig.address, "s", ARROW, producer="p") as producer:
            small, large = producer.prepare(rows(0, 50)), producer.prepare(rows(0, 60_000))
            for _ in range(5):
                producer.send(small)
                producer.send(large)
        assert rig.all_keys() == 5 * (list(range(50)) + list(range(60_000)))


def test_a_producer_without_an_id_sends_and_is_not_acknowledged() -> None:
    with Rig() as rig:
        with Producer(rig.address, "s", ARROW) as producer:
            for i in range(5):
                producer.send(rows(10 * i, 10))
            producer.end()
            assert producer.acked == 5
        rig.until(lambda: rig.count() == 50)
        assert rig.counter("acks") == 0
        rig.until(lambda: rig.staging.producers.ended.tolist() == [1])


def test_connections_that_are_cut_lose_and_repeat_nothing() -> None:
    with Rig() as rig:
        cutter = Cutter(rig.port)
        cutter.cut_every = 150_000
        with Producer(cutter.address, "s", ARROW, producer="p") as producer:
            for i in range(300):
                producer.send(rows(100 * i, 100))
                if i == 150:
                    cutter.cut()
            producer.end()
            assert producer.connections > 5
        cutter.close()
        assert rig.all_keys() == list(range(30_000))


def test_a_producer_that_starts_again_goes_on_behind_the_last_committed_batch() -> None:
    with Rig() as rig:
        with Producer(rig.address, "s", ARROW, producer="p") as producer:
            for i in range(3):
                producer.send(rows(10 * i, 10))
        with Producer(rig.address, "s", ARROW, producer="p") as producer:
            done = producer.connect()
            assert done == 3
            assert producer.send(rows(10 * done, 10)) == 4
        assert rig.all_keys() == list(range(40))


def test_a_second_producer_of_the_same_id_ends_the_first() -> None:
    with Rig() as rig:
        first = Producer(rig.address, "s", ARROW, producer="p")
        first.send(rows(0, 10))
        first.flush()
        with Producer(rig.address, "s", ARROW, producer="p") as second:
            assert second.send(rows(10, 10)) == 2
            second.flush()
            with pytest.raises(PeerError, match="took over"):
                for _ in range(100):
                    first.send(rows(20, 1))
                    time.sleep(0.01)
        first.close()
        assert rig.all_keys() == list(range(20))


def test_what_edged_refuses_is_raised() -> None:
    wrong = ARROW.set(1, pa.field("key", pa.string()))
    with Rig() as rig:
        with pytest.raises(PeerError, match="column key: string arrives, int32 is expected"):
            Producer(rig.address, "s", wrong, producer="p").connect()
        with pytest.raises(PeerError, match="no stream 'x' here"):
            Producer(rig.address, "x", ARROW, producer="p").connect()


def test_sending_waits_while_too_much_is_unacknowledged() -> None:
    with Rig() as rig:
        rig.committing = False
        producer = Producer(
            rig.address, "s", ARROW, producer="p", unacked_bytes_max=20_000, timeout_s=0.3
        )
        with pytest.raises(TimeoutError, match="bytes are not acknowledged"):
            for i in range(100):
                producer.send(rows(100 * i, 100))
        taken = producer.sent
        assert 1 < taken < 10
        rig.committing = True
        for i in range(taken, 100):
            producer.send(rows(100 * i, 100))
        producer.flush(10)
        producer.close()
        assert rig.all_keys() == list(range(10_000))


def test_batches_are_kept_while_edged_is_away_and_sent_when_it_is_back() -> None:
    rig = Rig()
    port = rig.port
    producer = Producer(rig.address, "s", ARROW, producer="p")
    producer.send(rows(0, 10))
    producer.flush()
    state = rig.staging.save()
    rig.stop()
    for i in range(1, 5):
        producer.send(rows(10 * i, 10))
    with pytest.raises(TimeoutError, match="no ack"):
        producer.flush(0.2)
    with Rig(TcpSettings("127.0.0.1", port), recovered=state) as again:
        producer.flush()
        assert again.all_keys() == list(range(10, 50))
    producer.close()


def test_a_store_that_has_forgotten_batches_is_noticed() -> None:
    rig = Rig()
    port = rig.port
    producer = Producer(rig.address, "s", ARROW, producer="p")
    producer.send(rows(0, 10))
    producer.flush()
    rig.stop()
    with Rig(TcpSettings("127.0.0.1", port)), pytest.raises(ProtocolError, match="was reset"):
        producer.send(rows(10, 10))
        producer.flush()


def test_nobody_there_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TimeoutError, match="no connection"):
        Producer(f"127.0.0.1:{port}", "s", ARROW, producer="p", timeout_s=0.2).connect()
    with pytest.raises(ValueError, match="host:port"):
        Producer("nowhere", "s", ARROW)


def test_a_producer_without_an_id_parts_over_tls_too() -> None:
    """Found by reading: half-closing the socket threw its TLS away, and what came was no frame."""
    settings = TcpSettings("127.0.0.1", 0, tls_cert=CERTIFICATE, tls_key=CERTIFICATE)
    with Rig(settings) as rig:
        with Producer(rig.address, "s", ARROW, tls=CERTIFICATE) as producer:
            for i in range(50):
                producer.send(rows(i, 200))
            producer.end(10)
            assert producer.connections == 1
        rig.until(lambda: rig.count() == 10_000)
        refused = Producer(rig.address, "x", ARROW, tls=CERTIFICATE)
        with pytest.raises(PeerError, match="no stream 'x' here"):
            refused.send(rows(0, 1))
            refused.end(10)
        refused.close()


def test_that_the_peer_hung_up_first_over_tls_is_no_error_of_hanging_up() -> None:
    """edged may read the end of the stream and close before TLS's close_notify arrives."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            with context.wrap_socket(server.accept()[0], server_side=True) as sock:
                sock.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        context = ssl.create_default_context(cafile=CERTIFICATE)
        link = FrameConnection("127.0.0.1", server.getsockname()[1], context, 5)
        link.give([b"x"])
        serving.join()
    link.finish()
    with pytest.raises(Closed):
        link.receive()
    link.close()


def test_tls_and_a_token_together(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    settings = TcpSettings(
        "127.0.0.1", 0, str(tmp_path / "token"), tls_cert=CERTIFICATE, tls_key=CERTIFICATE
    )
    with Rig(settings, bytes_max=64 << 20) as rig:
        with Producer(
            rig.address, "s", ARROW, producer="p", token="secret", tls=CERTIFICATE
        ) as producer:
            for i in range(20):
                producer.send(rows(10_000 * i, 10_000))
            producer.end()
        assert rig.all_keys() == list(range(200_000))
        with pytest.raises(PeerError, match=r"edged\.token"):
            Producer(rig.address, "s", ARROW, producer="q", tls=CERTIFICATE).connect()
        with pytest.raises(PeerError, match="certificate"):
            Producer(rig.address, "s", ARROW, producer="q", tls=True).connect()
        with pytest.raises(TimeoutError):
            Producer(rig.address, "s", ARROW, producer="q", timeout_s=0.5).connect()
        rig.until(lambda: rig.counter("refused_tls") >= 1)


@pytest.mark.parametrize("damaged", ["client", "edged"])
def test_a_peer_that_waits_for_the_rest_of_a_damaged_record_holds_nothing_up_for_ever(
    damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_wait, "SILENCE_S_FIRST", 0.5)
    monkeypatch.setattr(ack_wait, "SILENCE_S_MIN", 0.2)
    settings = TcpSettings("127.0.0.1", 0, tls_cert=CERTIFICATE, tls_key=CERTIFICATE)
    with Rig(settings) as rig:
        link = Cutter(rig.port)
        producer = Producer(link.address, "s", ARROW, producer="p", tls=CERTIFICATE)
        for i in range(3):
            link.stretch = damaged if i else None
            producer.send(rows(10 * i, 10))
            producer.flush(60)
        assert producer.connections >= 3 and link.stretch is None
        producer.close()
        link.close()
        assert rig.all_keys() == list(range(30))


def test_a_full_store_is_not_taken_for_a_dead_connection_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ack_wait, "SILENCE_S_FIRST", 0.05)
    with Rig() as rig:
        rig.committing = False
        with Producer(rig.address, "s", ARROW, producer="p") as producer:
            producer.send(rows(0, 10))
            with pytest.raises(TimeoutError):
                producer.flush(2.0)
            assert 2 <= producer.connections <= 8, "each wait is twice as long as the last"
            rig.committing = True
            producer.flush()
        assert rig.all_keys() == list(range(10))


def test_several_threads_may_send() -> None:
    with Rig() as rig:
        with Producer(rig.address, "s", ARROW, producer="p") as producer:

            def work(first: int) -> None:
                for i in range(20):
                    producer.send(rows(first + 10 * i, 10))

            threads = [threading.Thread(target=work, args=(1000 * t,)) for t in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            assert producer.acked == 80
        expected = [1000 * t + k for t in range(4) for k in range(200)]
        assert sorted(rig.all_keys()) == expected


def test_frames_cut_anywhere_come_out_whole() -> None:
    error = frames.text_frame(frames.ERROR, "no")
    data = frames.numbered(frames.HELLO, 7) + error + frames.end_ack()
    for size in range(1, len(data)):
        reader, got = frames.FrameReader(), []
        for at in range(0, len(data), size):
            got += reader.feed(data[at : at + size])
        assert got == [(1, (7).to_bytes(8, "little")), (3, b"no"), (4, b"")]
    with pytest.raises(ValueError, match="protocol"):
        frames.FrameReader().feed(b"HTTP/1.1 400 Bad Request")
